"""What connections to PostgreSQL are set to, and how one is made as good as new."""

from __future__ import annotations

from typing import Any

Connection = Any
"""A connection of asyncpg, which has no types."""

_REST_OF_A_SESSION = "SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; DEALLOCATE ALL; DISCARD TEMP; DISCARD SEQUENCES;"
"""What the driver's own reset leaves: who one is, and tables that hide those of the same name from whoever is next."""


class SessionSettings:
    """What the connections of a pool are set to: one that is given back is set for its next call in the same breath.

    Calls that come after each other are mostly alike, rows of a loop for one: those find a session as they want it.
    """

    def __init__(self) -> None:
        self._by_connection: dict[Connection, str] = {}

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._by_connection.pop(connection, None)

    def has(self, connection: Connection, settings: str) -> bool:
        """Whether a session is set so."""
        return self._by_connection.get(connection) == settings

    async def want(self, connection: Connection, settings: str) -> None:
        """Have a session of these settings."""
        if self._by_connection.get(connection) != settings:
            self._by_connection.pop(connection, None)
            await connection.execute(settings)
            self._by_connection[connection] = settings

    async def reset(self, connection: Connection, *, timeout_seconds: float | None) -> None:
        """Nothing of what a call has set, made, locked or listens to is left when its connection is given back."""
        settings = self._by_connection.pop(connection, "")
        if connection.is_in_transaction():  # which the settings would end with
            await connection.reset(timeout=timeout_seconds)
        reset = connection.get_reset_query()
        if "UNLISTEN" in reset:  # PostgreSQL itself, which knows the rest as well
            reset += _REST_OF_A_SESSION
        await connection.execute(f"{reset}{settings}", timeout=timeout_seconds)
        self._by_connection[connection] = settings
