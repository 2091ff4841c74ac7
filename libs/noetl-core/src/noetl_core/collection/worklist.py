"""Documents that lead to documents: each is read once, in bounded memory, until none names another."""

from __future__ import annotations

from collections.abc import Iterable

from noetl_core.collection.documents import LONGEST_ADDRESS, MAX_HEADER_BYTES, addresses_in
from noetl_core.collection.reach import Reached, digests_of
from noetl_core.ports.event_log import Scope
from noetl_core.ports.tables import is_table


class Worklist:
    """What is to be read, and what was."""

    def __init__(self) -> None:
        self._known: dict[Scope, set[str]] = {}
        self._waiting: list[tuple[Scope, str]] = []

    def add(self, owner: Scope, documents: Iterable[str]) -> None:
        """These are named in something of this organization, which can name no payload but its own."""
        known = self._known.setdefault(owner, set())
        for sha256 in documents:
            if sha256 not in known:
                known.add(sha256)
                self._waiting.append((owner, sha256))

    def take(self) -> tuple[Scope, str] | None:
        """One that nobody has read; None when there are no more."""
        return self._waiting.pop() if self._waiting else None


class DocumentReading:
    """One document on its way past, piece by piece; what is cut in two is found nevertheless."""

    def __init__(self) -> None:
        self._before = b""
        self._bytes = 0
        self._is_table = False
        self._names_anything = False

    def take(self, piece: bytes, reached: Reached) -> set[str]:
        """Add what this piece names to what is reached; returns which of it has to be read too."""
        if not self._bytes:
            self._is_table = is_table(piece)
        self._bytes += len(piece)
        data = self._before + piece
        self._before = data[1 - LONGEST_ADDRESS :]
        for sha256 in digests_of(data):
            reached.add(sha256)
            self._names_anything = True
        return set(addresses_in(data))

    @property
    def is_enough(self) -> bool:
        """Rows are not looked through: a table that names nothing before them need not be read to its end."""
        return self._is_table and not self._names_anything and self._bytes >= MAX_HEADER_BYTES
