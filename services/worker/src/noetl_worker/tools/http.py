"""The http tool: one request, whose response is the result whatever its status."""

from __future__ import annotations

import asyncio

from noetl_worker.application.credentials import Credentials
from noetl_worker.application.known_secrets import KnownSecrets
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import CallFailed, without_secrets
from noetl_worker.tools.http_auth import HttpAuth, http_auth
from noetl_worker.tools.http_clients import HttpClients, HttpOptions, HttpReply, RedirectRefused
from noetl_worker.tools.http_request import HttpRequest, build_request
from noetl_worker.tools.http_response import reply_outcome, transport_outcome
from noetl_worker.tools.http_transport import HttpLost, HttpNotSent, HttpUndecodable, HttpUnreachable
from noetl_worker.tools.tool_config import ToolConfig

DEFAULT_TIMEOUT_SECONDS = 30.0

_PARSE_IN_THREAD_BYTES = 256 * 1024
_NOBODY = HttpAuth()
_LEAST_SECONDS = 0.001
_OPTIONS = ("timeout_seconds", "verify_ssl", "follow_redirects")

TRANSPORT_ERRORS = (HttpNotSent, HttpUnreachable, HttpLost, HttpUndecodable, RedirectRefused, TimeoutError, OSError)
"""What an exchange may raise."""


class HttpTool:
    """Calls HTTP servers."""

    def __init__(
        self,
        clients: HttpClients,
        credentials: Credentials,
        *,
        default_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self._clients = clients
        self._credentials = credentials
        self._default_timeout_seconds = default_timeout_seconds

    async def run(self, call: ToolCall) -> Outcome:
        """The response, parsed; a status that is no success, or no response at all, is an error."""
        config = ToolConfig(call)
        try:
            request, options = await prepare(
                config, self._credentials, default_timeout_seconds=self._default_timeout_seconds
            )
            try:
                reply = await self._clients.exchange(request, options, secrets=config.secrets)
            except TRANSPORT_ERRORS as exc:
                outcome = transport_outcome(exc, timeout_seconds=options.timeout_seconds)
            else:
                if len(reply.content) <= _PARSE_IN_THREAD_BYTES:
                    outcome = self._understood(reply, request, config.secrets)
                else:
                    outcome = await asyncio.to_thread(self._understood, reply, request, config.secrets)
        except CallFailed as exc:
            outcome = exc.outcome
        return without_secrets(outcome, config.secrets)

    def _understood(self, reply: HttpReply, request: HttpRequest, secrets: KnownSecrets) -> Outcome:
        return reply_outcome(
            reply,
            secrets=secrets,
            secret_params=request.secret_params,
            max_bytes=self._clients.limits.max_response_bytes,
        )


async def _auth_of(config: ToolConfig, credentials: Credentials) -> HttpAuth:
    auth = _NOBODY
    for credential in (await config.auth(credentials)).all:
        one = http_auth(credential)
        auth = HttpAuth(headers={**auth.headers, **one.headers}, params={**auth.params, **one.params})
    if auth.headers:
        config.secrets.add(*auth.headers.values(), *(value.partition(" ")[2] for value in auth.headers.values()))
    return auth


async def prepare(
    config: ToolConfig, credentials: Credentials, *, default_timeout_seconds: float
) -> tuple[HttpRequest, HttpOptions]:
    """What to send, and within which limits."""
    auth = await _auth_of(config, credentials) if config.names_credentials else _NOBODY
    request = build_request(config, auth)
    of_step = config.timeout_seconds(default=default_timeout_seconds)
    if of_step >= _LEAST_SECONDS and config.call.config.keys().isdisjoint(_OPTIONS):
        return request, HttpOptions(timeout_seconds=of_step)
    own = config.number("timeout_seconds", default=of_step, minimum=_LEAST_SECONDS)
    timeout_seconds = own if config.call.timeout_seconds is None else min(own, of_step)
    return request, HttpOptions(
        timeout_seconds=timeout_seconds,
        verify_ssl=config.boolean("verify_ssl", default=True),
        follow_redirects=config.boolean("follow_redirects", default=False),
    )
