"""Exchanges with servers that are not polite, behind proxies and TLS: sent once, and every failure told apart."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
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
from noetl_worker.application.outcome import OutcomeError
from noetl_worker.tools.http import TRANSPORT_ERRORS
from noetl_worker.tools.http_address import HttpAddress
from noetl_worker.tools.http_clients import HttpClients, HttpLimits, HttpOptions, HttpReply
from noetl_worker.tools.http_request import HttpRequest
from noetl_worker.tools.http_response import transport_outcome

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Answer = Callable[[bytes], bytes | None]


class Wire:
    """A server that answers with whatever bytes it is told, and keeps what it was sent."""

    def __init__(self, answer: Answer) -> None:
        self.url = ""
        self.answer = answer
        self.asked: list[bytes] = []
        self.connections = 0

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
                writer.write(said)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


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


@pytest.mark.parametrize("headers", [{"bad name": "x"}, {"x": "a\x01b"}, {"": "x"}])
async def test_headers_that_cannot_be_written_are_not(headers: dict[str, str]) -> None:
    async with wire() as server:
        error = await trouble(exchange(replace(request(server.url), headers=CIMultiDict(headers))))

    assert (error.code, server.asked) == ("TOOL_CONFIG", [])


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
