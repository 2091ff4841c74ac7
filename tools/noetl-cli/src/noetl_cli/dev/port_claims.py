"""Ports that a stack has chosen, until it ends: a port is free for everybody else until its server listens."""

from __future__ import annotations

import errno
import os
import socket
import sys


class PortClaims:
    """A socket without a file for each port, under its name: it goes with its process, however that ends.

    Only Linux has such names; elsewhere ports are chosen by chance alone.
    """

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        """Their descriptors, open until they are let go or the process ends."""

    def claim(self, port: int) -> bool:
        """Whether no other process has chosen it; it is ours then, until we let it go or end."""
        if port in self._held or sys.platform != "linux":
            return True
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0noetl-port-{port}")
        except OSError as exc:
            name.close()
            return exc.errno != errno.EADDRINUSE
        self._held[port] = name.detach()
        return True

    def release(self, port: int) -> None:
        """Others may choose it again; a process that runs many stacks keeps no descriptor for each of their ports."""
        if port in self._held:
            os.close(self._held.pop(port))
