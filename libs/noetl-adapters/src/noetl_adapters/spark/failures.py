"""What a user is told when a query or their PySpark code failed: their error and its place, no Java stack."""

from __future__ import annotations

import re
import traceback
from typing import Final

from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE
from noetl_core.ports.spark import SparkFailure

SOURCE_NAME: Final = "<spark code>"
MAX_MESSAGE_CHARACTERS = 4096
_JAVA_STACK = re.compile(r"\n(?:\s+at [\w.$]+\(|Caused by: |\t\.\.\. \d+ more|JVM stacktrace:|Driver stacktrace:)")
_RAISED = re.compile(r"^([\w.]+(?:Error|Exception|Warning|Exit|Interrupt|[A-Z]\w+))(?:: (.*))?$", re.MULTILINE)
_USER_LINE = re.compile(rf'File "{re.escape(SOURCE_NAME)}", line (\d+), in (\S+)')
_PARSE = frozenset({"ParseException"})
_SCHEMA = frozenset({"AnalysisException", "PySparkTypeError", "PySparkValueError", "PySparkAttributeError"})
_OUR_STORE = re.compile(r"noetl_core\.errors\.(NotFound|Unavailable|Corrupt|Overloaded): (.*)")


def describe(error: BaseException, source: str | None) -> SparkFailure:
    """The failure of a call; `source` is the code that ran, if it was code."""
    message = _said(error)
    stored = _OUR_STORE.search(message)
    if stored is not None:
        told = f"a payload could not be read or stored: {stored[2]}"
        return SparkFailure(kind="storage_access", code=REFERENCE_NOT_AVAILABLE, message=told, retryable=True)
    name = type(error).__name__
    if type(error).__module__.startswith("py4j"):
        return _from_java(error, message)
    if type(error).__module__.startswith("pyspark"):
        return _from_spark(error, name, message, source)
    kind = "parse" if isinstance(error, SyntaxError) else "transform"
    text = error.msg if isinstance(error, SyntaxError) else message or name
    where = _place(error)
    return SparkFailure(kind=kind, code=f"PY_{name}", message=_cut(text + where), lines=_own_lines(error, source))


def session_lost(reason: str) -> SparkFailure:
    """The session ended under a call; the next one gets a new session."""
    return SparkFailure(kind="connection", code="SPARK_SESSION_LOST", message=reason, retryable=True)


def _from_spark(error: BaseException, name: str, message: str, source: str | None) -> SparkFailure:
    if name == "PythonException":
        return _from_task(message, source)
    condition = getattr(error, "getCondition", lambda: None)()
    kind = "parse" if name in _PARSE else "schema" if name in _SCHEMA else "transform"
    if condition in {"TABLE_OR_VIEW_NOT_FOUND", "PATH_NOT_FOUND"}:
        kind = "not_found"
    code = f"SPARK_{condition or name}"
    return SparkFailure(kind=kind, code=code[:120], message=_cut(message), lines=_own_lines(error, source))


def _from_java(error: BaseException, message: str) -> SparkFailure:
    name = type(error).__name__
    if name in {"Py4JNetworkError", "Py4JAuthenticationException"} or isinstance(error, ConnectionError):
        return session_lost("the JVM of the session is gone")
    if "cancelled" in message:
        return SparkFailure(kind="timeout", code="SPARK_CANCELLED", message="the Spark job was cancelled")
    java = re.search(r"([\w.]+(?:Exception|Error)): (.*)", message)
    if java is None:
        return SparkFailure(kind="unknown", code=f"SPARK_{name}", message=_cut(message))
    return SparkFailure(
        kind="transform", code=f"SPARK_{java[1].rsplit('.', 1)[-1]}"[:120], message=_cut(java[2] or java[1])
    )


def _from_task(message: str, source: str | None) -> SparkFailure:
    """Python that failed inside of a task: its last line says what, the lines of the user's code say where."""
    places = _USER_LINE.findall(message)
    raised = _RAISED.findall(message)
    if not raised:
        return SparkFailure(kind="transform", code="SPARK_PythonException", message=_cut(message))
    name, said = raised[-1]
    where = f" (line {places[-1][0]})" if places else ""
    lines = "\n".join(_line(int(number), function, (source or "").splitlines()) for number, function in places)
    return SparkFailure(
        kind="transform",
        code=f"PY_{name.rsplit('.', 1)[-1]}"[:120],
        message=_cut(f"{said or name}{where}"),
        lines=lines,
    )


def _said(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = type(error).__name__
    return _JAVA_STACK.split(text, maxsplit=1)[0].strip()


def _place(error: BaseException) -> str:
    """The line of the user's code that did it."""
    if isinstance(error, SyntaxError) and error.filename == SOURCE_NAME:
        return f" (line {error.lineno})"
    own = [n for frame, n in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == SOURCE_NAME]
    return f" (line {own[-1]})" if own else ""


def _own_lines(error: BaseException, source: str | None) -> str:
    lines = (source or "").splitlines()
    return "\n".join(
        _line(number, frame.f_code.co_name, lines)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == SOURCE_NAME
    )


def _line(number: int, function: str, source: list[str]) -> str:
    text = source[number - 1].strip()[:200] if 0 < number <= len(source) else ""
    return f"line {number}, in {function}: {text}".rstrip(": ")


def _cut(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()[:MAX_MESSAGE_CHARACTERS]
