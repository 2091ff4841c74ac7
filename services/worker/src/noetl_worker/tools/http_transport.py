"""HTTP on the wire, by aiohttp: a request goes out once, and what comes back or goes wrong has names of our own."""

from __future__ import annotations

import base64
import io
import os
import re
import ssl
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import certifi
from aiohttp.client_middlewares import ClientHandlerType
from aiohttp.http_exceptions import ContentEncodingError
from multidict import CIMultiDict

from noetl_worker.tools.http_address import HttpAddress
from noetl_worker.tools.http_request import HttpRequest

USER_AGENT = "noetl-worker"

_PIECE_BYTES = 65_536
_HEAD_BYTES = 100_000
"""Of one line of a response; more is no response."""
_MAX_HEADERS = 1000
_PLAIN_BODY_BYTES = 1024 * 1024
"""Larger ones are written piece by piece."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNFIT_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CANNOT_CONNECT = (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError, aiohttp.ServerFingerprintMismatch)


class HttpNotSent(Exception):
    """The request cannot be written: its address or one of its headers is malformed."""


class HttpUndecodable(Exception):
    """A response that is not encoded as it says."""


class HttpUnreachable(Exception):
    """There is no connection; why stands in the causes."""


class HttpLost(aiohttp.ClientError):
    """The connection ended before the response did, or brought something else than a response.

    One of aiohttp's errors itself, of a kind that it does not answer by sending the request again: whether that is
    done is for the rules of the step.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxies:
    """Through whom servers are reached: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

    by_scheme: Mapping[str, str]

    @classmethod
    def of_environment(cls) -> Proxies:
        """As they are now; nothing is asked of the environment with a request."""
        return cls(by_scheme=urllib.request.getproxies_environment())

    def of(self, address: HttpAddress) -> HttpAddress | None:
        """The proxy for an address; raises `HttpNotSent` for one that this client cannot speak to."""
        found = self.by_scheme.get(address.scheme) or self.by_scheme.get("all")
        if not found or urllib.request.proxy_bypass(address.authority, dict(self.by_scheme)):
            return None
        try:
            return HttpAddress.parse(found if "://" in found else f"http://{found}")
        except ValueError as exc:
            raise HttpNotSent("the worker's proxy is neither of http nor of https") from exc


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response whose body is still to be read."""

    response: aiohttp.ClientResponse
    address: HttpAddress

    @property
    def status_code(self) -> int:
        return self.response.status

    @property
    def reason(self) -> str:
        return self.response.reason or ""

    @property
    def encoding(self) -> str:
        return self.response.charset or "utf-8"

    def headers(self) -> dict[str, str]:
        """By names in lower case; those that come several times are one, with commas."""
        headers: dict[str, str] = {}
        for raw_name, raw_value in self.response.raw_headers:
            name, value = _text(raw_name).lower(), _text(raw_value)
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return headers

    def body(self) -> aclosing[AsyncGenerator[bytes, None]]:
        """Its pieces, decoded; whoever does not read them all leaves nothing open."""
        return aclosing(self._pieces())

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in self.response.content.iter_chunked(_PIECE_BYTES):
                yield piece
        except aiohttp.ClientError as exc:
            raise _broken_off(exc) from exc

    async def whole(self, max_bytes: int) -> tuple[bytes, bool]:
        """As much of the body as is allowed, and whether that is all of it."""
        content = bytearray()
        try:
            while piece := await self.response.content.readany():
                content += piece
                if len(content) > max_bytes:
                    return bytes(content[:max_bytes]), False
        except aiohttp.ClientError as exc:
            raise _broken_off(exc) from exc
        return bytes(content), True


def open_session(*, context: ssl.SSLContext, max_connections: int, idle_seconds: float) -> aiohttp.ClientSession:
    """A pool of connections, without cookies, limits of time and things that the environment says."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=context, limit=max_connections, keepalive_timeout=idle_seconds, use_dns_cache=False
        ),
        cookie_jar=aiohttp.DummyCookieJar(),  # one call's cookies are nobody else's
        headers={"User-Agent": USER_AGENT},
        skip_auto_headers=("Content-Type",),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # whoever asks has a limit around it all
        max_line_size=_HEAD_BYTES,
        max_field_size=_HEAD_BYTES,
        max_headers=_MAX_HEADERS,
        middlewares=(_once,),
    )


def tls_context(*, verify: bool, trust_environment: bool) -> ssl.SSLContext:
    """Whom connections trust: the bundle that the worker brings, or that of SSL_CERT_FILE or SSL_CERT_DIR."""
    if not verify:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    file, directory = (os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
    if trust_environment and file:
        return ssl.create_default_context(cafile=file)
    if trust_environment and directory:
        return ssl.create_default_context(capath=directory)
    return ssl.create_default_context(cafile=certifi.where())


@asynccontextmanager
async def sent(session: aiohttp.ClientSession, request: HttpRequest, proxies: Proxies) -> AsyncIterator[HttpResponse]:
    """The response to a request, which is sent once; the connection is for others when its body was read to its end."""
    response = await _send(session, request, proxies)
    try:
        yield HttpResponse(response, request.url)
    finally:
        response.close()


async def _send(session: aiohttp.ClientSession, request: HttpRequest, proxies: Proxies) -> aiohttp.ClientResponse:
    headers = _checked(request.headers)
    if request.url.username or request.url.password:
        headers["Authorization"] = _basic(request.url)
    content = request.content
    proxy = proxies.of(request.url) if proxies.by_scheme else None
    for_proxy: dict[str, str] | None = None
    if proxy is not None and (proxy.username or proxy.password):
        for_proxy = {"Proxy-Authorization": _basic(proxy)}
        if request.url.scheme == "http":  # no tunnel: the proxy reads the request itself
            headers.update(for_proxy)
    try:
        return await session.request(
            request.method,
            request.url.sent,
            headers=headers,
            data=io.BytesIO(content) if content is not None and len(content) > _PLAIN_BODY_BYTES else content,
            allow_redirects=False,
            proxy=None if proxy is None else proxy.sent,
            proxy_headers=for_proxy,
        )
    except HttpLost:
        raise
    except _CANNOT_CONNECT as exc:
        raise HttpUnreachable(str(exc)) from exc.__cause__ or exc  # the socket's own error knows more
    except (aiohttp.InvalidURL, ValueError) as exc:
        raise HttpNotSent from exc
    except aiohttp.ClientHttpProxyError as exc:
        raise HttpUnreachable(f"the proxy answered HTTP {exc.status}") from exc
    except aiohttp.ClientError as exc:
        raise HttpLost(getattr(exc, "message", "") or "the response is not one of HTTP") from exc


async def _once(request: aiohttp.ClientRequest, send: ClientHandlerType) -> aiohttp.ClientResponse:
    try:
        return await send(request)
    except _CANNOT_CONNECT:
        raise
    except aiohttp.ServerDisconnectedError as exc:
        raise HttpLost("the server hung up without a response") from exc
    except aiohttp.ClientOSError as exc:
        raise HttpLost("the connection was lost") from exc


def _broken_off(error: aiohttp.ClientError) -> Exception:
    """What kept a body from its end."""
    if isinstance(error, aiohttp.ClientPayloadError):
        if isinstance(error.__cause__, ContentEncodingError):
            return HttpUndecodable()
        return HttpLost("the connection was lost before the response was complete")
    return HttpLost(str(error) or "the connection was lost")


def _checked(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers that can be written; what is in others is not repeated."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or _UNFIT_IN_VALUE.search(value):
            raise HttpNotSent
    return CIMultiDict(headers)


def _basic(address: HttpAddress) -> str:
    return "Basic " + base64.b64encode(f"{address.username}:{address.password}".encode()).decode()


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
