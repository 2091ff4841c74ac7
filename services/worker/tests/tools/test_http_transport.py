"""Exchanges with servers that are not polite, behind proxies and TLS: sent once, and every failure told apart."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from multidict import CIMultiDict
from noetl_worker.application.known_secrets import KnownSecrets
from noetl_worker.application.outcome import ErrorKind, OutcomeError
from noetl_worker.tools.http import TRANSPORT_ERRORS
from noetl_worker.tools.http_address import HttpAddress
from noetl_worker.tools.http_clients import HttpClients, HttpLimits, HttpOptions, HttpReply
from noetl_worker.tools.http_exchange import LEFT_SECONDS, PLAIN_BODY_BYTES, PlainExchanges
from noetl_worker.tools.http_request import HttpRequest
from noetl_worker.tools.http_response import transport_outcome
from noetl_worker.tools.http_transport import Proxies

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Answer = Callable[[bytes], bytes | None]


class Wire:
    """A server that answers with whatever bytes it is told, and keeps what it was sent."""

    def __init__(self, answer: Answer) -> None:
        self.url = ""
        self.answer = answer
        self.asked: list[bytes] = []
        self.connections = 0
        self.ended = asyncio.Semaphore(0)
        self.pieces: list[bytes] = []
        """Of an answer that comes bit by bit."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(sizes[0].partition(b":")[2])) if sizes else b""
                self.asked.append(head + body)
                said = self.answer(head)
                if said is None:
                    return
                for piece in self.pieces or [said]:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.002 if self.pieces else 0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.ended.release()


@asynccontextmanager
async def wire(answer: Answer = lambda head: OK, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Wire]:
    one = Wire(answer)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0, ssl=tls, limit=2**24)
    async with server:
        one.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield one


def request(url: str, method: str = "GET", content: bytes | None = None, **headers: str) -> HttpRequest:
    return HttpRequest(method=method, url=HttpAddress.parse(url), headers=CIMultiDict(headers), content=content)


async def exchange(
    sent: HttpRequest, *, clients: HttpClients | None = None, verify_ssl: bool = True, follow_redirects: bool = False
) -> HttpReply:
    options = HttpOptions(timeout_seconds=20.0, verify_ssl=verify_ssl, follow_redirects=follow_redirects)
    if clients is not None:
        return await clients.exchange(sent, options, secrets=KnownSecrets())
    async with HttpClients() as own:
        return await own.exchange(sent, options, secrets=KnownSecrets())


async def trouble(exchanging: Awaitable[HttpReply]) -> OutcomeError:
    try:
        reply = await exchanging
    except TRANSPORT_ERRORS as exc:
        error = transport_outcome(exc, timeout_seconds=20.0).error
        assert error is not None
        return error
    raise AssertionError(f"answered {reply.status_code}")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
async def test_a_request_is_sent_once_whatever_becomes_of_it(method: str) -> None:
    async with wire(lambda head: None) as server:
        error = await trouble(exchange(request(server.url, method)))

    assert (error.code, error.retryable) == ("CONN_LOST", True)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"not a response at all\r\n\r\n",
    ],
)
async def test_what_is_no_whole_response_is_a_lost_connection(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        error = await trouble(exchange(request(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")))

    assert (error.code, error.retryable) == ("CONN_LOST", True)


async def test_connections_are_used_again_one_after_the_other() -> None:
    async with wire() as server, HttpClients() as clients:
        for _ in range(5):
            assert (await exchange(request(server.url), clients=clients)).content == b"ok"

    assert (len(server.asked), server.connections) == (5, 1)


async def test_what_an_address_has_stays_as_it_is_written() -> None:
    async with wire() as server:
        await exchange(request(f"{server.url}/a%2Fb/c d?q=a+b%20c&s=%7E;x={{}}|#part"))

    assert server.asked[0].split(b" ")[1] == b"/a%2Fb/c%20d?q=a+b%20c&s=%7E;x={}|"


async def test_a_password_in_the_address_wins_over_a_header() -> None:
    async with wire() as server:
        await exchange(request(server.url.replace("//", "//ada:x%40y@"), authorization="Bearer t"))

    lines = [line for line in server.asked[0].split(b"\r\n") if line.lower().startswith(b"authorization")]
    assert lines == [b"Authorization: Basic " + base64.b64encode(b"ada:x@y")]


async def test_what_is_sent_besides() -> None:
    async with wire() as server:
        await exchange(request(server.url, "POST", b"x" * 1_500_000, host="elsewhere"))
        await exchange(request(server.url, "POST"))

    first, second = server.asked
    head = {name.lower(): value for name, _, value in (line.partition(b": ") for line in first.split(b"\r\n")[1:-1])}
    assert (head[b"host"], head[b"content-length"], head[b"user-agent"]) == (b"elsewhere", b"1500000", b"noetl-worker")
    assert (head[b"accept"], b"gzip" in head[b"accept-encoding"], b"content-type" in head) == (b"*/*", True, False)
    assert b"content-length: 0" in second.lower()


async def test_headers_of_a_response_are_text_by_their_names_in_lower_case() -> None:
    said = "HTTP/1.1 200 Fine\r\nX-One: a\r\nx-one: b\r\nX-Utf: é\r\nContent-Length: 0\r\n".encode()
    async with wire(lambda head: said + b"X-Latin: \xe9\r\nX-Long: " + b"l" * 50_000 + b"\r\n\r\n") as server:
        reply = await exchange(request(server.url))

    assert (reply.status_code, reply.reason) == (200, "Fine")
    assert (reply.headers["x-one"], reply.headers["x-utf"], reply.headers["x-latin"]) == ("a, b", "é", "é")
    assert len(reply.headers["x-long"]) == 50_000


@pytest.mark.parametrize(
    "headers",
    [
        *({"bad name": "x"}, {"x": "a\x01b"}, {"": "x"}, {"Transfer-Encoding": "identity"}, {"content-length": "1"}),
        *({name: "x"} for name in ("Connection", "Upgrade", "TE", "Trailer", "Proxy-Connection")),
    ],
)
async def test_headers_that_cannot_be_written_are_not(headers: dict[str, str]) -> None:
    async with wire() as server:
        error = await trouble(exchange(request(server.url)._replace(headers=CIMultiDict(headers))))

    assert (error.kind, error.code, server.asked) == (ErrorKind.SCHEMA, "TOOL_CONFIG", [])


async def test_how_long_a_connection_is_to_stay_is_left_to_the_client() -> None:
    said = {"Connection": "Keep-Alive", "Keep-Alive": "timeout=5", "proxy-connection": "close"}
    async with wire() as server:
        await exchange(request(server.url)._replace(headers=CIMultiDict(said)))
        await exchange(request(server.url)._replace(headers=CIMultiDict({"connection": " close "})))

    assert [b"timeout=5" in asked or b"close" in asked for asked in server.asked] == [False, False]


async def test_the_length_of_a_body_may_be_said_as_it_is() -> None:
    async with wire() as server:
        await exchange(request(server.url, "POST", b"four", **{"content-length": "4"}))
        await exchange(request(server.url, "GET", None, **{"content-length": "0"}))
        error = await trouble(exchange(request(server.url, "POST", b"four", **{"content-length": "44"})))

    assert [asked.lower().count(b"content-length: 4\r\n") for asked in server.asked] == [1, 0]
    assert (error.code, "content-length" in error.message) == ("TOOL_CONFIG", True)


async def test_a_body_is_never_a_request_that_somebody_else_gets_the_answer_to() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                sizes = [line.partition(b":")[2] for line in head.split(b"\r\n") if line.startswith(b"content-length")]
                if b"transfer-encoding: chunked" in head:  # as RFC 9112 has it, this one wins
                    await reader.readuntil(b"0\r\n\r\n")
                elif sizes:
                    await reader.readexactly(int(sizes[0]))
                path = head.split(b" ")[1]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(path), path))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    smuggled = b"0\r\n\r\nGET /of-the-first HTTP/1.1\r\nHost: h\r\n\r\n"
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, HttpClients() as clients:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        first = request(f"{url}/first", "POST", smuggled, **{"transfer-encoding": "chunked"})
        error = await trouble(exchange(first, clients=clients))
        plain = await exchange(request(f"{url}/first", "POST", smuggled), clients=clients)
        second = await exchange(request(f"{url}/second"), clients=clients)

    assert (error.kind, error.code) == (ErrorKind.SCHEMA, "TOOL_CONFIG")
    assert (plain.content, second.content) == (b"/first", b"/second")


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "POST", "GET"),
        (301, "PUT", "PUT"),
        (302, "PUT", "GET"),
        (302, "HEAD", "HEAD"),
        (303, "DELETE", "GET"),
        (307, "POST", "POST"),
        (308, "PUT", "PUT"),
    ],
)
async def test_the_method_after_a_redirect(status: int, method: str, then: str) -> None:
    def answer(head: bytes) -> bytes:
        if b" /there " in head:
            return b"HTTP/1.1 204 No Content\r\n\r\n"
        return b"HTTP/1.1 %d Go\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n" % status

    async with wire(answer) as server:
        reply = await exchange(request(f"{server.url}/here", method), follow_redirects=True)

    assert [asked.split(b" ")[0].decode() for asked in server.asked] == [method, then]
    assert reply.url.without_caller() == f"{server.url}/there"


@pytest.mark.parametrize(
    ("location", "shown"), [("/there", b"ada:x"), ("//eve:y@{host}/there", b"eve:y"), ("//localhost:1/", None)]
)
async def test_who_asks_stays_the_same_after_a_redirect_to_the_same_server(location: str, shown: bytes | None) -> None:
    def answer(head: bytes) -> bytes:
        there = location.format(host=server.url.removeprefix("http://")).encode()
        return OK if b" /there " in head else b"HTTP/1.1 302 Go\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % there

    async with wire(answer) as server:
        asking = exchange(request(server.url.replace("//", "//ada:x@")), follow_redirects=True)
        if shown is None:
            assert (await trouble(asking)).code == "CONN_REFUSED"
        else:
            assert (await asking).content == b"ok"
            assert b"Authorization: Basic " + base64.b64encode(shown) in server.asked[1]
    assert b"Authorization: Basic " + base64.b64encode(b"ada:x") in server.asked[0]


@pytest.mark.parametrize("encoding", ["br", "zstd"])
async def test_an_encoding_that_nobody_asked_for_is_not_tried_again(encoding: str) -> None:
    said = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: 4\r\n\r\nxxxx".encode()
    async with wire(lambda head: said) as server:
        error = await trouble(exchange(request(server.url)))

    assert (error.code, error.retryable, "nstall" in error.message) == ("HTTP_UNDECODABLE", False, False)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 hunter2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nhunter2 : x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: hunter2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhunter2\r\n",
    ],
)
async def test_what_is_wrong_with_a_response_is_not_quoted(said: bytes) -> None:
    async with wire(lambda head: said) as server:
        error = await trouble(exchange(request(server.url)))

    assert (error.code, "hunter2" in error.message) == ("CONN_LOST", False)


async def test_a_redirect_to_something_else_than_http_is_not_followed() -> None:
    said = b"HTTP/1.1 302 Go\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"
    async with wire(lambda head: said) as server:
        error = await trouble(exchange(request(server.url), follow_redirects=True))

    assert error.code == "TOOL_CONFIG"


async def test_a_body_that_never_ends_is_a_timeout() -> None:
    release = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await release.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, HttpClients() as clients:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        options = HttpOptions(timeout_seconds=0.1)
        error = await trouble(clients.exchange(request(url), options, secrets=KnownSecrets()))
        release.set()

    assert error.code == "TIMEOUT"


def spoken(asked: bytes) -> tuple[bytes, frozenset[bytes], bytes]:
    """The first line of a request, its headers, whose order and capitals mean nothing, and its body."""
    head, _, body = asked.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    named = (line.partition(b": ") for line in lines)
    assert len(lines) == len({line.partition(b": ")[0].lower() for line in lines})
    return first, frozenset(name.lower() + b": " + value for name, _, value in named), body


@pytest.mark.parametrize(
    ("path", "method", "content", "headers"),
    [
        ("", "GET", None, {}),
        ("/a%2Fb/c d?q=a+b%20c&s=%7E;x={}|#part", "GET", None, {}),
        ("/a?", "HEAD", None, {"x-one": "1", "X-Two": "é"}),
        ("/?x=1", "POST", None, {}),
        ("/", "POST", b"", {"Content-Type": "text/plain"}),
        ("/", "PUT", b"body", {"user-agent": "ours", "accept": "text/html", "Accept-Encoding": "identity"}),
        ("/", "DELETE", None, {"host": "elsewhere", "content-length": "0"}),
        ("/", "GET", b"searched for", {"Authorization": "Bearer t"}),
        ("/", "OPTIONS", None, {"Connection": "close", "Keep-Alive": "timeout=5"}),
    ],
)
async def test_plain_requests_say_what_the_client_itself_would_say(
    path: str, method: str, content: bytes | None, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(head: bytes) -> bytes:
        return OK.removesuffix(b"ok") if head.startswith(b"HEAD ") else OK

    async with wire(answer) as server, HttpClients() as clients:
        for is_plain in (True, False):
            monkeypatch.setattr(PlainExchanges, "takes", lambda *_, is_plain=is_plain: is_plain)
            await exchange(
                request(f"{server.url}{path}", method, content)._replace(headers=CIMultiDict(headers)), clients=clients
            )

    plain, general = server.asked
    assert spoken(plain) == spoken(general)


async def test_what_waits_for_a_permission_is_not_plain() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.05)
        early.append(bool(reader._buffer))  # type: ignore[attr-defined]  # a body that came unasked
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(4)
        writer.write(OK)
        writer.close()

    early: list[bool] = []
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        reply = await exchange(request(url, "POST", b"body", expect="100-continue"))

    assert (reply.content, early) == (b"ok", [False])


async def test_what_is_said_before_the_response_is_not_taken_for_it() -> None:
    said = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + OK
    async with wire(lambda head: said) as server, HttpClients() as clients:
        replies = [await exchange(request(server.url), clients=clients) for _ in range(2)]

    assert [(one.status_code, one.content) for one in replies] == [(200, b"ok")] * 2
    assert server.connections == 1


async def test_a_connection_whose_body_was_not_read_to_its_end_is_not_used_again() -> None:
    said = b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000
    async with wire(lambda head: said) as server, HttpClients(HttpLimits(max_response_bytes=1000)) as clients:
        cut = await exchange(request(server.url), clients=clients)
        async with clients.stream(
            request(server.url), HttpOptions(timeout_seconds=20.0), secrets=KnownSecrets()
        ) as unread:
            assert unread.status_code == 200
        server.answer = lambda head: OK
        last = await exchange(request(server.url), clients=clients)

    assert (len(cut.content), cut.is_complete, last.content) == (1000, False, b"ok")


# --- proxies ------------------------------------------------------------------------------------------------


async def test_a_proxy_of_the_environment_is_used_unless_it_is_to_be_passed_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with wire() as server, wire(lambda head: OK.replace(b"ok", b"by")) as proxy:
        for variable in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(variable, raising=False)
            monkeypatch.delenv(variable.upper(), raising=False)
        monkeypatch.setenv("ALL_PROXY", proxy.url.replace("//", "//me:pass@"))
        through = await exchange(request("http://not-resolved-here.invalid/a?b"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        direct = await exchange(request(server.url))
        async with HttpClients(HttpLimits(trust_environment=False)) as clients:
            monkeypatch.delenv("NO_PROXY")
            untrusting = await exchange(request(server.url), clients=clients)

    assert (through.content, direct.content, untrusting.content) == (b"by", b"ok", b"ok")
    assert proxy.asked[0].startswith(b"GET http://not-resolved-here.invalid/a?b HTTP/1.1")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:pass") in proxy.asked[0]


@pytest.mark.parametrize(
    ("excepted", "is_passed_by"),
    [
        *(("*", True), ("a.example", True), (".Example", True), ("b.example, example", True), ("a.example:81", True)),
        *(("", False), (",", False), ("xample", False), ("b.a.example", False), ("a.example:80", False)),
    ],
)
def test_whom_no_proxy_excepts(excepted: str, *, is_passed_by: bool) -> None:
    proxies = Proxies(by_scheme={"all": "http://proxy", "no": excepted})

    assert (proxies.of(HttpAddress.parse("http://A.example:81/")) is None) == is_passed_by


async def test_a_proxy_is_asked_for_a_tunnel_to_a_server_with_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n"
    async with wire(lambda head: refusal) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//me:pass@"))
        error = await trouble(exchange(request("https://not-resolved-here.invalid/")))

    assert (error.code, "407" in error.message) == ("CONN_ERROR", True)
    assert proxy.asked[0].startswith(b"CONNECT not-resolved-here.invalid:443 HTTP/1.1")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:pass") in proxy.asked[0]


async def test_passwords_of_the_workers_own_files_are_sent_to_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    async with wire() as server:
        await exchange(request(server.url))

    assert b"authorization" not in server.asked[0].lower()


# --- TLS ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate that signs itself, for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    file.write_bytes(secret + signed.public_bytes(serialization.Encoding.PEM))
    return file


async def test_certificates_are_checked_unless_the_step_says_otherwise(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    async with wire(tls=context) as server:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        error = await trouble(exchange(request(server.url)))
        unchecked = await exchange(request(server.url), verify_ssl=False)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        trusted = await exchange(request(server.url))

    assert (error.code, error.retryable) == ("TLS_ERROR", False)
    assert "not trusted" in error.message
    assert (unchecked.content, trusted.content) == (b"ok", b"ok")


# --- idle connections ---------------------------------------------------------------------------------------


@contextmanager
def polite_once(tls: ssl.SSLContext | None, then: bytes) -> Iterator[tuple[str, Callable[[], None]]]:
    """A server in threads of its own; the first connection gets one answer and, when that is asked for, its end.

    When the function that comes with its address returns, the end has been said, whether or not anybody has read it.
    """
    ending, done = threading.Event(), threading.Event()

    def answer(one: socket.socket) -> None:
        while not (head := one.recv(65_536)).endswith(b"\r\n\r\n"):
            assert head
        one.sendall(OK)

    def serve() -> None:
        with taken() as first:
            answer(first)
            ending.wait(60)
            if then:
                first.sendall(then)
            else:
                first.shutdown(socket.SHUT_WR)
            done.set()
            with taken() as second:
                answer(second)

    def taken() -> socket.socket:
        plain = listening.accept()[0]
        plain.settimeout(60)
        return plain if tls is None else tls.wrap_socket(plain, server_side=True)

    def end() -> None:
        ending.set()
        assert done.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http{'s' if tls else ''}://127.0.0.1:{listening.getsockname()[1]}", end
        ending.set()
        thread.join(60)


@pytest.mark.parametrize("loop_turns", [0, 3])
@pytest.mark.parametrize("then", [b"", OK.replace(b"ok", b"no")], ids=["hangs up", "speaks unasked"])
@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
async def test_an_idle_connection_on_which_something_happened_is_not_used_again(
    certificate: Path, then: bytes, *, is_tls: bool, loop_turns: int
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    with polite_once(context if is_tls else None, then) as (url, end):
        async with HttpClients() as clients:
            first = await exchange(request(url), clients=clients, verify_ssl=False)
            end()  # which keeps the event loop from looking
            for _ in range(loop_turns):
                await asyncio.sleep(0)
            second = await exchange(request(url), clients=clients, verify_ssl=False)

    assert (first.content, second.content) == (b"ok", b"ok")


async def test_a_connection_that_was_left_to_others_is_used_again_later_as_well() -> None:
    async with wire() as server, HttpClients() as clients:
        await exchange(request(server.url), clients=clients)
        await asyncio.sleep(LEFT_SECONDS * 1.5)
        await exchange(request(server.url), clients=clients)
        await exchange(request(server.url, content=b"x" * (PLAIN_BODY_BYTES + 1)), clients=clients)  # by the session

    assert (len(server.asked), server.connections) == (3, 1)


async def test_nobody_waits_for_a_connection_that_nobody_uses() -> None:
    async with wire() as one, wire() as other, HttpClients(HttpLimits(max_connections=1)) as clients:
        async with asyncio.timeout(20.0):
            for server in (one, other, one):
                assert (await exchange(request(server.url), clients=clients)).content == b"ok"
            large = request(other.url, content=b"x" * (PLAIN_BODY_BYTES + 1))
            assert (await exchange(large, clients=clients)).content == b"ok"
            several = [exchange(request(server.url), clients=clients) for server in (one, other) * 4]
            assert [reply.content for reply in await asyncio.gather(*several)] == [b"ok"] * 8


@pytest.mark.parametrize("pieces", [1, 2, 3, len(OK)])
async def test_an_answer_may_come_in_pieces(pieces: int) -> None:
    size = -(-len(OK) // pieces)
    async with wire() as server, HttpClients() as clients:
        server.pieces = [OK[start : start + size] for start in range(0, len(OK), size)]
        replies = [await exchange(request(server.url), clients=clients) for _ in range(3)]

    assert [(reply.status_code, reply.reason, reply.content) for reply in replies] == [(200, "OK", b"ok")] * 3
    assert [reply.headers for reply in replies] == [{"content-length": "2"}] * 3
    assert server.connections == 1


async def test_more_than_an_answer_costs_the_connection() -> None:
    async with wire(lambda head: OK + OK.replace(b"ok", b"no")) as server, HttpClients() as clients:
        replies = [await exchange(request(server.url), clients=clients) for _ in range(3)]
        async with asyncio.timeout(20.0):
            for _ in range(3):
                await server.ended.acquire()

    assert [reply.content for reply in replies] == [b"ok"] * 3
    assert server.connections == 3


async def test_whoever_is_cancelled_takes_no_answer_from_others() -> None:
    begun = asyncio.Event()

    def answer(head: bytes) -> bytes:
        if b"/slow" not in head:
            return OK
        begun.set()
        return b""  # nothing, for now

    async with wire(answer) as server, HttpClients() as clients:
        await exchange(request(server.url), clients=clients)
        slow = asyncio.create_task(exchange(request(f"{server.url}/slow"), clients=clients))
        await begun.wait()
        slow.cancel()
        await asyncio.wait([slow])
        assert (await exchange(request(server.url), clients=clients)).content == b"ok"

    assert (slow.cancelled(), server.connections) == (True, 2)


async def test_who_asks_again_at_once_does_not_keep_others_from_the_only_connection() -> None:
    async with wire() as one, wire() as other, HttpClients(HttpLimits(max_connections=1)) as clients:
        waiting = asyncio.create_task(exchange(request(other.url), clients=clients))
        async with asyncio.timeout(20.0):
            while not waiting.done():
                await exchange(request(one.url), clients=clients)

        assert (await waiting).content == b"ok"
