"""The connection to NATS against servers that send in pieces, refuse, fall silent and vanish."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from nats.errors import NoRespondersError
from noetl_adapters.nats import frames
from noetl_adapters.nats.client import NatsClient
from noetl_adapters.nats.dialing import dial
from noetl_core.errors import Unavailable
from noetl_testkit.until import until

INFO = b'INFO {"version":"2.15.1","max_payload":4096,"headers":true}\r\n'
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(talk: Talk, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Greets, hears who comes, and then talks."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(INFO)
            if tls is not None:
                await writer.start_tls(tls)
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    assert (await reader.readline()).startswith(b"CONNECT ")
    assert await reader.readline() == b"PING\r\n"
    writer.write(b"PONG\r\n")


async def connect(*servers: str, errors: list[str] | None = None) -> NatsClient:
    told = errors if errors is not None else []
    return await dial(servers, name="test", token=None, on_error=told.append)


class Heard:
    def __init__(self) -> None:
        self.messages: list[tuple[str, str, dict[str, str], bytes]] = []

    def __call__(self, subject: str, reply: str, headers: bytes, body: bytes) -> None:
        self.messages.append((subject, reply, frames.read_headers(headers), body))


TOLD = (
    b"MSG a.b 1 5\r\nh\r\nlo\r\n"
    b"PING\r\n"
    b"+OK\r\n"
    b"MSG a.b 1 answer.me 0\r\n\r\n"
    b"HMSG a.b 1 answer.me 25 27\r\nNATS/1.0\r\nA: 1\r\nB:x y\r\n\r\nok\r\n"
    b"HMSG a.b 1 22 22\r\nNATS/1.0 503\r\nC: 2\r\n\r\n\r\n"
)
HEARD = [
    ("a.b", "", {}, b"h\r\nlo"),
    ("a.b", "answer.me", {}, b""),
    ("a.b", "answer.me", {"A": "1", "B": "x y"}, b"ok"),
    ("a.b", "", {"C": "2"}, b""),
]


class Sink(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def abort(self) -> None:
        self.aborted = True


def listening_client() -> tuple[NatsClient, Sink, Heard]:
    client, sink, heard = NatsClient(on_error=lambda reason: None), Sink(), Heard()
    client.connection_made(sink)
    client.subscribe("a.b", heard)
    sink.written = b""
    return client, sink, heard


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 16, 1000])
async def test_messages_are_the_same_however_they_are_cut(piece: int) -> None:
    client, sink, heard = listening_client()

    for at in range(0, len(TOLD), piece):
        client.data_received(TOLD[at : at + piece])

    assert heard.messages == HEARD
    assert sink.written == b"PONG\r\n"


async def test_a_message_of_many_pieces_is_whole_and_so_is_what_follows_it() -> None:
    client, _, heard = listening_client()
    body = bytes(range(256)) * 4096
    written = b"MSG a.b 1 %d\r\n%b\r\n" % (len(body), body) + TOLD

    for at in range(0, len(written), 65_536):
        client.data_received(written[at : at + 65_536])

    assert heard.messages == [("a.b", "", {}, body), *HEARD]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"MSG a.b one 5\r\nhello\r\n",
        b"MSG\r\n",
        b"MSG a.b 7 -17\r\n",
    ],
)
async def test_whoever_does_not_speak_nats_is_left(nonsense: bytes) -> None:
    client, sink, heard = listening_client()

    client.data_received(nonsense)

    assert sink.aborted
    assert heard.messages == []


def test_a_value_with_line_ends_does_not_become_another_header() -> None:
    written = frames.publish_with_headers("a", b"body", "r", {"A": "1\r\nEvil: yes", "B": "2"})

    line, _, rest = written.partition(b"\r\n")
    size = int(line.split(b" ")[3])
    assert frames.read_headers(rest[:size]) == {"A": "1  Evil: yes", "B": "2"}
    assert rest[size:] == b"body\r\n"


def test_headers_are_read_as_other_clients_write_them() -> None:
    block = "NATS/1.0 100 Idle Heartbeat\r\nA:1\r\nB: \t x : y \r\nno header\r\nC d: 1\r\nÜ: ü\r\nA: 2\r\nE:\r\n\r\n"

    assert frames.read_headers(block.encode()) == {"A": "2", "B": "x : y", "Ü": "ü", "E": ""}
    assert frames.read_status(block.encode()) == ("100", "Idle Heartbeat")
    assert frames.read_status(b"NATS/1.0\r\nA: 1\r\n\r\n") == ("", "")
    assert frames.read_headers(b"") == {}


async def test_a_server_that_refuses_is_reported_and_another_one_is_taken() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"-ERR 'Authorization Violation'\r\n")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        await reader.read()

    async with server(refuse) as closed, server(talk) as open_:
        with pytest.raises(Unavailable, match="Authorization Violation"):
            await connect(closed)

        errors: list[str] = []
        clients = [await connect(closed, open_, errors=errors) for _ in range(20)]

        assert {client.address for client in clients} == {open_}
        assert set(errors) == {"Authorization Violation"}
        assert not any(client.lost for client in clients)
        for client in clients:
            await client.close(timeout_seconds=5)


async def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl_adapters.nats.dialing.CONNECT_TIMEOUT_SECONDS", 0.05)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with server(silent) as address:
        with pytest.raises(TimeoutError):
            await connect(address)


async def test_a_server_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl_adapters.nats.client.PING_SECONDS", 0.01)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        await reader.read()  # pings, which nobody answers

    async with server(talk) as address:
        errors: list[str] = []
        client = await connect(address, errors=errors)
        lost = asyncio.Event()
        client.on_lost = lost.set

        await asyncio.wait_for(lost.wait(), 30)

        assert errors == ["the server does not answer any more"]
        with pytest.raises(Unavailable):
            client.publish("a", b"")


async def test_whoever_waits_is_told_at_once_when_the_server_vanishes() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        await reader.readline()

    async with server(talk) as address:
        client = await connect(address)
        with pytest.raises(Unavailable):
            await asyncio.wait_for(client.flush(), 30)
        assert client.lost


async def test_a_request_does_not_wait_for_a_server_that_has_hung_up_and_names_its_last_words() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        writer.write(b"-ERR 'Permissions Violation for Subscription to \"x\"'\r\n")  # of no account for what follows
        assert await reader.readline() == b"PING\r\n"
        writer.write(b"PONG\r\n")
        for _ in range(3):
            await reader.readline()
        writer.write(b"-ERR 'Stale Connection'\r\n")

    async with server(talk) as address:
        client = await connect(address)
        await client.flush()
        assert client.refusal == ""
        with pytest.raises(Unavailable, match="Stale Connection"):
            await client.request("ask", timeout=600)


async def test_a_request_that_nobody_answers_fails_in_time() -> None:
    answers = [b"", b"MSG {inbox} {number} 2\r\n{}\r\n", b"HMSG {inbox} {number} 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        for answer in answers:
            _, inbox, number = (await reader.readline()).split()
            await reader.readline()
            await reader.readline()
            writer.write(answer.replace(b"{inbox}", inbox).replace(b"{number}", number))
            assert await reader.readline() == b"UNSUB " + number + b"\r\n"

    async with server(talk) as address:
        client = await connect(address)
        with pytest.raises(TimeoutError):
            await client.request("ask", timeout=0.05)
        assert (await client.request("ask", timeout=30)).data == b"{}"
        with pytest.raises(NoRespondersError):
            await client.request("ask", timeout=30)


async def test_what_was_sent_before_the_end_of_a_subscription_is_heard() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        await reader.readline()
        assert await reader.readline() == b"UNSUB 1\r\n"
        writer.write(b"MSG a 1 4\r\nlate\r\n")
        assert await reader.readline() == b"PING\r\n"
        writer.write(b"PONG\r\n")
        await reader.read()

    async with server(talk) as address:
        client, heard = await connect(address), Heard()
        number = client.subscribe("a", heard)

        await client.drain(number)

        assert [body for *_, body in heard.messages] == [b"late"]
        await client.close(timeout_seconds=5)


async def test_what_the_server_does_not_take_is_waited_for_and_the_wait_ends_with_the_connection() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        await stop.wait()

    stop = asyncio.Event()
    async with server(talk) as address:
        client = await connect(address)
        while client.room is None:
            client.publish("a", bytes(1024 * 1024))

        stop.set()

        await asyncio.wait_for(asyncio.shield(client.room), 30)
        await until(lambda: client.lost)


async def test_a_connection_is_encrypted_if_the_address_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = own_certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await welcome(reader, writer)
        writer.write(b"PONG\r\n" if await reader.readline() == b"PING\r\n" else b"")
        await reader.read()

    async with server(talk, tls=context) as address:
        port = address.rpartition(":")[2]
        with pytest.raises(ssl.SSLError):
            await connect(f"tls://localhost:{port}")

        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        client = await connect(f"tls://localhost:{port}")
        await client.flush()
        await client.close(timeout_seconds=5)


def own_certificate(directory: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "certificate.pem", directory / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths
