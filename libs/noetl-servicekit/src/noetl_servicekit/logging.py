"""Structured logs on stderr: a constant event name, fields and the trace; libraries speak through it too."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, TextIO, cast

from noetl_contracts.lean_imports import without

from noetl_servicekit.callers import call_fields
from noetl_servicekit.redaction import redact
from noetl_servicekit.tracing import current_span

# It would load that for tracebacks in colours, which no service writes: a sixth of a worker's start.
with without("rich"):
    import structlog
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

FORMATS: Final = ("json", "console")
LEVELS: Final = ("debug", "info", "warning", "error")
LIBRARY_EVENT: Final = "library.message"

_SHOW_THE_WIRE: Final = (
    *(
        "httpx",
        "httpcore",
        "hpack",
        "h2",
        "urllib3",
        "aiohttp.client",
        "boto3",
        "botocore",
        "aiobotocore",
        "s3transfer",
    ),
    *("s3fs", "gcsfs", "google.auth", "adlfs", "azure", "msal", "fsspec"),
)
"""Libraries whose debug lines repeat addresses and headers, and with them secrets of users, that only a call knows."""


def get_logger() -> FilteringBoundLogger:
    """A logger for a module; it takes its configuration when it is used, not when it is imported."""
    return cast(FilteringBoundLogger, structlog.get_logger())


def configure_logging(
    *,
    service: str,
    instance: str,
    level: str = "info",
    log_format: str = "json",
    stream: TextIO | None = None,
) -> None:
    """Once a process: everything logged from here on is one line on stderr."""
    output = stream if stream is not None else sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _Identity(service=service, instance=instance),
        _add_call,
        _add_trace,
    ]
    rendering = _rendering(log_format, colors=output.isatty())
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=output),
        cache_logger_on_first_use=False,  # so that a test can capture what module-level loggers say
    )
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_name_library_event, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # What libraries say at info level is about themselves; who debugs wants to hear it.
    own_level = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(own_level if level == "debug" else max(own_level, logging.WARNING))
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "grpc", "nats", "asyncio"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
    for name in _SHOW_THE_WIRE:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def _rendering(log_format: str, *, colors: bool) -> list[Processor]:
    # Plain tracebacks in both: a rich one shows local variables, and with them secrets.
    renderer: Processor = structlog.processors.JSONRenderer()
    if log_format == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    return [structlog.processors.format_exc_info, _redact, renderer]


class _Identity:
    """Says in every line which process speaks."""

    def __init__(self, *, service: str, instance: str) -> None:
        self._service = service
        self._instance = instance

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        event["service"] = self._service
        event["instance"] = self._instance
        return event


def _add_call(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """For whom, where a call is being answered: put together for those that log, and not for every call."""
    for name, value in call_fields().items():
        event.setdefault(name, value)
    return event


def _add_trace(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    context = current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


def _redact(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        event[name] = redact(name, value)
    return event


def _name_library_event(
    logger: logging.Logger | None, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A library's text is a field, so that event names stay a closed set."""
    record = event.get("_record")
    event["logger"] = record.name if isinstance(record, logging.LogRecord) else "unknown"
    event["message"] = event["event"]
    event["event"] = LIBRARY_EVENT
    return event
