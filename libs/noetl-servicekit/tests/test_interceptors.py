import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import pytest
from noetl_contracts.channel import open_channel
from noetl_contracts.status import DETAILS_KEY, raising_noetl_errors
from noetl_core.errors import LeaseLost, NoetlError, NotAuthenticated, PlaybookInvalid, Problem
from noetl_servicekit.callers import call_fields, current_caller
from noetl_servicekit.env import Address
from noetl_servicekit.grpc_server import serve_grpc
from noetl_servicekit.health import Health
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.telemetry import GrpcServerMetrics
from noetl_servicekit.tokens import Tokens, token_sha256
from noetl_servicekit.tracing import Tracing, current_traceparent, span, start_tracing
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

SERVICE = "noetl.test.v1.Desk"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(slots=True, kw_only=True)
class Desk:
    """Does what its next instruction says, in methods of all four kinds."""

    act: Callable[[], None] = lambda: None
    seen: list[str] = field(default_factory=list)
    cleaned_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, request: bytes, context: Context) -> bytes:
        self.act()
        self.seen.append(current_caller().name)
        return request

    async def list(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            yield request
            self.act()
            self.seen.append(current_caller().name)
            yield request
        finally:
            self.seen.append(current_caller().name)
            self.cleaned_up.set()

    async def write(self, request: bytes, context: Context) -> None:
        await context.write(request)
        self.act()
        await context.write(request)

    async def collect(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        received = [request async for request in requests]
        self.act()
        self.seen.append(current_caller().name)
        return b"".join(received)

    async def talk(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        async for request in requests:
            self.act()
            self.seen.append(current_caller().name)
            yield request

    async def endless(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            while True:
                yield request * 100_000
        finally:
            self.seen.append(current_caller().name)
            self.cleaned_up.set()

    async def wait(self, request: bytes, context: Context) -> bytes:
        self.seen.append("waiting")
        try:
            await asyncio.Event().wait()
        finally:
            self.cleaned_up.set()
        return request

    def register(self, server: grpc.aio.Server) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Ask": grpc.unary_unary_rpc_method_handler(self.ask),
            "Wait": grpc.unary_unary_rpc_method_handler(self.wait),
            "List": grpc.unary_stream_rpc_method_handler(self.list),
            "Write": grpc.unary_stream_rpc_method_handler(self.write),
            "Endless": grpc.unary_stream_rpc_method_handler(self.endless),
            "Collect": grpc.stream_unary_rpc_method_handler(self.collect),
            "Talk": grpc.stream_stream_rpc_method_handler(self.talk),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


@pytest.fixture
async def desk() -> Desk:
    return Desk()


@pytest.fixture
def metrics() -> MetricSet:
    return MetricSet()


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def tracing(spans: InMemorySpanExporter) -> AsyncIterator[Tracing]:
    tracing = start_tracing(service="desk", instance="desk-0", exporters=[spans])
    yield tracing
    tracing.close()


@pytest.fixture
async def channel(desk: Desk, metrics: MetricSet, tracing: Tracing, tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    async with served(desk, metrics, tmp_path) as channel:
        yield channel


@asynccontextmanager
async def served(desk: Desk, metrics: MetricSet, tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    path = tmp_path / "tokens.json"
    ada = {"name": "ada", "tenant_id": "acme", "organization_id": "data", "role": "writer"}
    path.write_text(json.dumps({"tokens": [{**ada, "token_sha256": token_sha256("secret-a")}]}))
    async with (
        serve_grpc(
            Address(host="127.0.0.1", port=0),
            register=desk.register,
            service_names=[SERVICE],
            tokens=Tokens(path),
            metrics=GrpcServerMetrics(metrics),
            health=Health(),
            drain_seconds=1,
        ) as address,
        open_channel(str(address), token="secret-a", traceparent=lambda: TRACEPARENT) as channel,
    ):
        yield channel


def ask(channel: grpc.aio.Channel, method: str = "Ask") -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(f"/{SERVICE}/{method}")


def list_(channel: grpc.aio.Channel, method: str = "List") -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
    return channel.unary_stream(f"/{SERVICE}/{method}")


def collect(channel: grpc.aio.Channel) -> grpc.aio.StreamUnaryMultiCallable[bytes, bytes]:
    return channel.stream_unary(f"/{SERVICE}/Collect")


def talk(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    return channel.stream_stream(f"/{SERVICE}/Talk")


async def requests() -> AsyncIterator[bytes]:
    yield b"a"
    yield b"b"


async def call_every_kind(channel: grpc.aio.Channel) -> AsyncIterator[tuple[str, grpc.aio.AioRpcError | None]]:
    """Call the methods one after the other; what a call raised comes with its name."""

    async def unary() -> None:
        assert await ask(channel)(b"x") == b"x"

    async def generating() -> None:
        assert [answer async for answer in list_(channel)(b"x", timeout=30)] == [b"x", b"x"]

    async def writing() -> None:
        assert [answer async for answer in list_(channel, "Write")(b"x", timeout=30)] == [b"x", b"x"]

    async def collecting() -> None:
        assert await collect(channel)(requests(), timeout=30) == b"ab"

    async def talking() -> None:
        # One at a time: a client that still sends when the status arrives may report its own failed write instead.
        call = talk(channel)(timeout=30)
        for request in (b"a", b"b"):
            await call.write(request)
            assert await call.read() == request
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF

    for name, call in {
        "Ask": unary,
        "List": generating,
        "Write": writing,
        "Collect": collecting,
        "Talk": talking,
    }.items():
        try:
            await call()
        except grpc.aio.AioRpcError as exc:
            yield name, exc
        else:
            yield name, None


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)


def raise_error(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


async def test_methods_of_every_kind_know_their_caller(channel: grpc.aio.Channel, desk: Desk) -> None:
    failures = [failure async for _, failure in call_every_kind(channel)]

    assert failures == [None] * 5
    assert set(desk.seen) == {"ada"}


async def test_lines_of_the_log_say_whose_call_they_are_of_and_nothing_after_it(
    channel: grpc.aio.Channel, desk: Desk
) -> None:
    told: list[dict[str, str]] = []
    desk.act = lambda: told.append(call_fields())

    await ask(channel)(b"x")
    [answer async for answer in list_(channel)(b"x", timeout=30)]

    of_ada = {"caller": "ada", "tenant_id": "acme", "organization_id": "data"}
    assert told == [{"rpc_method": f"/{SERVICE}/{method}", **of_ada} for method in ("Ask", "List")]
    assert call_fields() == {}


async def test_where_nobody_keeps_spans_a_call_still_has_an_id_of_its_own_in_the_trace_of_its_caller(
    desk: Desk, metrics: MetricSet, tmp_path: Path
) -> None:
    told: list[str | None] = []
    desk.act = lambda: told.append(current_traceparent())

    async with served(desk, metrics, tmp_path) as channel:
        await ask(channel)(b"x")
        await ask(channel)(b"x")

    assert [TRACE_ID in (one or "") for one in told] == [True, True]
    assert len({TRACEPARENT, *told}) == 3
    assert current_traceparent() is None


async def test_nobody_gets_in_without_a_token_that_somebody_has(channel: grpc.aio.Channel, desk: Desk) -> None:
    for metadata in ((("authorization", "Bearer other"),), (("authorization", "secret-a"),)):
        with pytest.raises(NotAuthenticated), raising_noetl_errors():
            await ask(channel)(b"x", metadata=metadata)
        with pytest.raises(NotAuthenticated), raising_noetl_errors():
            [answer async for answer in list_(channel)(b"x", timeout=60, metadata=metadata)]

    assert desk.seen == []


async def test_our_errors_arrive_typed_from_methods_of_every_kind(channel: grpc.aio.Channel, desk: Desk) -> None:
    desk.act = raise_error(LeaseLost(command_id="c1", worker="ada", holder="bob"))

    async for name, failure in call_every_kind(channel):
        assert failure is not None, name
        assert failure.code() is grpc.StatusCode.FAILED_PRECONDITION, name
        with pytest.raises(LeaseLost) as refusal, raising_noetl_errors():
            raise failure
        assert refusal.value.facts == {"command_id": "c1", "holder": "bob"}


async def test_a_playbook_with_more_problems_than_trailers_hold_is_still_refused_properly(
    channel: grpc.aio.Channel, desk: Desk
) -> None:
    problem = Problem(code="step.unknown", message="ж" * 300, path="/workflow", line=3)
    desk.act = raise_error(PlaybookInvalid([problem] * 300))

    with pytest.raises(PlaybookInvalid) as refusal, raising_noetl_errors():
        await ask(channel)(b"x")

    assert refusal.value.problems[0] == problem
    assert int(refusal.value.facts["problems_omitted"]) + len(refusal.value.problems) == 300


async def test_an_error_of_any_size_fits_a_client_with_default_limits(
    channel: grpc.aio.Channel, desk: Desk, metrics: MetricSet, tmp_path: Path
) -> None:
    facts = {f"fact_{number}": "ж" * 10_000 for number in range(3)}
    desk.act = raise_error(NoetlError("ж" * 10_000, **facts))
    async with (
        serve_grpc(
            Address(host="127.0.0.1", port=0),
            register=desk.register,
            service_names=[SERVICE],
            tokens=Tokens(tmp_path / "tokens.json"),
            metrics=GrpcServerMetrics(MetricSet()),
            health=Health(),
        ) as address,
        grpc.aio.insecure_channel(str(address)) as plain,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await ask(plain)(b"x", metadata=(("authorization", "Bearer secret-a"),))

    assert failure.value.code() is grpc.StatusCode.INTERNAL
    assert failure.value.trailing_metadata().get(DETAILS_KEY) is not None


async def test_a_strangers_exception_is_logged_with_its_stack_and_not_shown(
    channel: grpc.aio.Channel, desk: Desk
) -> None:
    desk.act = raise_error(RuntimeError("the password is hunter2"))

    with capture_logs() as logs:
        async for name, failure in call_every_kind(channel):
            assert failure is not None, name
            assert failure.code() is grpc.StatusCode.INTERNAL, name
            assert "hunter2" not in repr(failure), name
            with pytest.raises(NoetlError) as refusal, raising_noetl_errors():
                raise failure
            assert (refusal.value.code, refusal.value.message) == ("internal", "internal error")
            assert refusal.value.facts == {"trace_id": TRACE_ID}

    failed = [line for line in logs if line["event"] == "rpc.failed"]
    assert len(failed) == 5
    assert all(line["error"] == "RuntimeError" and line["exc_info"].__traceback__ for line in failed)


async def test_every_call_is_counted_by_its_code(channel: grpc.aio.Channel, desk: Desk, metrics: MetricSet) -> None:
    method = f"/{SERVICE}/Ask"
    await ask(channel)(b"x")
    desk.act = raise_error(LeaseLost(command_id="c1", worker="ada", holder=None))
    with pytest.raises(grpc.aio.AioRpcError):
        await ask(channel)(b"x")
    with pytest.raises(grpc.aio.AioRpcError):
        await ask(channel)(b"x", metadata=(("authorization", "Bearer other"),))

    # The last thing that is counted, after the answer was sent.
    await until(lambda: metrics.value("noetl_grpc_server_handling_seconds_count", method=method) == 3)
    assert metrics.value("noetl_grpc_server_started_total", method=method) == 3
    for code in ("OK", "FAILED_PRECONDITION", "UNAUTHENTICATED"):
        assert metrics.value("noetl_grpc_server_handled_total", method=method, code=code) == 1
    assert metrics.value("noetl_grpc_server_in_flight_calls", method=method) == 0


async def test_a_method_that_sets_its_own_status_is_left_alone(
    metrics: MetricSet, tracing: Tracing, tmp_path: Path
) -> None:
    async def refuse(request: bytes, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "no more")

    def register(server: grpc.aio.Server) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Ask": grpc.unary_unary_rpc_method_handler(refuse)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    tokens = tmp_path / "tokens.json"
    bob = {"name": "bob", "tenant_id": "*", "organization_id": "*", "role": "service"}
    tokens.write_text(json.dumps({"tokens": [{**bob, "token_sha256": token_sha256("b")}]}))
    async with (
        serve_grpc(
            Address(host="127.0.0.1", port=0),
            register=register,
            service_names=[SERVICE],
            tokens=Tokens(tokens),
            metrics=GrpcServerMetrics(metrics),
            health=Health(),
        ) as address,
        open_channel(str(address), token="b") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await ask(channel)(b"x")

    assert (failure.value.code(), failure.value.details()) == (grpc.StatusCode.OUT_OF_RANGE, "no more")
    assert metrics.value("noetl_grpc_server_handled_total", method=f"/{SERVICE}/Ask", code="OUT_OF_RANGE") == 1


async def test_a_call_continues_the_trace_of_its_caller(
    channel: grpc.aio.Channel, desk: Desk, spans: InMemorySpanExporter
) -> None:
    inside: list[str | None] = []

    def act() -> None:
        with span("desk.work"):
            inside.append(current_traceparent())

    desk.act = act
    await ask(channel)(b"x")

    await until(lambda: len(spans.get_finished_spans()) == 2)  # the server's ends after the answer is sent
    work, server = spans.get_finished_spans()
    assert server.name == f"{SERVICE}/Ask"
    assert server.kind is SpanKind.SERVER
    assert server.context is not None
    assert server.parent is not None
    assert f"{server.context.trace_id:032x}" == TRACE_ID
    assert f"{server.parent.span_id:016x}" == "b7ad6b7169203331"
    assert server.attributes == {
        "rpc.system": "grpc",
        "rpc.service": SERVICE,
        "rpc.method": "Ask",
        "rpc.grpc.status_code": 0,
    }
    assert work.parent is not None
    assert work.parent.span_id == server.context.span_id
    assert inside[0] is not None
    assert inside[0].startswith(f"00-{TRACE_ID}-")


async def test_a_refusal_is_no_fault_of_the_server_in_its_trace_but_a_stranger_is(
    channel: grpc.aio.Channel, desk: Desk, spans: InMemorySpanExporter
) -> None:
    for error in (LeaseLost(command_id="c1", worker="ada", holder=None), RuntimeError("odd")):
        desk.act = raise_error(error)
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(channel)(b"x")

    await until(lambda: len(spans.get_finished_spans()) == 2)
    refused, failed = spans.get_finished_spans()
    assert refused.attributes is not None
    assert refused.attributes["rpc.grpc.status_code"] == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert refused.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR
    assert [event.name for event in failed.events] == ["exception"]


async def test_a_caller_that_hangs_up_in_the_middle_of_a_stream_leaves_nothing_behind(
    channel: grpc.aio.Channel, desk: Desk, metrics: MetricSet
) -> None:
    with capture_logs() as logs:
        call = list_(channel, "Endless")(b"x", timeout=60)
        async for _ in call:
            break
        call.cancel()
        await until(desk.cleaned_up.is_set)
        await until(lambda: metrics.value("noetl_grpc_server_in_flight_calls", method=f"/{SERVICE}/Endless") == 0)

    assert desk.seen == ["ada"]  # the caller was still known while the generator was closed
    assert metrics.value("noetl_grpc_server_handled_total", method=f"/{SERVICE}/Endless", code="CANCELLED") == 1
    assert [line for line in logs if line["log_level"] == "error"] == []


async def test_a_call_past_its_deadline_is_cancelled(channel: grpc.aio.Channel, desk: Desk, metrics: MetricSet) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await ask(channel, "Wait")(b"x", timeout=0.2)
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    method = f"/{SERVICE}/Wait"
    await until(desk.cleaned_up.is_set)
    await until(lambda: metrics.value("noetl_grpc_server_in_flight_calls", method=method) == 0)
    assert metrics.value("noetl_grpc_server_handled_total", method=method, code="CANCELLED") == 1


async def test_a_method_that_does_not_exist_is_unimplemented(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await ask(channel, "Nothing")(b"x")

    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
