"""The fast writer of JSON, where there is one: exact for what `encoding.suits` lets through, as tests prove."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from json import JSONEncoder
from typing import Any, Final

_ENCODER: Final = JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)


class PlainWriter:
    """What an interpreter has by itself."""

    def write(self, value: object) -> bytes:
        try:
            return _ENCODER.encode(value).encode()
        except UnicodeEncodeError as exc:
            raise TypeError("a lone surrogate") from exc

    def read(self, data: bytes) -> object:
        raise ValueError("there is no fast reader")


def _native() -> tuple[Callable[[object], bytes], Callable[[bytes], object], Callable[[str], bytes]]:
    try:
        orjson: Any = importlib.import_module("orjson")
    except ImportError:  # an interpreter that it is not made for
        plain = PlainWriter()
        return plain.write, plain.read, plain.write
    dumps, options = orjson.dumps, orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER

    def write(value: object) -> bytes:
        written: bytes = dumps(value, None, options)
        return written

    return write, orjson.loads, dumps


write, read, text = _native()
"""`write` a container that suits; raises TypeError for lone surrogates, for keys that only look like text, and for
integers beyond 2^53-1.

`read` leniently, for those who compare what they get with the bytes; raises ValueError. `text` spells one text, and
raises TypeError for lone surrogates.
"""
