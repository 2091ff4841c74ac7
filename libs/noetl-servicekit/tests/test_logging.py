import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from noetl_servicekit.logging import configure_logging, get_logger
from noetl_servicekit.redaction import redact
from noetl_servicekit.tracing import span
from structlog.contextvars import bound_contextvars

logger = get_logger()


@pytest.fixture(autouse=True)
def _untouched_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    loud = {name: logging.getLogger(name).level for name in ("httpx", "httpcore")}
    yield
    for name, before in loud.items():
        logging.getLogger(name).setLevel(before)
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def configured(level: str = "info", log_format: str = "json") -> io.StringIO:
    stream = io.StringIO()
    configure_logging(service="planner", instance="planner-0", level=level, log_format=log_format, stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_a_constant_event_its_fields_and_who_speaks() -> None:
    stream = configured()
    with bound_contextvars(execution_id="42"):
        logger.info("execution.turn", messages=3)

    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "event": "execution.turn",
        "level": "info",
        "messages": 3,
        "execution_id": "42",
        "service": "planner",
        "instance": "planner-0",
    }


def test_a_line_inside_a_span_names_its_trace() -> None:
    stream = configured()
    with span("execution.turn") as current:
        logger.info("execution.turn")

    (line,) = lines(stream)
    assert line["trace_id"] == f"{current.get_span_context().trace_id:032x}"
    assert line["span_id"] == f"{current.get_span_context().span_id:016x}"


def test_lines_below_the_level_are_left_out() -> None:
    stream = configured("warning")
    logger.info("execution.turn")
    logger.warning("loop.restarting")

    assert [line["event"] for line in lines(stream)] == ["loop.restarting"]


def test_libraries_that_repeat_what_is_sent_stay_silent_even_for_who_debugs() -> None:
    stream = configured("debug")
    logging.getLogger("httpx").info("HTTP Request: GET https://example.com/?key=a-secret")
    logging.getLogger("httpcore.http11").debug("receive_response_headers a-secret")
    logging.getLogger("asyncio").debug("Using selector: EpollSelector")

    assert [line["logger"] for line in lines(stream)] == ["asyncio"]


def test_an_exception_is_one_line_with_its_stack_and_without_local_variables() -> None:
    stream = configured()
    try:
        hidden = "hunter" + str(2)
        raise ValueError("odd", len(hidden))
    except ValueError:
        logger.exception("rpc.failed")

    (line,) = lines(stream)
    assert line["level"] == "error"
    assert "Traceback" in line["exception"]
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize("name", ["uvicorn.error", "grpc._cython.cygrpc", "nats.aio.client", "asyncio"])
def test_libraries_speak_through_the_same_channel(name: str) -> None:
    stream = configured()
    logging.getLogger(name).error("lost %s", "connection")
    logging.getLogger(name).info("of no interest")

    (line,) = lines(stream)
    assert line["event"] == "library.message"
    assert (line["logger"], line["message"]) == (name, "lost connection")
    assert (line["level"], line["service"]) == ("error", "planner")


def test_who_debugs_hears_the_libraries_too() -> None:
    stream = configured("debug")
    logging.getLogger("uvicorn.error").debug("details")

    assert [line["message"] for line in lines(stream)] == ["details"]


def test_a_librarys_exception_keeps_its_stack() -> None:
    stream = configured()
    try:
        raise ValueError("odd")
    except ValueError:
        logging.getLogger("asyncio").exception("task failed")

    assert "ValueError: odd" in lines(stream)[0]["exception"]


def test_warnings_become_lines() -> None:
    stream = configured()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    assert lines(stream)[0]["logger"] == "py.warnings"


def test_credentials_are_not_written() -> None:
    stream = configured()
    logger.info(
        "service.starting",
        token="t0p",
        db_password="t0p",
        Authorization="t0p",
        nested={"api_key": "t0p", "list": [{"client_secret": "t0p"}]},
        url="postgresql://noetl:t0p@localhost/noetl",
        header="Bearer t0p-s3cret",
    )
    try:
        raise ConnectionError("cannot reach postgres://noetl:t0p@localhost/noetl")
    except ConnectionError:
        logger.exception("service.failed")
    logging.getLogger("nats").error("cannot reach nats://user:t0p@localhost")

    assert "t0p" not in stream.getvalue()
    assert "postgresql://noetl:[redacted]@localhost/noetl" in stream.getvalue()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", 3),
        ("idempotency_key", "decision/7/0"),
        ("credential_name", "warehouse"),
        ("authorization", None),
        ("secret", False),
        ("url", "http://localhost:8080/path@2"),
    ],
)
def test_what_only_looks_like_a_credential_is_written(name: str, value: object) -> None:
    assert redact(name, value) == value


def test_the_console_format_is_for_people() -> None:
    stream = configured(log_format="console")
    try:
        hidden = "hunter" + str(2)
        raise ValueError("odd postgres://noetl:t0p@localhost/", len(hidden))
    except ValueError:
        logger.exception("rpc.failed", password="t0p")

    text = stream.getvalue()
    assert "rpc.failed" in text
    assert "ValueError" in text
    assert "hunter2" not in text
    assert "t0p" not in text
