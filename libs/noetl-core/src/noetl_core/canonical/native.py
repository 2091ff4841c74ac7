"""The fast writer of JSON, where there is one: exact for what `encoding.suits` lets through, as tests prove."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from json import JSONEncoder
from typing import Any, Final

_ENCODER: Final = JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)


class PlainWriter:
    """What an interpreter has by itself."""

    class Spelt:
        """Bytes that stand for themselves."""

        def __init__(self, contents: bytes) -> None:
            self.contents = contents

    def write(self, value: object) -> bytes:
        try:
            return _ENCODER.encode(value).encode()
        except UnicodeEncodeError as exc:
            raise TypeError("a lone surrogate") from exc

    def join(self, parts: Mapping[str, Any]) -> bytes:
        spelt = (b"%b:%b" % (self.write(name), self._part(value)) for name, value in parts.items())
        return b"{%b}" % b",".join(spelt)

    def read(self, data: bytes) -> object:
        raise ValueError("there is no fast reader")

    def _part(self, value: object) -> bytes:
        return value.contents if isinstance(value, self.Spelt) else self.write(value)


def _native() -> tuple[Callable[[object], bytes], Callable[[Mapping[str, Any]], bytes], Callable[[bytes], object], Any]:
    try:
        orjson: Any = importlib.import_module("orjson")
    except ImportError:  # an interpreter that it is not made for
        plain = PlainWriter()
        return plain.write, plain.join, plain.read, plain.Spelt
    dumps, in_order = orjson.dumps, orjson.OPT_SORT_KEYS

    def write(value: object) -> bytes:
        written: bytes = dumps(value, None, in_order)
        return written

    return write, dumps, orjson.loads, orjson.Fragment


write, join, read, spelt = _native()
"""`write` a container that suits; raises TypeError for lone surrogates, and for keys that only look like text.

`join` parts whose names are in order already: texts, integers and what is `spelt`. `read` leniently, for those who
compare what they get with the bytes; raises ValueError.
"""
