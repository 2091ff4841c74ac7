"""Errors of a Starlette or FastAPI application as problem+json, for its `exception_handlers`."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from noetl_contracts.problem_json import MEDIA_TYPE, problem_json, retry_after
from noetl_core.errors import NoetlError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from noetl_servicekit.logging import get_logger

logger = get_logger()


async def problem_response(request: Request, exc: Exception) -> Response:
    """What an exception is to an HTTP client; one that is not ours is logged, and not shown."""
    if not isinstance(exc, NoetlError):
        logger.error(
            "http.failed",
            method=request.method,
            path=request.url.path,
            error=type(exc).__qualname__,
            exc_info=exc,
        )
    status, body = problem_json(exc, instance=request.url.path)
    return JSONResponse(body, status_code=status, headers=retry_after(exc), media_type=MEDIA_TYPE)


# Any: Starlette types the handlers of an application by each exception that they take.
PROBLEM_HANDLERS: Final[Mapping[Any, Callable[[Request, Exception], Any]]] = {
    NoetlError: problem_response,
    Exception: problem_response,
}
