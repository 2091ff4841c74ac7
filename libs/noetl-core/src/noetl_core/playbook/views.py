"""What templates look into without having all of it: results of steps, outcomes, parts that events carry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

Key = str | int

_NO_VIEWS = frozenset({dict, list, str, int, float, bool, type(None)})
"""Types of most values: what else one could be need not be asked."""


class NotInView(Exception):
    """The value exists or may exist, and is not part of what can be seen here."""


class View(ABC):
    """Something that is looked into key by key; it is asked for the whole only when the whole is used."""

    @abstractmethod
    def lookup(self, key: Key) -> object:
        """The value below a key, or `KeyError` if it is known that there is none."""

    @abstractmethod
    def whole(self) -> object:
        """The value itself."""

    def passed(self) -> object:
        """What is handed on where nothing but the value is asked for, as `{{ step }}` does."""
        return self.whole()

    def least(self) -> object:
        """What a slice or the length is taken of: the value itself, or a list of which only some is here."""
        return self.whole()

    def iterated(self) -> object:
        """What is gone through where somebody goes through the value."""
        return self.whole()


def look_into(value: object, key: Key) -> object:
    """The value below a key of a map, list, text or view, or `KeyError`."""
    if type(value) is dict and type(key) is str:  # mostly, and known without asking what else it may be
        return value[key]
    if isinstance(value, View):
        return value.lookup(key)
    if isinstance(value, Mapping):
        # Keys of JSON maps are text; `codes[404]` means the entry that is written so.
        return value[key if isinstance(key, str) else str(key)]
    if isinstance(value, list | tuple | str):
        index = index_of(key)
        if index is not None and -len(value) <= index < len(value):
            return value[index]
    raise KeyError(key)


def whole_of(value: object) -> object:
    """The value behind a view, and any other value as it is."""
    if type(value) in _NO_VIEWS:
        return value
    while isinstance(value, View):
        value = value.whole()
    return value


def least_of(value: object) -> object:
    """What slices are taken of, which may have less than the whole."""
    return value.least() if isinstance(value, View) else value


def iterated_of(value: object) -> object:
    """What is gone through of a value: its items, if it is a view that has a list for that."""
    return whole_of(value.iterated()) if isinstance(value, View) else value


def list_in(result: object) -> object | None:
    """§4.2: iteration goes to a list `data`; none if the result has no such list."""
    try:
        data = whole_of(look_into(result, "data"))
    except KeyError:
        return None
    return data if isinstance(data, list | tuple) else None


def passed_of(value: object) -> object:
    """What is handed on of a view: the value, or what stands for one that is too large."""
    while isinstance(value, View):
        value = value.passed()
    return value


class WithheldView(View):
    """A value that exists and is not here at all."""

    def __init__(self, what: str) -> None:
        self._what = what

    def lookup(self, key: Key) -> object:
        raise NotInView(f"{self._what} is too large to be read here")

    def whole(self) -> object:
        raise NotInView(f"{self._what} is too large to be read here")


class StepView(View):
    """A step's result under the step's name: `.data` or `.result` of a result that lacks it is the result itself."""

    def __init__(self, result: object) -> None:
        self._result = result

    def lookup(self, key: Key) -> object:
        try:
            return look_into(self._result, key)
        except KeyError:
            if key in {"data", "result"}:
                return self._result
            raise

    def whole(self) -> object:
        return whole_of(self._result)

    def least(self) -> object:
        return least_of(self._result)

    def passed(self) -> object:
        return passed_of(self._result)


class DataView(View):
    """A result as `output.data` and `result` show it to arcs: what is below its `data`, then the rest."""

    def __init__(self, result: object) -> None:
        self._result = result

    def lookup(self, key: Key) -> object:
        try:
            return look_into(look_into(self._result, "data"), key)
        except KeyError:
            return look_into(self._result, key)

    def whole(self) -> object:
        try:
            return whole_of(look_into(self._result, "data"))
        except KeyError:
            return whole_of(self._result)

    def least(self) -> object:
        try:
            return least_of(look_into(self._result, "data"))
        except KeyError:
            return least_of(self._result)

    def passed(self) -> object:
        try:
            return passed_of(look_into(self._result, "data"))
        except KeyError:
            return passed_of(self._result)


class CallView(View):
    """The completed call as rules and later tasks see it: `output.data` is the whole result of the tool."""

    def __init__(self, *, envelope: Mapping[str, object], result: object) -> None:
        self._envelope = envelope
        self._result = ResultView(result)

    def lookup(self, key: Key) -> object:
        if key == "data":
            return self._result
        if isinstance(key, str) and key in ENVELOPE_KEYS:
            return self._envelope[key]
        return self._result.lookup(key)

    def whole(self) -> object:
        return {**self._envelope, "data": self._result.whole()}

    def iterated(self) -> object:
        gone_through = self._result.iterated()
        return gone_through if isinstance(gone_through, list | tuple) else self.whole()


class ResultView(View):
    """A result as rules see it: its own keys, then those below its `data`."""

    def __init__(self, result: object) -> None:
        self._result = result

    def lookup(self, key: Key) -> object:
        try:
            return look_into(self._result, key)
        except KeyError:
            return look_into(look_into(self._result, "data"), key)

    def whole(self) -> object:
        return whole_of(self._result)

    def least(self) -> object:
        found = list_in(self._result)
        return self.whole() if found is None else found

    def iterated(self) -> object:
        return self.least()


class RawView(View):
    """The raw result of a tool, as the `set` of its own task sees it: no key is added or sought elsewhere."""

    def __init__(self, result: object) -> None:
        self._result = result

    def lookup(self, key: Key) -> object:
        try:
            return look_into(self._result, key)
        except KeyError:
            found = list_in(self._result) if isinstance(key, int) else None
            if found is None:
                raise
            return look_into(found, key)

    def whole(self) -> object:
        return whole_of(self._result)

    def iterated(self) -> object:
        found = list_in(self._result)
        return self.whole() if found is None else found


class OutputView(View):
    """The completed call as arcs see it: its envelope, and in the result what the envelope lacks."""

    def __init__(self, *, envelope: Mapping[str, object], result: object) -> None:
        self._envelope = envelope
        self._result = result
        self._data = DataView(result)

    def lookup(self, key: Key) -> object:
        if key == "data":
            return self._data
        if isinstance(key, str) and key in ENVELOPE_KEYS:
            return self._envelope[key]
        try:
            return look_into(self._result, key)
        except KeyError:
            return self._data.lookup(key)

    def whole(self) -> object:
        return {**self._envelope, "data": self._data.whole()}

    def passed(self) -> object:
        return {**self._envelope, "data": self._data.passed()}

    def iterated(self) -> object:
        gone_through = self._data.whole()
        return gone_through if isinstance(gone_through, list | tuple) else self.whole()


class HttpView(View):
    """`output.http` as arcs see it: the status is told with the event, headers are those of the result."""

    def __init__(self, *, status: int, result: object) -> None:
        self._status = status
        self._result = result

    def lookup(self, key: Key) -> object:
        if key == "status":
            return self._status
        if key == "headers":
            return look_into(self._result, "headers")
        raise KeyError(key)

    def whole(self) -> object:
        return {"status": self._status, "headers": whole_of(look_into(self._result, "headers"))}


ENVELOPE_KEYS = frozenset({"status", "error", "http", "pg", "py", "meta", "ref"})
"""What `output` has of its own besides `data`; any other key is one of the result."""


def index_of(key: Key) -> int | None:
    """The place in a list that a key means, from its end if it is negative."""
    if isinstance(key, int):
        return key
    return int(key) if key.isascii() and key.removeprefix("-").isdigit() and len(key) < 10 else None
