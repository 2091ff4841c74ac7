"""Runs between fork and exec: binds a process to its parent's life and leaves root, then becomes the command.

A script of its own, so that nothing has to run in the forked copy of a process with threads; it imports
only the standard library, and is started with `python -I -S`.
"""

import argparse
import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUSER = 0x10000000


def main(arguments: list[str]) -> None:
    """Apply the options in the order in which the kernel keeps their effects, then exec."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, help="end when this process ends")
    parser.add_argument("--death-signal", type=int, default=int(signal.SIGTERM))
    parser.add_argument("--namespace", type=_ids, help="uid:gid to appear as, files staying our own")
    parser.add_argument("--become", type=_ids, help="uid:gid to switch to")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.namespace is not None:
        appear_as(*options.namespace)
    if options.become is not None:
        become(*options.become)
    if options.parent is not None:
        end_with(options.parent, options.death_signal)  # last: a change of user clears it
    restore_signals()
    try:
        os.execv(command[0], command)  # noqa: S606 - becoming the command is the purpose
    except OSError as exc:
        sys.exit(f"cannot run {command[0]}: {exc.strerror}")


def appear_as(uid: int, gid: int) -> None:
    """Enter a user namespace in which our own user, and all its files, carry another number."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no user namespace: {os.strerror(number)}")
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1", encoding="ascii")


def become(uid: int, gid: int) -> None:
    """Switch to another user for good."""
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def end_with(parent: int, death_signal: int) -> None:
    """Have the kernel signal us when the parent ends, however it ends."""
    if sys.platform != "linux":
        return  # elsewhere the next start finds the orphan by its record
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot bind to the parent: {os.strerror(number)}")
    if os.getppid() != parent:
        sys.exit(f"process {parent} ended before {Path(sys.argv[0]).name} had bound itself to it")


def restore_signals() -> None:
    """Undo what a shell or Python left ignored or blocked: the command must hear when it is told to end."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _ids(text: str) -> tuple[int, int]:
    uid, _, gid = text.partition(":")
    return int(uid), int(gid)


if __name__ == "__main__":
    main(sys.argv[1:])
