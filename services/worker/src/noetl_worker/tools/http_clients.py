"""The worker's HTTP connections: pooled, without cookies, every exchange bounded in time, size and redirects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Self

from multidict import CIMultiDict

from noetl_worker.application.frame_limits import CallLimit
from noetl_worker.application.known_secrets import KnownSecrets
from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import failed
from noetl_worker.tools.http_address import HttpAddress
from noetl_worker.tools.http_connections import QuietConnections
from noetl_worker.tools.http_request import HttpRequest
from noetl_worker.tools.http_transport import HttpNotSent, HttpResponse, Proxies, Transport, WholeResponse, tls_context

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_SAME_METHOD: Final = frozenset({307, 308})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one worker and one exchange may use."""

    max_connections: int = 100
    idle_seconds: float = 30.0
    max_response_bytes: int = 64 * 1024 * 1024
    max_redirects: int = 10
    trust_environment: bool = True
    """Whether HTTPS_PROXY and SSL_CERT_FILE of the worker's environment count."""


class HttpOptions(NamedTuple):
    """What a step says about its exchange."""

    timeout_seconds: float
    verify_ssl: bool = True
    follow_redirects: bool = False


class HttpReply(NamedTuple):
    """A response with its body, as far as that was read."""

    status_code: int
    reason: str
    headers: dict[str, str]
    encoding: str
    url: HttpAddress
    content: bytes
    is_complete: bool
    """False if the body is larger than allowed; the rest was not read."""
    elapsed_seconds: float


class RedirectRefused(Exception):
    """Following would have told another server a secret, or never ended."""


class HttpClients:
    """One client that checks certificates and one that does not, shared by all calls."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self.limits = limits or HttpLimits()
        self._transports: dict[bool, Transport] = {}
        self._proxies = Proxies.of_environment() if self.limits.trust_environment else Proxies(by_scheme={})
        self._making = asyncio.Lock()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Clients are made when they are first needed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        self._is_closed = True
        async with self._making:
            for transport in self._transports.values():
                await transport.close()

    async def exchange(self, request: HttpRequest, options: HttpOptions, *, secrets: KnownSecrets) -> HttpReply:
        """The reply; raises what `TRANSPORT_ERRORS` of the http tool lists, TimeoutError for it as a whole."""
        started = time.monotonic()
        transport = self._transports.get(options.verify_ssl)
        if transport is None or self._is_closed:
            transport = await self._transport(options)
        with CallLimit(options.timeout_seconds):
            if options.follow_redirects:
                response = await self._answer(transport, request, secrets)
            else:
                response = await transport.send(request)
            most = self.limits.max_response_bytes
            if isinstance(response, WholeResponse):  # as most are
                (head, content), address = response
                is_whole, seconds = len(content) <= most, time.monotonic() - started
                said = head.status_code, head.reason, head.headers, head.encoding
                return HttpReply(*said, address, content if is_whole else content[:most], is_whole, seconds)
            try:
                content, is_complete = await response.whole(most)
                return reply_of(response, content, is_complete=is_complete, elapsed_seconds=time.monotonic() - started)
            finally:
                response.close()

    @asynccontextmanager
    async def stream(
        self, request: HttpRequest, options: HttpOptions, *, secrets: KnownSecrets
    ) -> AsyncIterator[HttpResponse]:
        """As `exchange`, for who reads the body piece by piece; the time counts until that is done."""
        transport = await self._transport(options)
        with CallLimit(options.timeout_seconds):
            if options.follow_redirects:
                response = await self._answer(transport, request, secrets)
            else:
                response = await transport.send(request)
            try:
                yield response
            finally:
                response.close()

    async def _answer(self, transport: Transport, request: HttpRequest, secrets: KnownSecrets) -> HttpResponse:
        """The response, after redirects."""
        for _ in range(self.limits.max_redirects + 1):
            response = await transport.send(request)
            try:
                following = _following(request, response, secrets)
            except BaseException:
                response.close()
                raise
            if following is None:
                return response
            response.close()
            request = following
        raise RedirectRefused(f"the server redirected more than {self.limits.max_redirects} times")

    async def _transport(self, options: HttpOptions) -> Transport:
        transport = self._transports.get(options.verify_ssl) or await self._make(verify_ssl=options.verify_ssl)
        if self._is_closed:
            raise failed(ErrorKind.CONNECTION, "WORKER_STOPPING", "the worker is stopping")
        return transport

    async def _make(self, *, verify_ssl: bool) -> Transport:
        async with self._making:
            if self._is_closed:
                raise failed(ErrorKind.CONNECTION, "WORKER_STOPPING", "the worker is stopping")
            if verify_ssl not in self._transports:
                # Certificates are read from disk, which takes too long for the event loop.
                context = await asyncio.to_thread(
                    tls_context, verify=verify_ssl, trust_environment=self.limits.trust_environment
                )
                connections = QuietConnections(
                    context=context, limit=self.limits.max_connections, idle_seconds=self.limits.idle_seconds
                )
                self._transports[verify_ssl] = Transport.of(connections, self._proxies)
            return self._transports[verify_ssl]


def reply_of(response: HttpResponse, content: bytes, *, is_complete: bool, elapsed_seconds: float) -> HttpReply:
    """A response, with what was read of its body."""
    return HttpReply(
        response.status_code,
        response.reason,
        response.headers(),
        response.encoding,
        response.address,
        content,
        is_complete,
        elapsed_seconds,
    )


def _following(request: HttpRequest, response: HttpResponse, secrets: KnownSecrets) -> HttpRequest | None:
    """The request that a redirect asks for, if it is one; to another origin it takes no credential along."""
    location = response.location
    if response.status_code not in _REDIRECTS or location is None:
        return None
    try:
        url = request.url.joined(location)
    except ValueError as exc:
        raise HttpNotSent from exc
    method = _method_after(request.method, response.status_code)
    headers: CIMultiDict[str] = CIMultiDict(request.headers)
    content = request.content if method == request.method else None
    if content is None:
        _drop(headers, "Content-Length", "Content-Type", "Transfer-Encoding")
    if url.origin != request.url.origin:
        _drop(headers, *request.secret_headers, "Host")
        told = f"{url.without_caller()} {url.username} {url.password}"
        if secrets.are_in(told.encode()) or (content is not None and secrets.are_in(content)):
            raise RedirectRefused("the server redirected to another one, which would have been sent a secret")
    elif not url.username and not url.password:
        url = url._replace(username=request.url.username, password=request.url.password)
    return request._replace(method=method, url=url, headers=headers, content=content)


def _method_after(method: str, status_code: int) -> str:
    """What a browser does: a body is sent again only where the status says so."""
    if status_code in _SAME_METHOD or method == "HEAD" or (status_code == 301 and method != "POST"):
        return method
    return "GET"


def _drop(headers: CIMultiDict[str], *names: str) -> None:
    for name in names:
        headers.popall(name, None)
