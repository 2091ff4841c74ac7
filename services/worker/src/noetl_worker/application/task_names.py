"""What the templates of a call see, put together as far as they ask for it: of some dozens of names they read a few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from noetl_worker.application.iteration import NO_NAME

if TYPE_CHECKING:
    from noetl_worker.application.scopes import PipelineScope

_NOT_ASKED = object()


class TaskNames(Mapping[str, object]):
    """The names of a scope while one of its calls runs: nothing is set in the scope until that has ended."""

    __slots__ = ("_asked", "_attempt", "_has_all", "_label", "_scope")

    def __init__(self, scope: PipelineScope, *, label: str, attempt: int) -> None:
        self._scope = scope
        self._label = label
        self._attempt = attempt
        self._asked: dict[str, object] = {}
        self._has_all = False

    def __getitem__(self, name: str) -> object:
        found = self.get(name, NO_NAME)
        if found is NO_NAME:
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        found = self._asked.get(name, _NOT_ASKED)
        if found is not _NOT_ASKED or self._has_all:
            return found is not _NOT_ASKED and found is not NO_NAME
        if self._scope.has(name):
            return True
        self._asked[name] = NO_NAME
        return False

    def get(self, name: str, default: object = None) -> object:
        """As of any mapping, without an error in between."""
        found = self._asked.get(name, _NOT_ASKED)
        if found is _NOT_ASKED:
            if self._has_all:
                return default
            found = self._asked[name] = self._scope.name(name, label=self._label, attempt=self._attempt)
        return default if found is NO_NAME else found

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self.all())

    def all(self) -> dict[str, object]:
        """Put together at once, for who needs the whole."""
        if not self._has_all:
            self._asked = self._scope.names(label=self._label, attempt=self._attempt)
            self._has_all = True
        return self._asked
