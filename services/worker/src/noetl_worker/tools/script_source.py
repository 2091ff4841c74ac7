"""Where a `script` comes from: the playbook itself, a directory that the operator allows, or an HTTP server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from noetl_core.canonical import JsonValue

from noetl_worker.application.credentials import Credentials
from noetl_worker.application.outcome import ErrorKind
from noetl_worker.tools.call_failed import CallFailed, failed, misconfigured
from noetl_worker.tools.http import DEFAULT_TIMEOUT_SECONDS, TRANSPORT_ERRORS, prepare
from noetl_worker.tools.http_clients import HttpClients
from noetl_worker.tools.http_response import status_kind, transport_outcome
from noetl_worker.tools.script_remote import SCHEMES, read_remote
from noetl_worker.tools.tool_config import ToolConfig

_HTTP_KEYS = ("method", "headers", "params", "auth", "timeout_seconds", "verify_ssl", "follow_redirects")
_INLINE_KEYS = ("code", "content", "text", "inline")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLimits:
    """What the operator allows."""

    root: Path | None = None
    """The directory below which files are read; without one no file is."""
    enabled: bool = True
    max_bytes: int = 1024 * 1024


class ScriptSources:
    """Loads the text of `script: {uri, source: {type}}`; what it means is the tool's business."""

    def __init__(self, *, limits: ScriptLimits, clients: HttpClients, credentials: Credentials) -> None:
        self._limits = limits
        self._clients = clients
        self._credentials = credentials

    async def load(self, config: ToolConfig, *, key: str = "script") -> str:
        """The text as it is stored, not rendered; raises `CallFailed`."""
        if not self._limits.enabled:
            raise failed(ErrorKind.AUTH, "SCRIPT_DISABLED", "the operator of this worker has switched scripts off")
        written = config.call.config.get(key)
        if isinstance(written, str):
            return written
        section = config.below(key)
        written_source = section.call.config.get("source")
        source = section.with_config(written_source if isinstance(written_source, dict) else {"type": written_source})
        inline = _inline(section, source)
        stated = source.text("type")
        if stated == "inline" or (stated is None and inline is not None):
            as_written = section.call.config.get("uri")
            return _required(inline or (as_written if isinstance(as_written, str) else None), "the code itself")
        uri = section.text("uri", "path") or source.text("uri", "endpoint", "url")
        kind = (stated or _kind_of(uri)).lower()
        match kind:
            case "file" | "local":
                return await asyncio.to_thread(self._read_file, _required(uri, "`uri`"))
            case "http" | "https":
                _required(uri, "`uri`")
                return await self._download(section, source)
            case _ if kind in SCHEMES:
                return await self._fetch(section, source, _required(uri, "`uri`"), kind)
            case _:
                raise misconfigured(f"`script.source.type` is {kind!r}: inline, file, http, gcs and s3 are possible")

    def _read_file(self, uri: str) -> str:
        """Symbolic links may lead anywhere within the directory, and nowhere else."""
        if self._limits.root is None:
            message = "files cannot be read: the operator of this worker has not set NOETL_SCRIPT_ROOT"
            raise failed(ErrorKind.STORAGE_ACCESS, "SCRIPT_NOT_ALLOWED", message)
        root = self._limits.root.resolve()
        written = unquote(urlsplit(uri).path) if uri.startswith("file://") else uri
        try:
            path = (root / written).resolve()
            if not path.is_relative_to(root):
                message = f"{uri!r} is not below the directory of scripts"
                raise failed(ErrorKind.STORAGE_ACCESS, "SCRIPT_NOT_ALLOWED", message)
            if not path.is_file():
                raise failed(ErrorKind.NOT_FOUND, "SCRIPT_NOT_FOUND", f"there is no script {uri!r}")
            with path.open("rb") as file:
                data = file.read(self._limits.max_bytes + 1)
        except (OSError, ValueError) as exc:
            message = f"the script {uri!r} cannot be read"
            raise failed(ErrorKind.STORAGE_ACCESS, "SCRIPT_NOT_READABLE", message) from exc
        return self._text(data, uri)

    async def _fetch(self, section: ToolConfig, source: ToolConfig, uri: str, kind: str) -> str:
        """From an object store; the data of a credential are what fsspec calls options of the storage."""
        place = section if "auth" in section else source
        credential = (await place.auth(self._credentials)).one()
        data = await asyncio.to_thread(
            read_remote,
            uri,
            kind=kind,
            options={} if credential is None else dict(credential.data),
            max_bytes=self._limits.max_bytes,
        )
        return self._text(data, uri)

    async def _download(self, section: ToolConfig, source: ToolConfig) -> str:
        places = (section.call.config, source.call.config)
        keys = ("uri", "path", "endpoint", "url")
        # Passed on as they are written: what has been rendered once must not be rendered again.
        address = next(place[key] for place in places for key in keys if place.get(key))
        request_config: dict[str, JsonValue] = {"url": address}
        for place in places:
            request_config |= {key: place[key] for key in _HTTP_KEYS if place.get(key) is not None}
        request, options = await prepare(
            section.with_config(request_config), self._credentials, default_timeout_seconds=DEFAULT_TIMEOUT_SECONDS
        )
        try:
            reply = await self._clients.exchange(request, options, secrets=section.secrets)
        except TRANSPORT_ERRORS as exc:
            raise CallFailed(transport_outcome(exc, timeout_seconds=options.timeout_seconds)) from exc
        if not 200 <= reply.status_code < 300:
            message = f"the script could not be fetched: HTTP {reply.status_code}"
            raise failed(status_kind(reply.status_code), f"HTTP_{reply.status_code}", message)
        return self._text(reply.content, "from the server")

    def _text(self, data: bytes, name: str) -> str:
        if len(data) > self._limits.max_bytes:
            message = f"the script {name!r} has more than {self._limits.max_bytes} bytes"
            raise failed(ErrorKind.STORAGE_QUOTA, "SCRIPT_TOO_LARGE", message)
        try:
            return data.decode()
        except UnicodeDecodeError as exc:
            raise failed(ErrorKind.PARSE, "SCRIPT_NOT_TEXT", f"the script {name!r} is not UTF-8 text") from exc


def _inline(section: ToolConfig, source: ToolConfig) -> str | None:
    """Code in the playbook; it is not rendered here, since it may be meant to run as it is written."""
    for place in (section.call.config, source.call.config):
        for key in _INLINE_KEYS:
            code = place.get(key)
            if isinstance(code, str):
                return code
    return None


def _kind_of(uri: str | None) -> str:
    scheme = urlsplit(uri).scheme if uri and "://" in uri else "file"
    return scheme or "file"


def _required(text: str | None, what: str) -> str:
    if not text:
        raise misconfigured(f"`script` lacks {what}")
    return text
