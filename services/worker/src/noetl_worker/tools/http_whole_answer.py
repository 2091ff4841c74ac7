"""Answers that come in one piece and say nothing unusual: read at once. Whatever else comes is for the client. Pure.

What is not sure to mean one thing only is not read here: another length, an encoding, a header twice, a line that is
not written as it should be. The client knows what becomes of those.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from aiohttp.helpers import parse_content_type

LONGEST_HEAD: Final = 8192
END_OF_HEAD: Final = b"\r\n\r\n"

_FIRST_LINE = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) ((?:[!-~](?:[ -~]*[!-~])?)?)")
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[!-~](?:[\t -~]*[!-~])?)?)")
_LENGTH = re.compile(r"[0-9]{1,15}")
_WITHOUT_BODY = frozenset({204, 205, 304})
_UNUSUAL = frozenset({"transfer-encoding", "content-encoding", "upgrade", "trailer", "te", "proxy-connection"})
"""Where a body ends, what it is made of, or what comes after it, is not what its length says."""


class AnswerHead(NamedTuple):
    """What an answer says before its body."""

    status_code: int
    reason: str
    headers: dict[str, str]
    """By names in lower case."""
    encoding: str
    length: int
    """Of the body."""


class WholeAnswer(NamedTuple):
    """All of an answer, after which its connection can be used again."""

    head: AnswerHead
    content: bytes


def answer_head(written: bytes) -> AnswerHead | None:
    """What stands before the empty line, if all of it is usual."""
    first, *lines = written.split(b"\r\n")
    begin = _FIRST_LINE.fullmatch(first)
    if begin is None or len(written) > LONGEST_HEAD:
        return None
    headers: dict[str, str] = {}
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            return None
        name = found[1].decode().lower()
        if name in headers or name in _UNUSUAL:
            return None
        headers[name] = found[2].decode()
    status_code, length = int(begin[1]), headers.get("content-length", "")
    is_kept = headers.get("connection", "keep-alive").lower() == "keep-alive"
    if not is_kept or status_code in _WITHOUT_BODY or _LENGTH.fullmatch(length) is None:
        return None
    encoding = charset(headers["content-type"]) if "content-type" in headers else "utf-8"
    return AnswerHead(status_code, begin[2].decode(), headers, encoding, int(length))


@lru_cache(maxsize=1024)
def charset(content_type: str) -> str:
    """In which a body is written that says so of itself; what cannot be made sense of says nothing."""
    try:
        declared: object = parse_content_type(content_type)[1].get("charset")
    except Exception:
        return "utf-8"
    return declared if isinstance(declared, str) and declared else "utf-8"
