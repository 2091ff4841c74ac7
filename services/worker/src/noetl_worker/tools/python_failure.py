"""What a user is told when their Python raised: a kind, a code, a message, the lines of their own code."""

import json
import traceback

from noetl_worker.tools.python_protocol import Failure
from noetl_worker.tools.python_user_code import SOURCE_NAME

MAX_MESSAGE_CHARACTERS = 4096
MAX_FRAMES = 10
MAX_LINE_CHARACTERS = 200

_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "timeout"),
    (ConnectionError, "connection"),
    (json.JSONDecodeError, "parse"),
    (UnicodeDecodeError, "parse"),
    (SyntaxError, "parse"),
)
_RETRYABLE_KINDS = frozenset({"timeout", "connection"})


def describe_exception(error: BaseException, source: str) -> Failure:
    """Everything that could raise again, since `__str__` and class names are the user's, is fenced in."""
    kind = next((name for family, name in _KINDS if isinstance(error, family)), "transform")
    return Failure(
        kind=kind,
        code=_encodable(f"PY_{type(error).__name__}"[:MAX_LINE_CHARACTERS]),
        retryable=kind in _RETRYABLE_KINDS,
        message=_encodable(_message(error)[:MAX_MESSAGE_CHARACTERS]),
        traceback=_encodable(_own_lines(error, source.splitlines())),
    )


def _encodable(text: str) -> str:
    """Text of the user's may hold lone surrogates, which no JSON of ours carries."""
    return text.encode(errors="backslashreplace").decode()


def _message(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.msg} (line {error.lineno})" if error.lineno else error.msg
    try:
        return str(error) or type(error).__name__
    except BaseException:  # noqa: BLE001, RUF100 - a broken __str__ must not hide the failure
        return type(error).__name__


def _own_lines(error: BaseException, source: list[str]) -> str:
    """The path through the user's code, outermost first; library frames and values are left out."""
    lines = [
        (number, frame.f_code.co_name)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == SOURCE_NAME
    ]
    if isinstance(error, SyntaxError) and error.filename == SOURCE_NAME and error.lineno:
        lines.append((error.lineno, "<module>"))
    shown = [_line(number, function, source) for number, function in lines[-MAX_FRAMES:]]
    if len(lines) > MAX_FRAMES:
        shown.insert(0, f"… {len(lines) - MAX_FRAMES} more")
    return "\n".join(shown)


def _line(number: int, function: str, source: list[str]) -> str:
    text = source[number - 1].strip() if 0 < number <= len(source) else ""
    where = "" if function in ("<module>", "__step__") else f", in {function}"
    return f"line {number}{where}: {text[:MAX_LINE_CHARACTERS]}"
