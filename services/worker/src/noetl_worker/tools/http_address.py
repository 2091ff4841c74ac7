"""The address of an HTTP request: what is written stays as it is, and only what no request can carry is escaped."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote, unquote_plus, urljoin, urlsplit

import yarl

_MAX_CHARACTERS = 65_536
_PORTS = {"http": 80, "https": 443}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNFIT_IN_PATH = re.compile(r'[\x00-\x20"#<>?`{}\x7f-\U0010ffff]')
_UNFIT_IN_QUERY = re.compile(r'[\x00-\x20"#<>\x7f-\U0010ffff]')
_SIMPLE = re.compile(
    r"(https?://[A-Za-z0-9.-]+(?::[0-9]+)?)(/[A-Za-z0-9_.~!$&'()*+,;=:@%/-]*)(?:\?([A-Za-z0-9_.~!$&'()*+,;=:@%/?-]+))?"
)
"""What most addresses are: a server, and behind it only what stays as it is."""
_ZONE = re.compile(r"%(?:25)?([A-Za-z0-9._~-]+)(?=\])")
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+(?:%25[A-Za-z0-9._~-]+)?\]|[A-Za-z0-9._~!$&'()*+,;=%-]+")


class HttpAddress(NamedTuple):
    """An absolute address of http or https, ready to be sent. No dataclass, since every row of a frame makes one."""

    scheme: str
    host: str
    """In lower case and in ASCII; of IPv6 with its brackets, and with its zone as that is written."""
    port: int | None = None
    username: str = ""
    password: str = ""
    path: str = ""
    query: str = ""
    has_empty_query: bool = False
    """Whether there is a `?` with nothing behind it."""
    fragment: str = ""

    @classmethod
    def parse(cls, text: str) -> HttpAddress:
        """Raises ValueError, which says what is wrong with it and repeats nothing of it."""
        if len(text) > _MAX_CHARACTERS:
            raise ValueError("is too long")
        simple = _SIMPLE.fullmatch(text)
        if simple is not None and "/." not in text:
            server, path, query = simple.groups()
            origin = _server(server)
            return cls(scheme=origin.scheme, host=origin.host, port=origin.port, path=path, query=query or "")
        if _CONTROL.search(text):
            raise ValueError("has a control character")
        try:
            parts = urlsplit(text)
        except ValueError:  # which repeats the address, with the password in it
            raise ValueError("is not an address") from None
        try:
            port = parts.port
        except ValueError:
            raise ValueError("has a port that is no number") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError("must be an http:// or https:// address with a host")
        return cls(
            scheme=parts.scheme,
            host=_host(parts.hostname),
            port=None if port == _PORTS[parts.scheme] else port,
            username=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            path=_without_dots(_fit(parts.path, _UNFIT_IN_PATH)),
            query=_fit(parts.query, _UNFIT_IN_QUERY),
            has_empty_query=not parts.query and "?" in text.partition("#")[0],
            fragment=_fit(parts.fragment, _UNFIT_IN_QUERY),
        )

    @property
    def origin(self) -> tuple[str, str, int]:
        """Who is asked: another server has another one."""
        return self.scheme, self.host, self.port or _PORTS[self.scheme]

    @property
    def authority(self) -> str:
        """Host and port, as a header has them."""
        return self.host if self.port is None else f"{self.host}:{self.port}"

    @property
    def host_header(self) -> str:
        """What the server is told that it was asked as; zones mean something to who asks only."""
        return _ZONE.sub("", self.authority)

    @property
    def target(self) -> str:
        """What is asked for of the server, as the first line of a request has it."""
        return f"{self.path or '/'}?{self.query}" if self.query or self.has_empty_query else self.path or "/"

    @property
    def sent(self) -> yarl.URL:
        """As the client takes it: without who asks, which is for a header, and without the fragment."""
        path = self.path or "/"
        if not self.query and self.has_empty_query:
            path += "?"  # as a query of its own it would be left out
        return self._of_client(path, self.query)

    @property
    def origin_sent(self) -> yarl.URL:
        """As `sent`, for who only wants to know which server that is."""
        return self._of_client("/", "")

    def _of_client(self, path: str, query: str) -> yarl.URL:
        authority = _ZONE.sub(r"%\1", self.authority)
        return yarl.URL.build(scheme=self.scheme, authority=authority, path=path, query_string=query, encoded=True)

    def without_caller(self) -> str:
        """The address, without the name and the password in it."""
        query = f"?{self.query}" if self.query or self.has_empty_query else ""
        fragment = f"#{self.fragment}" if self.fragment else ""
        return f"{self.scheme}://{self.authority}{self.path}{query}{fragment}"

    def with_more_query(self, more: str) -> HttpAddress:
        """Added to what there is already."""
        return self._replace(query="&".join(part for part in (self.query, more) if part)) if more else self

    def with_hidden(self, names: frozenset[str], hidden: str) -> HttpAddress:
        """With something else in place of some parameters of the query."""
        if not names or not self.query:
            return self
        parts = [part.partition("=") for part in self.query.split("&")]
        shown = (
            f"{name}={hidden}" if unquote_plus(name) in names else f"{name}{sign}{value}" for name, sign, value in parts
        )
        return self._replace(query="&".join(shown))

    def joined(self, location: str) -> HttpAddress:
        """Where a redirect from here leads; raises ValueError."""
        there = HttpAddress.parse(urljoin(self.without_caller(), location.strip()))
        return there if there.fragment or "#" in location else there._replace(fragment=self.fragment)


@lru_cache(maxsize=1024)
def _server(text: str) -> HttpAddress:
    """Few servers are asked for many things."""
    return HttpAddress.parse(text)


def _host(name: str) -> str:
    if ":" in name:
        address, percent, zone = name.partition("%")
        name = f"[{address.lower()}{percent and '%25'}{zone.removeprefix('25')}]"
        if _HOST.fullmatch(name):
            return name
    if not name.isascii():
        try:
            name = yarl.URL(f"http://{name}/").raw_host or ""
        except ValueError:
            name = ""
    if not _HOST.fullmatch(name):
        raise ValueError("has a host that is no name")
    return name.lower()


def _fit(text: str, unfit: re.Pattern[str]) -> str:
    return unfit.sub(lambda found: quote(found.group(), safe=""), text)


def _without_dots(path: str) -> str:
    """`/a/../b` is `/b`, for servers and for what their rules see alike."""
    if "/." not in path:
        return path
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == "..":
            del kept[max(len(kept) - 1, 1) :]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/".join(kept)
