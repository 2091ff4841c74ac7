"""`noetl payload`: looks at the bytes that events refer to, and proves that they are the right ones."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import click
from noetl_contracts.mapping.payloads import KnownPayload
from noetl_core.errors import Corrupt

from noetl_cli.commands.arguments import LOCATOR
from noetl_cli.commands.payload_gc import gc
from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.durations import clock_text, time_text
from noetl_cli.shown.payload_head import head_lines

_PROGRESS_FROM_BYTES = 8 * 1024 * 1024
_HEAD_BYTES = 4 * 1024 * 1024


@click.group()
def payload() -> None:
    """Look at the bytes that events refer to.

    A payload is named by the `uri` or the `ref_id` of its reference, or by the whole reference as JSON.
    """


payload.add_command(gc)


@payload.command()
@click.argument("locator", type=LOCATOR, metavar="REFERENCE")
@output_option
@takes_server
def stat(*, locator: str, output: Output, find_server: FindServer) -> None:
    """Show what is known of a payload, without reading it.

    \b
    Examples:
      noetl payload stat noetl://execution/271828182845904523/result/load/0f1e2d3c4b5a6978
      noetl events ID -o json | jq -c '.events[].result.reference | values' | noetl payload stat -
    """

    async def ask() -> KnownPayload:
        async with connected(find_server()) as clients:
            return await clients.payloads.stat(None, locator)

    known = asyncio.run(ask())
    if output is Output.JSON:
        echo_json(_document(known))
        return
    stored_at = "unknown" if known.stored_at is None else clock_text(known.stored_at)
    for name, value in ({**_document(known), "stored_at": stored_at}).items():
        if name != "reference":
            click.echo(f"{name + ':':12}{value}")


@payload.command()
@click.argument("locator", type=LOCATOR, metavar="REFERENCE")
@click.option("-f", "--file", type=click.Path(path_type=Path, dir_okay=False), help="Write here, not to stdout.")
@takes_server
def get(*, locator: str, file: Path | None, find_server: FindServer) -> None:
    """Write the bytes of a payload to stdout, or to a file.

    The digest is checked. A file appears only when all of it is there and right; on stdout the last piece is missing
    when it is not, and the exit code says so.

    \b
    Examples:
      noetl payload get noetl://execution/271828182845904523/result/load/0f1e2d3c4b5a6978 | jq .
      noetl payload get noetl://tenant/acme/org/ops/payloads/sha256/9f86… -f rows.arrow
    """

    async def fetch(sink: BinaryIO) -> KnownPayload:
        async with connected(find_server()) as clients:
            fetched = await clients.payloads.fetch(None, locator)
            async for chunk in _with_progress(fetched.payload, fetched.chunks):
                sink.write(chunk)
        return fetched.payload

    if file is None:
        asyncio.run(fetch(sys.stdout.buffer))
        sys.stdout.buffer.flush()
        return
    with _appearing_whole(file) as sink:
        known = asyncio.run(fetch(sink))
    click.echo(f"{file}: {known.ref.bytes} bytes, sha256 {known.ref.sha256}", err=True)


@payload.command()
@click.argument("locator", type=LOCATOR, metavar="REFERENCE")
@click.option("-n", "--rows", type=click.IntRange(min=1), default=10, show_default=True, help="Rows or lines to show.")
@takes_server
def head(*, locator: str, rows: int, find_server: FindServer) -> None:
    """Show the beginning of a payload: tables as tables, other values as JSON or text.

    \b
    Examples:
      noetl payload head noetl://execution/271828182845904523/result/load/0f1e2d3c4b5a6978
      noetl payload head noetl://tenant/acme/org/ops/payloads/sha256/9f86… -n 50
    """

    async def fetch() -> tuple[KnownPayload, bytes]:
        beginning = bytearray()
        async with connected(find_server()) as clients:
            fetched = await clients.payloads.fetch(None, locator)
            async for chunk in fetched.chunks:
                beginning += chunk
                if len(beginning) >= _HEAD_BYTES:
                    break
        return fetched.payload, bytes(beginning)

    known, data = asyncio.run(fetch())
    is_whole = len(data) == known.ref.bytes
    for line in head_lines(known.ref.media_type, data, is_whole=is_whole, rows=rows):
        click.echo(line)
    if not is_whole:
        click.echo(f"… of {known.ref.bytes} bytes, not checked: see noetl payload verify", err=True)


@payload.command()
@click.argument("locator", type=LOCATOR, metavar="REFERENCE")
@output_option
@takes_server
def verify(*, locator: str, output: Output, find_server: FindServer) -> None:
    """Read all of a payload, and check that its bytes are what its digest says.

    Exits with 1 when they are not, and with 3 when they are not there.

    \b
    Example:
      noetl payload verify noetl://tenant/acme/org/ops/payloads/sha256/9f86… && echo fine
    """

    async def read() -> tuple[KnownPayload, int]:
        size = 0
        async with connected(find_server()) as clients:
            fetched = await clients.payloads.fetch(None, locator)
            async for chunk in _with_progress(fetched.payload, fetched.chunks):
                size += len(chunk)
        return fetched.payload, size

    known, size = asyncio.run(read())
    if known.reference is not None and known.reference.get("bytes") not in (None, size):
        raise Corrupt(f"{known.ref.uri} has {size} bytes, its reference says {known.reference['bytes']}")
    if output is Output.JSON:
        echo_json({"uri": known.ref.uri, "sha256": known.ref.sha256, "bytes": size, "verified": True})
    else:
        click.echo(f"ok: {size} bytes, sha256 {known.ref.sha256}")


def _document(known: KnownPayload) -> dict[str, Any]:
    ref = known.ref
    return {
        "uri": ref.uri,
        "sha256": ref.sha256,
        "media_type": ref.media_type,
        "bytes": ref.bytes,
        "stored_at": time_text(known.stored_at),
        "reference": known.reference,
    }


async def _with_progress(known: KnownPayload, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same chunks; whoever waits at a terminal for a large payload sees how far it is."""
    is_worth_it = known.ref.bytes >= _PROGRESS_FROM_BYTES and sys.stderr.isatty()
    with click.progressbar(
        length=known.ref.bytes, label="fetching", file=sys.stderr, hidden=not is_worth_it, width=0
    ) as bar:
        async for chunk in chunks:
            yield chunk
            bar.update(len(chunk))


@contextmanager
def _appearing_whole(file: Path) -> Iterator[BinaryIO]:
    """A file beside the wanted one, which takes its place at the end and is removed on failure.

    What is no file, such as a pipe or /dev/null, is written to and stays what it is; a link stays a link.
    """
    target = file.resolve()
    aside = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as sink:
                yield sink
            return
        with aside.open("wb") as sink:
            yield sink
        aside.replace(target)
    except OSError as exc:
        raise click.FileError(str(file), hint=exc.strerror) from exc
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
