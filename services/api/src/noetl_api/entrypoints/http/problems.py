"""Every error over HTTP is problem+json: ours, those of validation, and those of the framework."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from noetl_contracts.problem_json import MEDIA_TYPE, problem_json
from noetl_contracts.status import ERROR_DOMAIN
from noetl_core.errors import InvalidInput, NotAuthenticated
from noetl_servicekit.http_problems import PROBLEM_HANDLERS, problem_response
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

CHALLENGE = {"WWW-Authenticate": "Bearer"}
CODES = {404: "http.not_found", 405: "http.method_not_allowed", 413: "http.too_large"}
"""What the framework refuses by itself; its own phrases differ between versions of Python."""


def install(app: FastAPI) -> None:
    """Take over all error handling of an application."""
    for kind, handler in PROBLEM_HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(NotAuthenticated, _challenge)
    app.add_exception_handler(RequestValidationError, _validation_problem)
    app.add_exception_handler(HTTPException, _framework_problem)


async def _challenge(request: Request, exc: Exception) -> Response:
    response = await problem_response(request, exc)
    response.headers.update(CHALLENGE)
    return response


async def _validation_problem(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)  # noqa: S101 - that is what it is installed for
    problems = [
        {
            "code": "request.invalid_field",
            "message": str(error["msg"]),
            "path": ".".join(str(step) for step in error["loc"]),
        }
        for error in exc.errors()
    ]
    message = "; ".join(f"{problem['path']}: {problem['message']}" for problem in problems)
    _, body = problem_json(InvalidInput(message), instance=request.url.path)
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return JSONResponse({**body, "status": status, "problems": problems}, status_code=status, media_type=MEDIA_TYPE)


async def _framework_problem(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)  # noqa: S101 - that is what it is installed for
    code = CODES.get(exc.status_code, "http.refused")
    body = {
        "type": f"https://{ERROR_DOMAIN}/problems/{code}",
        "title": code.removeprefix("http.").replace("_", " ").capitalize(),
        "status": exc.status_code,
        "detail": f"{request.method} {request.url.path}: {exc.detail}",
        "code": code,
        "retryable": False,
        "instance": request.url.path,
    }
    return JSONResponse(body, status_code=exc.status_code, headers=exc.headers, media_type=MEDIA_TYPE)
