"""What an unquoted YAML word means: the core schema of YAML 1.2, so that `on`, `yes` and dates stay text."""

import math
import re
from collections.abc import Callable

from noetl_core.canonical import MAX_SAFE_INTEGER, JsonValue

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
# Digits with a leading zero stay text: YAML 1.1 reads them as octal, 1.2 as decimal, people as a postcode.
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_LONGEST_INTEGER = 40

_TAG = "tag:yaml.org,2002:"


class NotAValue(ValueError):
    """A word that claims to be something which it is not, or which JSON cannot carry."""


def plain_scalar(text: str) -> JsonValue:
    """The value of a word without quotes and without a tag."""
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] not in "-+.0123456789":
        return text
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        return _float(text)
    if _NOT_FINITE.fullmatch(text):
        raise NotAValue(f"{text} is not a number that JSON can carry")
    return text


def tagged_scalar(tag: str, text: str) -> JsonValue:
    """The value of a word whose author says what it is; only tags that stand for plain data are known."""
    read = _TAGGED.get(tag.removeprefix(_TAG)) if tag.startswith(_TAG) else None
    if read is None:
        raise NotAValue(f"the tag {tag!r} is not allowed")
    return read(text)


def is_collection_tag(tag: str, kind: str) -> bool:
    """Whether a tag on a list (`seq`) or map (`map`) says only what it is anyway."""
    return tag == _TAG + kind


def _integer(text: str) -> int:
    if len(text) <= _LONGEST_INTEGER:
        number = int(text, 0)
        if abs(number) <= MAX_SAFE_INTEGER:
            return number
    raise NotAValue("an integer beyond 2^53-1 does not survive as a number; quote it to keep its digits")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise NotAValue("the number is too large; quote it if it is not meant as a number")
    return number


def _only(kind: str, types: tuple[type, ...]) -> Callable[[str], JsonValue]:
    def read(text: str) -> JsonValue:
        value = plain_scalar(text)
        if not isinstance(value, types):
            raise NotAValue(f"{text[:40]!r} is not {kind}")
        return value

    return read


_TAGGED: dict[str, Callable[[str], JsonValue]] = {
    "str": str,
    "timestamp": str,
    "int": _only("an integer", (int,)),
    "float": _only("a number", (int, float)),
    "bool": _only("a boolean", (bool,)),
    "null": _only("null", (type(None),)),
}
