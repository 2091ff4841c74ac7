"""Knowing a process again, and ending it with all that it started; a pid alone is soon somebody else's."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_BOOT_ID = _PROC / "sys/kernel/random/boot_id"
_POLL_SECONDS = 0.02
_ENDED = frozenset("ZX")
"""States of a process that has ended and only waits to be collected by its parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A pid and when it started: together they name one process, also after a reboot."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """The live process with this pid, if there is one."""
        entry = _entry(pid)
        if entry is None or entry.has_ended:
            return None
        return cls(pid=pid, started=_since_boot(entry.started))

    @classmethod
    def current(cls) -> "ProcessIdentity":
        """This very process."""
        identity = cls.of(os.getpid())
        if identity is None:  # pragma: no cover - a process that asks is alive
            raise ProcessLookupError(os.getpid())
        return identity

    def is_alive(self) -> bool:
        """False also when the pid now belongs to another process."""
        return ProcessIdentity.of(self.pid) == self


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """One row of the process table."""

    pid: int
    state: str
    parent: int
    group: int
    started: str

    @property
    def has_ended(self) -> bool:
        """A zombie has a row, and nothing else."""
        return self.state[:1] in _ENDED


def process_table() -> Mapping[int, ProcessEntry]:
    """Every process of this machine, as far as this user may see it."""
    if not _has_proc():
        return _table_from_ps()
    entries = (_entry(int(path.name)) for path in _PROC.iterdir() if path.name.isdigit())
    return {entry.pid: entry for entry in entries if entry is not None}


def descendants(pid: int) -> frozenset[int]:
    """Children, their children and so on; not the process itself."""
    children: dict[int, list[int]] = {}
    for entry in process_table().values():
        children.setdefault(entry.parent, []).append(entry.pid)
    found: set[int] = set()
    pending = [pid]
    while pending:
        for child in children.get(pending.pop(), []):
            if child not in found:
                found.add(child)
                pending.append(child)
    return frozenset(found)


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all its descendants, at once as far as they can tell.

    They are stopped before they are killed, so that no parent sees a child die and starts another.
    """
    frozen: set[int] = set()
    pending = {pid}
    while pending:
        for member in pending:
            send_signal(member, signal.SIGSTOP)
        frozen |= pending
        pending = set(descendants(pid)) - frozen
    for member in (pid, *(frozen - {pid})):
        send_signal(member, signal.SIGKILL)


def kill_group_remains(leader: int) -> None:
    """SIGKILL to what a process group left behind when its leader ended."""
    table = process_table()
    if leader in table and not table[leader].has_ended:
        return  # the number is in use: either the leader lives, or this is another group altogether
    for entry in table.values():
        if entry.group == leader and not entry.has_ended:
            send_signal(entry.pid, signal.SIGKILL)


def end_process(identity: ProcessIdentity, *, stop_signal: int, stop_seconds: float) -> None:
    """End a process that need not be our child: politely, and after the deadline by force."""
    if identity.is_alive():
        send_signal(identity.pid, stop_signal)
        if not wait_until_ended(identity, seconds=stop_seconds):
            kill_tree(identity.pid)
            wait_until_ended(identity, seconds=stop_seconds)
    kill_group_remains(identity.pid)


def wait_until_ended(identity: ProcessIdentity, *, seconds: float) -> bool:
    """Whether the process ended in time."""
    deadline = time.monotonic() + seconds
    while identity.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def send_signal(pid: int, number: int) -> None:
    """Signal a process that may have ended meanwhile."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _has_proc() -> bool:
    return (_PROC / "self/stat").exists()


def _since_boot(started: str) -> str:
    with suppress(OSError):
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()}/{started}"
    return started


def _entry(pid: int) -> ProcessEntry | None:
    if not _has_proc():
        return _table_from_ps().get(pid)
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # the second field is the command in parentheses, and may itself contain spaces and parentheses
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessEntry(pid=pid, state=fields[0], parent=int(fields[1]), group=int(fields[2]), started=fields[19])


def _table_from_ps() -> dict[int, ProcessEntry]:
    listing = subprocess.run(
        ["/bin/ps", "-A", "-o", "pid=,ppid=,pgid=,stat=,lstart="],
        check=True,
        capture_output=True,
        text=True,
        env={"LC_ALL": "C"},
    )
    entries = {}
    for line in listing.stdout.splitlines():
        pid, parent, group, state, started = line.split(maxsplit=4)
        entries[int(pid)] = ProcessEntry(
            pid=int(pid), state=state, parent=int(parent), group=int(group), started=started
        )
    return entries
