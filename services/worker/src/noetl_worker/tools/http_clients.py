"""The worker's HTTP connections: pooled, without cookies, every exchange bounded in time, size and redirects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Self, cast

import httpx

from noetl_worker.application.known_secrets import KnownSecrets
from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import failed
from noetl_worker.tools.http_request import HttpRequest

USER_AGENT = "noetl-worker"

_PIECE_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one worker and one exchange may use."""

    max_connections: int = 100
    max_idle_connections: int = 20
    idle_seconds: float = 30.0
    max_response_bytes: int = 64 * 1024 * 1024
    max_redirects: int = 10
    trust_environment: bool = True
    """Whether HTTPS_PROXY and SSL_CERT_FILE of the worker's environment count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """What a step says about its exchange."""

    timeout_seconds: float
    verify_ssl: bool = True
    follow_redirects: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """A response with its body, as far as that was read."""

    status_code: int
    reason: str
    headers: dict[str, str]
    encoding: str
    url: httpx.URL
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
        self._stack = AsyncExitStack()
        self._clients: dict[bool, httpx.AsyncClient] = {}
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
        await self._stack.aclose()

    async def exchange(self, request: HttpRequest, options: HttpOptions, *, secrets: KnownSecrets) -> HttpReply:
        """The reply; raises `httpx.HTTPError`, `RedirectRefused`, or TimeoutError for the exchange as a whole."""
        started = time.monotonic()
        async with self.stream(request, options, secrets=secrets) as response:
            content, is_complete = await self._read(response)
        return HttpReply(
            status_code=response.status_code,
            reason=response.reason_phrase,
            headers=dict(response.headers),
            encoding=response.charset_encoding or "utf-8",
            url=response.request.url,
            content=content,
            is_complete=is_complete,
            elapsed_seconds=time.monotonic() - started,
        )

    @asynccontextmanager
    async def stream(
        self, request: HttpRequest, options: HttpOptions, *, secrets: KnownSecrets
    ) -> AsyncIterator[httpx.Response]:
        """As `exchange`, for who reads the body piece by piece; the time counts until that is done."""
        client = await self._client(verify_ssl=options.verify_ssl)
        async with asyncio.timeout(options.timeout_seconds):
            for _ in range(self.limits.max_redirects + 1):
                sent = client.build_request(
                    request.method,
                    request.url,
                    headers=request.headers,
                    content=request.content,
                    timeout=options.timeout_seconds,
                )
                response = await client.send(sent, stream=True, follow_redirects=False)
                try:
                    follows = options.follow_redirects and response.next_request is not None
                    if not follows or response.next_request is None:
                        yield response
                        return
                finally:
                    await response.aclose()
                request = _redirected(request, response.next_request, secrets)
            raise RedirectRefused(f"the server redirected more than {self.limits.max_redirects} times")

    async def _read(self, response: httpx.Response) -> tuple[bytes, bool]:
        content = bytearray()
        async with body_of(response) as pieces:
            async for piece in pieces:
                content += piece
                if len(content) > self.limits.max_response_bytes:
                    return bytes(content[: self.limits.max_response_bytes]), False
        return bytes(content), True

    async def _client(self, *, verify_ssl: bool) -> httpx.AsyncClient:
        async with self._making:
            if self._is_closed:
                raise failed(ErrorKind.CONNECTION, "WORKER_STOPPING", "the worker is stopping")
            client = self._clients.get(verify_ssl)
            if client is None:
                # Certificates are read from disk, which takes too long for the event loop.
                client = await asyncio.to_thread(self._make_client, verify_ssl)
                self._stack.push_async_callback(client.aclose)
                self._clients[verify_ssl] = client
            return client

    def _make_client(self, verify_ssl: bool) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=verify_ssl,
            trust_env=self.limits.trust_environment,
            # One call's cookies are nobody else's: no domain may set any.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            headers={"User-Agent": USER_AGENT},
            limits=httpx.Limits(
                max_connections=self.limits.max_connections,
                max_keepalive_connections=self.limits.max_idle_connections,
                keepalive_expiry=self.limits.idle_seconds,
            ),
        )


def body_of(response: httpx.Response) -> aclosing[AsyncGenerator[bytes, None]]:
    """The pieces of a body; whoever does not read them all leaves nothing open."""
    return aclosing(cast(AsyncGenerator[bytes, None], response.aiter_bytes(_PIECE_BYTES)))


def _redirected(request: HttpRequest, following: httpx.Request, secrets: KnownSecrets) -> HttpRequest:
    """The request that a redirect asks for; to another origin it takes no credential along."""
    headers = httpx.Headers(request.headers)
    content = request.content if following.method == request.method else None
    if content is None:
        for name in ("Content-Length", "Content-Type", "Transfer-Encoding"):
            headers.pop(name, None)
    if _origin(following.url) != _origin(request.url):
        for name in request.secret_headers:
            headers.pop(name, None)
        headers.pop("Host", None)
        if secrets.are_in(str(following.url).encode()) or (content is not None and secrets.are_in(content)):
            raise RedirectRefused("the server redirected to another one, which would have been sent a secret")
    return replace(request, method=following.method, url=following.url, headers=headers, content=content)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme)
