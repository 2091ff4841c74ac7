"""Ports that nobody else is using, and that stay the same from one start to the next."""

import itertools
import json
import os
import random
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from noetl_core.errors import InvalidInput

from noetl_cli.dev.files import write_atomically
from noetl_cli.dev.port_claims import PortClaims

PORTS_VARIABLE = "NOETL_DEV_PORTS"
"""Names the first and the last port to choose from, as in `15000-19999`."""
_LOWEST = 15_000
_HIGHEST = 65_535
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS = 200

_handed_out: dict[int, str] = {}
_lock = threading.Lock()
_random = random.SystemRandom()
_claims = PortClaims()


def free_port() -> int:
    """A free TCP port of 127.0.0.1, handed out once per process.

    Taken from below the ephemeral range where that is possible: a client that keeps dialling a stopped
    server at an ephemeral port can end up connected to itself, and the server cannot bind it again.
    """
    port = _choose("")
    _claims.release(port)  # Nobody says when such a port is needed no more.
    return port


def is_free(port: int) -> bool:
    """Whether a server could listen there now; connections of an earlier one may still be closing."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def remembered_ports(file: Path, names: Sequence[str]) -> Mapping[str, int]:
    """One port per name, the same as last time unless somebody else has taken it since.

    They are this process's until `release_ports` or its end: stacks that start at the same moment have different ones.
    """
    known = _read(file)
    ports: dict[str, int] = {}
    for name in names:
        before, owner = known.get(name), f"{file}#{name}"
        ports[name] = before if before is not None and _take(before, owner) else _choose(owner)
    if ports.items() - known.items():
        write_atomically(file, json.dumps({**known, **ports}, indent=2) + "\n")
    return ports


def release_ports(file: Path) -> None:
    """What was chosen for this file may be chosen by other processes: its stack is gone."""
    with _lock:
        for port, owner in _handed_out.items():
            if owner.rpartition("#")[0] == str(file):
                _claims.release(port)


def _take(port: int, owner: str) -> bool:
    with _lock:
        if _handed_out.get(port, owner) != owner or not is_free(port) or not _claims.claim(port):
            return False
        _handed_out[port] = owner
        return True


def _choose(owner: str) -> int:
    """A port that is free, was not handed out before, and that no other process has chosen."""
    ports = _choice()
    by_chance = (_random.choice(ports) for _ in range(_ATTEMPTS))
    with _lock:
        for port in itertools.chain(by_chance, iter(_chosen_by_system, None)):
            if port not in _handed_out and is_free(port) and _claims.claim(port):
                _handed_out[port] = owner
                return port
    raise AssertionError("the system has run out of ports")


def _read(file: Path) -> dict[str, int]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}  # ports are a convenience: without the file, new ones are as good
    if not isinstance(document, dict):
        return {}
    return {str(name): port for name, port in document.items() if isinstance(port, int)}


def _choice() -> range:
    """Named by those who share a machine with others that choose ports: one is free until its server listens."""
    named = os.environ.get(PORTS_VARIABLE)
    if named is None:
        return range(_LOWEST, max(_ephemeral_start(), _LOWEST + 1))
    first, _, last = named.partition("-")
    ports = range(int(first), int(last) + 1) if first.isdecimal() and last.isdecimal() else range(0)
    if not ports or ports[0] < 1 or ports[-1] > _HIGHEST:
        raise InvalidInput(f"{PORTS_VARIABLE} names two ports, such as 15000-19999, not {named!r}")
    return ports


def _ephemeral_start() -> int:
    try:
        return int(_EPHEMERAL_RANGE.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def _chosen_by_system() -> int:
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
