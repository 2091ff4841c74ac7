"""News of commits by any replica, pushed by PostgreSQL over a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import asyncpg
from noetl_core.errors import Unavailable

from noetl_adapters.postgres.pool import SESSION_SETTINGS, translated

CHANNEL: Final = "noetl_commit"
EVERYTHING: Final = "*"
_PROBE_SECONDS: Final = 5.0


class PostgresCommitListener:
    """A loop for a service to supervise: it ends as `Unavailable` with its connection, to be started again.

    `hear` gets each notice as it was sent, and EVERYTHING with each connection, when it stands and when it is lost,
    since anything may have moved without it. It must not wait.
    """

    def __init__(self, dsn: str, *, application_name: str, hear: Callable[[str], None]) -> None:
        self._dsn = dsn
        self._application_name = application_name
        self._hear = hear

    async def run(self, beat: Callable[[], None]) -> None:
        """Listen until the connection is lost; `beat` is called as long as it is known to work."""
        async with translated():
            connection = await asyncpg.connect(
                self._dsn,
                timeout=_PROBE_SECONDS,
                command_timeout=_PROBE_SECONDS,
                server_settings={**SESSION_SETTINGS, "application_name": self._application_name},
            )
            lost = asyncio.Event()
            try:
                connection.add_termination_listener(lambda _: lost.set())
                await connection.add_listener(CHANNEL, self._receive)
                self._hear(EVERYTHING)
                while not lost.is_set():
                    beat()
                    await self._probe(connection, lost)
            finally:
                connection.terminate()
                self._hear(EVERYTHING)
        raise Unavailable("the connection that listens for commits was lost")

    @staticmethod
    async def _probe(connection: asyncpg.Connection, lost: asyncio.Event) -> None:
        """A peer that vanished without a word is noticed only by asking."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await lost.wait()
        except TimeoutError:
            await connection.execute("SELECT 1")

    def _receive(self, _connection: object, _pid: int, _channel: str, notice: str) -> None:
        self._hear(notice)


def moved_streams(notice: str) -> list[tuple[int, int]] | None:
    """Executions and the versions to which they moved; None if anything may have moved."""
    if notice == EVERYTHING:
        return None
    items = (item.split(":") for item in notice.split())
    return [(int(execution_id), int(version)) for _, execution_id, version in items]
