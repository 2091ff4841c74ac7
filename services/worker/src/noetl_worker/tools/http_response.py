"""What an http step results in: the response, parsed, and the kind of error that its status stands for."""

from __future__ import annotations

import json
import ssl

from noetl_core.canonical import JsonObject, JsonValue, normalize
from noetl_core.canonical.encoding import suits
from noetl_core.errors import NotCanonical

from noetl_worker.application.credential_names import without_credentials
from noetl_worker.application.known_secrets import HIDDEN, KnownSecrets
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.tools.call_failed import TOOL_CONFIG
from noetl_worker.tools.connection_errors import causes, connection_trouble
from noetl_worker.tools.http_address import HttpAddress
from noetl_worker.tools.http_clients import HttpReply, RedirectRefused
from noetl_worker.tools.http_transport import HttpLost, HttpNotSent, HttpUndecodable

_MAX_SHOWN_CHARACTERS = 300
_STATUS_KINDS = {
    401: ErrorKind.AUTH,
    403: ErrorKind.AUTH,
    404: ErrorKind.NOT_FOUND,
    429: ErrorKind.RATE_LIMIT,
}


def reply_outcome(reply: HttpReply, *, secrets: KnownSecrets, secret_params: frozenset[str], max_bytes: int) -> Outcome:
    """The result of a response; one that is no success is an error that keeps it."""
    parsed, url = parse_body(reply), shown_url(reply.url, secret_params)
    headers: JsonObject = {**reply.headers}
    if secrets:
        parsed, url = secrets.hide_in_data(parsed), str(secrets.hide_in_data(url))
        headers = {name: secrets.hide_in_data(value) for name, value in headers.items()}
    result: JsonObject = {
        "status_code": reply.status_code,
        "headers": headers,
        "url": url,
        "elapsed": round(reply.elapsed_seconds, 6),
        "data": parsed,
        "body": parsed,
    }
    facts: JsonObject = {"status": reply.status_code, "headers": headers}
    if not reply.is_complete:
        return Outcome.failed(
            kind=ErrorKind.STORAGE_QUOTA,
            code="RESPONSE_TOO_LARGE",
            message=f"the response has more than {max_bytes} bytes",
            status_code=reply.status_code,
            data={**result, "data": None, "body": None},
            http=facts,
        )
    if 200 <= reply.status_code < 300:
        return Outcome(data=result, http=facts)
    reason = f"HTTP {reply.status_code} {reply.reason}".strip()
    said = _in_short(parsed)
    return Outcome.failed(
        kind=status_kind(reply.status_code),
        code=f"HTTP_{reply.status_code}",
        message=f"{reason}: {said}" if said else reason,
        status_code=reply.status_code,
        data=result,
        http=facts,
    )


def status_kind(status_code: int) -> ErrorKind:
    """What a status that is no success means to policies."""
    if status_code >= 500:
        return ErrorKind.SERVER_ERROR
    return _STATUS_KINDS.get(status_code, ErrorKind.CLIENT_ERROR)


def transport_outcome(error: BaseException, *, timeout_seconds: float) -> Outcome:
    """The error of an exchange that brought no response."""
    if isinstance(error, TimeoutError):
        message = f"no complete response within {timeout_seconds:g} s"
        return Outcome.failed(kind=ErrorKind.TIMEOUT, code="TIMEOUT", message=message)
    if isinstance(error, RedirectRefused):
        return Outcome.failed(kind=ErrorKind.CLIENT_ERROR, code="HTTP_REDIRECT_REFUSED", message=str(error))
    if isinstance(error, HttpUndecodable):
        message = str(error) or "the response is not encoded as it says"
        return Outcome.failed(kind=ErrorKind.PARSE, code="HTTP_UNDECODABLE", message=message)
    if isinstance(error, HttpNotSent):
        message = f"the request cannot be written: {str(error) or 'its address or one of its headers is malformed'}"
        return Outcome.failed(kind=ErrorKind.SCHEMA, code=TOOL_CONFIG, message=message)
    if isinstance(error, HttpLost):
        trouble = connection_trouble(error)
        is_tls = any(isinstance(cause, ssl.SSLError) for cause in causes(error))
        code = trouble.code if is_tls else "CONN_LOST"
        message = without_credentials(str(error)) or "the connection was lost"
        return Outcome.failed(kind=ErrorKind.CONNECTION, code=code, message=message, retryable=not is_tls)
    trouble = connection_trouble(error)
    return Outcome.failed(
        kind=ErrorKind.CONNECTION,
        code=trouble.code,
        message=without_credentials(trouble.message),
        retryable=trouble.retryable,
    )


def parse_body(reply: HttpReply) -> JsonValue:
    """The JSON of a body, else its text."""
    try:
        text = reply.content.decode(reply.encoding, errors="replace")
    except (LookupError, UnicodeError):  # a charset that Python does not know, or that is none for texts
        text = reply.content.decode(errors="replace")
    says_json = "json" in reply.headers.get("content-type", "").lower()
    if says_json or text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
            # Only escapes, and codecs that few have heard of, can bring in what is no text of JSON.
            is_text = "\\u" not in text and (text.isascii() or reply.encoding.lower() == "utf-8")
            return value if is_text and isinstance(value, dict | list) and suits(value) else normalize(value)
        except (ValueError, RecursionError, NotCanonical):
            pass  # it only looks like JSON, or has values that JSON cannot carry
    return text.encode(errors="replace").decode()


def shown_url(url: HttpAddress, secret_params: frozenset[str]) -> str:
    """The address without what identifies the caller."""
    return url.with_hidden(secret_params, HIDDEN).without_caller()


def _in_short(parsed: JsonValue) -> str:
    if isinstance(parsed, dict):
        for key in ("message", "detail", "error", "title"):
            said = parsed.get(key)
            if isinstance(said, str) and said:
                return said[:_MAX_SHOWN_CHARACTERS]
        return ""
    return parsed.strip()[:_MAX_SHOWN_CHARACTERS] if isinstance(parsed, str) and "<" not in parsed else ""
