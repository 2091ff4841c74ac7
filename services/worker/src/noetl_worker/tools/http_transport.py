"""HTTP on the wire, by aiohttp: a request goes out once, and what comes back or goes wrong has names of our own."""

from __future__ import annotations

import base64
import io
import os
import re
import ssl
import urllib.request
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import aiohttp
import certifi
from aiohttp.client_middlewares import ClientHandlerType
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError
from multidict import CIMultiDict

from noetl_worker.tools.connection_errors import causes
from noetl_worker.tools.http_address import HttpAddress
from noetl_worker.tools.http_connections import HEAD_BYTES, MAX_HEADERS, QuietConnections
from noetl_worker.tools.http_exchange import PLAIN_BODY_BYTES, USER_AGENT, Answered, PlainExchanges
from noetl_worker.tools.http_request import HttpRequest
from noetl_worker.tools.http_whole_answer import WholeAnswer, charset

_PIECE_BYTES = 65_536
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNFIT_IN_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_WISHES = frozenset({"connection", "proxy-connection"})
_OF_THE_CONNECTION = _WISHES | {"te", "trailer", "transfer-encoding", "upgrade"}
"""Headers about how a connection is used: with those of a step, one call's body could be another's request."""
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
        if not found or self._passes_by(address):
            return None
        try:
            return HttpAddress.parse(found if "://" in found else f"http://{found}")
        except ValueError as exc:
            raise HttpNotSent("the worker's proxy is neither of http nor of https") from exc

    def _passes_by(self, address: HttpAddress) -> bool:
        """Whether NO_PROXY has the host, a domain that it is in, either with its port, or all there are."""
        excepted = self.by_scheme.get("no", "")
        if excepted.strip() == "*":
            return True
        names = (name.strip().lstrip(".").lower() for name in excepted.split(","))
        asked = {address.host, address.host.strip("[]"), address.authority}
        return any(name and any(one == name or one.endswith(f".{name}") for one in asked) for name in names)


class ArrivingResponse(NamedTuple):
    """A response whose body is still to be read."""

    answered: Answered
    address: HttpAddress

    @property
    def status_code(self) -> int:
        return self.answered.status_code

    @property
    def reason(self) -> str:
        return self.answered.reason or ""

    @property
    def encoding(self) -> str:
        declared = self.answered.headers.get("Content-Type")
        return "utf-8" if declared is None else charset(declared)

    @property
    def location(self) -> str | None:
        """Where a redirect leads."""
        return self.answered.headers.get("Location")

    def headers(self) -> dict[str, str]:
        """By names in lower case; those that come several times are one, with commas."""
        headers: dict[str, str] = {}
        for raw_name, raw_value in self.answered.raw_headers:
            name, value = _name(raw_name), _text(raw_value)
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return headers

    def close(self) -> None:
        """Whoever got it does this at last; the connection is for others if the body was read to its end."""
        self.answered.close()

    def body(self) -> aclosing[AsyncGenerator[bytes, None]]:
        """Its pieces, decoded; whoever does not read them all leaves nothing open."""
        return aclosing(self._pieces())

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in self.answered.content.iter_chunked(_PIECE_BYTES):
                yield piece
        except aiohttp.ClientError as exc:
            raise _broken_off(exc) from exc

    async def whole(self, max_bytes: int) -> tuple[bytes, bool]:
        """As much of the body as is allowed, and whether that is all of it."""
        arriving = self.answered.content
        try:
            if arriving.is_eof():  # most are here together with their head
                whole = arriving.read_nowait()
                return whole[:max_bytes], len(whole) <= max_bytes
            content = bytearray()
            while piece := await arriving.readany():
                content += piece
                if len(content) > max_bytes:
                    return bytes(content[:max_bytes]), False
        except aiohttp.ClientError as exc:
            raise _broken_off(exc) from exc
        return bytes(content), True


class WholeResponse(NamedTuple):
    """A response that is here."""

    answer: WholeAnswer
    address: HttpAddress

    @property
    def status_code(self) -> int:
        return self.answer.head.status_code

    @property
    def reason(self) -> str:
        return self.answer.head.reason

    @property
    def encoding(self) -> str:
        return self.answer.head.encoding

    @property
    def location(self) -> str | None:
        """Where a redirect leads."""
        return self.answer.head.headers.get("location")

    def headers(self) -> dict[str, str]:
        """By names in lower case."""
        return self.answer.head.headers

    def close(self) -> None:
        """Its connection is for others already."""

    def body(self) -> aclosing[AsyncGenerator[bytes, None]]:
        """In one piece, if there is any."""
        return aclosing(self._pieces())

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        if self.answer.content:
            yield self.answer.content

    async def whole(self, max_bytes: int) -> tuple[bytes, bool]:
        """As much of the body as is allowed, and whether that is all of it."""
        return self.answer.content[:max_bytes], len(self.answer.content) <= max_bytes


HttpResponse = ArrivingResponse | WholeResponse


def _session_on(connections: QuietConnections) -> aiohttp.ClientSession:
    """On a pool of connections, without cookies, limits of time and things that the environment says."""
    return aiohttp.ClientSession(
        connector=connections,
        cookie_jar=aiohttp.DummyCookieJar(),  # one call's cookies are nobody else's
        headers={"User-Agent": USER_AGENT},
        skip_auto_headers=("Content-Type",),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # whoever asks has a limit around it all
        max_line_size=HEAD_BYTES,
        max_field_size=HEAD_BYTES,
        max_headers=MAX_HEADERS,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """A session, and what goes out through it; each request once."""

    session: aiohttp.ClientSession
    plain: PlainExchanges
    proxies: Proxies

    @classmethod
    def of(cls, connections: QuietConnections, proxies: Proxies) -> Transport:
        """All that goes through one pool of connections."""
        return cls(session=_session_on(connections), plain=PlainExchanges(connections), proxies=proxies)

    async def close(self) -> None:
        """Every connection."""
        self.plain.close()
        await self.session.close()

    async def send(self, request: HttpRequest) -> HttpResponse:
        """The response to a request, which whoever gets it has to close."""
        headers: CIMultiDict[str] = CIMultiDict()
        if request.headers:
            headers = _checked(request.headers, body_bytes=len(request.content or b""))
        if request.url.username or request.url.password:
            headers["Authorization"] = _basic(request.url)
        proxy = self.proxies.of(request.url) if self.proxies.by_scheme else None
        try:
            if proxy is None and self.plain.takes(request, headers):
                answered = await self.plain.ask(request, headers)
                if isinstance(answered, WholeAnswer):
                    return WholeResponse(answered, request.url)
            else:
                answered = await self._by_session(request, headers, proxy)
        except HttpLost:
            raise
        except _CANNOT_CONNECT as exc:
            raise HttpUnreachable(str(exc)) from exc.__cause__ or exc  # the socket's own error knows more
        except (aiohttp.InvalidURL, ValueError) as exc:
            raise HttpNotSent from exc
        except aiohttp.ClientHttpProxyError as exc:
            raise HttpUnreachable(f"the proxy answered HTTP {exc.status}") from exc
        except aiohttp.ServerDisconnectedError as exc:
            raise HttpLost("the server hung up without a response") from exc
        except (aiohttp.ClientOSError, ConnectionError) as exc:
            raise HttpLost("the connection was lost") from exc
        except (aiohttp.ClientError, HttpProcessingError) as exc:
            if any(isinstance(cause, ContentEncodingError) for cause in causes(exc)):
                raise HttpUndecodable("the response is encoded in a way that was not asked for") from exc
            raise HttpLost("the response is not one of HTTP") from exc  # what it is instead may be anybody's secret
        return ArrivingResponse(answered, request.url)

    async def _by_session(self, request: HttpRequest, headers: CIMultiDict[str], proxy: HttpAddress | None) -> Answered:
        content = request.content
        if "%" in request.url.host and "Host" not in headers:
            headers["Host"] = request.url.host_header
        for_proxy: dict[str, str] | None = None
        if proxy is not None and (proxy.username or proxy.password):
            for_proxy = {"Proxy-Authorization": _basic(proxy)}
            if request.url.scheme == "http":  # no tunnel: the proxy reads the request itself
                headers.update(for_proxy)
        self.plain.give_back()
        response = await self.session.request(
            request.method,
            request.url.sent,
            headers=headers,
            data=io.BytesIO(content) if content is not None and len(content) > PLAIN_BODY_BYTES else content,
            allow_redirects=False,
            proxy=None if proxy is None else proxy.sent,
            proxy_headers=for_proxy,
        )
        return Answered(
            status_code=response.status,
            reason=response.reason or "",
            headers=response.headers,
            raw_headers=response.raw_headers,
            content=response.content,
            close=response.close,
        )


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
    return HttpLost("the connection was lost")


def _checked(headers: Mapping[str, str], *, body_bytes: int) -> CIMultiDict[str]:
    """Headers that can be written; what is in others is not repeated."""
    checked: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        known = name.lower()
        if not _NAME.fullmatch(name) or _UNFIT_IN_VALUE.search(value):
            raise HttpNotSent
        if known == "keep-alive" or (known in _WISHES and value.strip().lower() in {"close", "keep-alive"}):
            continue  # As programs write it that have a connection to themselves.
        if known in _OF_THE_CONNECTION:
            raise HttpNotSent(f"the header {known!r} is about the connection, which is not the step's own")
        if known != "content-length":
            checked.add(name, value)
        elif value.strip() != str(body_bytes):
            raise HttpNotSent(f"the header 'content-length' is not the length of the body, which is {body_bytes}")
    return checked


def _basic(address: HttpAddress) -> str:
    return "Basic " + base64.b64encode(f"{address.username}:{address.password}".encode()).decode()


@lru_cache(maxsize=1024)
def _name(raw: bytes) -> str:
    """Servers use few names, again and again."""
    return _text(raw).lower()


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
