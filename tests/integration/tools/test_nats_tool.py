"""nats steps against a real server: keys, objects, messages, and servers that are away or do not like us."""

import asyncio
import base64
import json
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import nats
import pytest
from nats.js.api import KeyValueConfig
from noetl_core.canonical import JsonValue
from noetl_testkit.backends import NatsBackend, embedded_nats
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.nats import NatsTool
from noetl_worker.tools.nats_connections import NatsConnections, NatsLimits
from noetl_worker.tools.shared_resources import SharingLimits


class Names:
    """Buckets and a stream of this test's own."""

    def __init__(self) -> None:
        suffix = secrets.token_hex(4)
        self.bucket = f"kv_{suffix}"
        self.objects = f"ob_{suffix}"
        self.stream = f"st_{suffix}"
        self.subject = f"tool.{suffix}.orders"


@pytest.fixture
async def names(nats_server: NatsBackend) -> AsyncIterator[Names]:
    names = Names()
    client = await nats.connect(nats_server.url)
    js = client.jetstream()
    await js.create_key_value(KeyValueConfig(bucket=names.bucket))
    await js.create_object_store(names.objects)
    await js.add_stream(name=names.stream, subjects=[names.subject])
    yield names
    await js.delete_key_value(names.bucket)
    await js.delete_object_store(names.objects)
    await js.delete_stream(names.stream)
    await client.close()


@pytest.fixture
def credentials(nats_server: NatsBackend) -> InMemoryToolCredentials:
    stored = InMemoryToolCredentials()
    stored.add("bus", "nats", {"nats_url": nats_server.url})
    stored.add("bus", "nats", {"url": nats_server.url}, tenant_id="else")
    return stored


@pytest.fixture
async def connections() -> AsyncIterator[NatsConnections]:
    async with NatsConnections(NatsLimits(max_value_bytes=200_000, max_names=50)) as connections:
        yield connections


@pytest.fixture
def tool(connections: NatsConnections, credentials: InMemoryToolCredentials) -> NatsTool:
    return NatsTool(connections, credentials)


def call(
    operation: JsonValue,
    *,
    auth: JsonValue = "bus",
    tenant_id: str = "default",
    timeout_seconds: float | None = 30.0,
    idempotency_key: str | None = None,
    inputs: Mapping[str, JsonValue] | None = None,
    **config: JsonValue,
) -> ToolCall:
    return ToolCall(
        tenant_id=tenant_id,
        organization_id="default",
        execution_id=1,
        step="s",
        kind="nats",
        config={"operation": operation, **config},
        input=inputs or {},
        auth=auth,
        names={} if idempotency_key is None else {"idempotency_key": idempotency_key},
        timeout_seconds=timeout_seconds,
    )


def data(outcome: Outcome) -> dict[str, Any]:
    assert outcome.error is None, outcome.error
    assert isinstance(outcome.data, dict)
    return outcome.data


def failure(outcome: Outcome) -> tuple[ErrorKind, str, bool]:
    assert outcome.error is not None, outcome.data
    return outcome.error.kind, outcome.error.code, outcome.error.retryable


# --- keys and values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["text", "", {"a": [1, None]}, [1], 5, True, None, "é", 1.5])
async def test_what_is_put_can_be_got(tool: NatsTool, names: Names, value: JsonValue) -> None:
    put = await tool.run(call("kv_put", bucket=names.bucket, key="a.b", value=value))
    got = await tool.run(call("kv_get", bucket=names.bucket, key="a.b"))

    assert data(put) == {"status": "success", "bucket": names.bucket, "key": "a.b", "revision": 1}
    assert data(got) == {"status": "success", "bucket": names.bucket, "key": "a.b", "value": value, "revision": 1}


async def test_a_key_that_is_not_there_is_not_found_and_no_error(tool: NatsTool, names: Names) -> None:
    missing = {"status": "not_found", "bucket": names.bucket, "key": "nothing"}

    assert data(await tool.run(call("kv_get", bucket=names.bucket, key="nothing"))) == {**missing, "value": None}
    assert data(await tool.run(call("kv_delete", bucket=names.bucket, key="nothing"))) == missing


@pytest.mark.parametrize("operation", ["kv_delete", "kv_purge"])
async def test_what_is_deleted_is_gone(tool: NatsTool, names: Names, operation: str) -> None:
    await tool.run(call("kv_put", bucket=names.bucket, key="k", value="v"))

    assert data(await tool.run(call(operation, bucket=names.bucket, key="k")))["status"] == "success"
    assert data(await tool.run(call("kv_get", bucket=names.bucket, key="k")))["status"] == "not_found"


async def test_keys_are_listed(tool: NatsTool, names: Names) -> None:
    empty = await tool.run(call("kv_keys", bucket=names.bucket))
    for key in ("orders.2", "orders.1", "users.1"):
        await tool.run(call("kv_put", bucket=names.bucket, key=key, value=1))

    assert data(empty) == {"status": "success", "bucket": names.bucket, "keys": [], "count": 0}
    assert data(await tool.run(call("kv_keys", bucket=names.bucket)))["keys"] == ["orders.1", "orders.2", "users.1"]
    some = data(await tool.run(call("kv_keys", bucket=names.bucket, pattern="orders.*")))
    assert (some["keys"], some["count"]) == (["orders.1", "orders.2"], 2)


async def test_more_names_than_allowed_are_refused(tool: NatsTool, names: Names) -> None:
    puts = [call("kv_put", bucket=names.bucket, key=f"k{number}", value=1) for number in range(51)]
    await asyncio.gather(*(tool.run(put) for put in puts))

    outcome = await tool.run(call("kv_keys", bucket=names.bucket))

    assert failure(outcome) == (ErrorKind.STORAGE_QUOTA, "RESULT_TOO_LARGE", False)


async def test_bytes_travel_as_base64(tool: NatsTool, names: Names) -> None:
    raw = base64.b64encode(b"\xff\x00").decode()

    await tool.run(call("kv_put", bucket=names.bucket, key="k", value=raw, encoding="base64"))

    got = data(await tool.run(call("kv_get", bucket=names.bucket, key="k")))
    assert (got["value"], got["encoding"]) == (raw, "base64")


# --- objects ------------------------------------------------------------------------------------------------


async def test_objects_are_put_got_listed_and_deleted(tool: NatsTool, names: Names) -> None:
    large = "x" * 150_000
    put = data(await tool.run(call("object_put", bucket=names.objects, key="a/large.txt", data=large)))
    await tool.run(call("object_put", bucket=names.objects, key="small.json", value={"a": 1}))

    assert (put["status"], put["size"]) == ("success", 150_000)
    got = data(await tool.run(call("object_get", bucket=names.objects, key="a/large.txt")))
    assert (got["data"], got["size"]) == (large, 150_000)
    assert data(await tool.run(call("object_get", bucket=names.objects, key="small.json")))["data"] == {"a": 1}
    assert data(await tool.run(call("object_info", bucket=names.objects, key="small.json")))["size"] == 7
    listed = data(await tool.run(call("object_list", bucket=names.objects)))
    assert [one["name"] for one in listed["objects"]] == ["a/large.txt", "small.json"]
    deleted = await tool.run(call("object_delete", bucket=names.objects, key="small.json"))
    assert data(deleted)["status"] == "success"
    assert data(await tool.run(call("object_list", bucket=names.objects)))["count"] == 1


@pytest.mark.parametrize("operation", ["object_get", "object_info", "object_delete"])
async def test_an_object_that_is_not_there_is_not_found(tool: NatsTool, names: Names, operation: str) -> None:
    assert data(await tool.run(call(operation, bucket=names.objects, key="nothing")))["status"] == "not_found"


async def test_no_objects_are_an_empty_list(tool: NatsTool, names: Names) -> None:
    assert data(await tool.run(call("object_list", bucket=names.objects)))["objects"] == []


async def test_an_object_larger_than_allowed_is_not_loaded(tool: NatsTool, names: Names) -> None:
    await tool.run(call("object_put", bucket=names.objects, key="huge", data="x" * 250_000))

    outcome = await tool.run(call("object_get", bucket=names.objects, key="huge"))

    assert failure(outcome) == (ErrorKind.STORAGE_QUOTA, "RESULT_TOO_LARGE", False)


# --- messages -----------------------------------------------------------------------------------------------


async def test_messages_are_published_and_read(tool: NatsTool, names: Names) -> None:
    message: JsonValue = {"order": 1}
    published = await tool.run(call("js_publish", subject=names.subject, data=message, headers={"X-Kind": "new"}))

    assert data(published) == {
        "status": "success",
        "stream": names.stream,
        "subject": names.subject,
        "seq": 1,
        "duplicate": False,
    }
    by_sequence = data(await tool.run(call("js_get", stream=names.stream, inputs={"seq": 1})))
    by_subject = data(await tool.run(call("js_get_msg", stream=names.stream, subject=names.subject)))
    assert by_sequence == by_subject
    assert (by_sequence["data"], by_sequence["headers"]["X-Kind"], by_sequence["seq"]) == (message, "new", 1)
    assert data(await tool.run(call("js_get", stream=names.stream, seq=9)))["status"] == "not_found"
    info = data(await tool.run(call("js_stream_info", stream=names.stream)))
    assert (info["messages"], info["last_seq"], info["subjects"]) == (1, 1, [names.subject])


async def test_a_repeated_call_publishes_once(tool: NatsTool, names: Names) -> None:
    again = call("js_publish", subject=names.subject, data="x", idempotency_key="call-1")

    first, second = data(await tool.run(again)), data(await tool.run(again))

    assert (first["duplicate"], second["duplicate"], second["seq"]) == (False, True, 1)


# --- failures -----------------------------------------------------------------------------------------------


async def test_what_is_missing_on_the_server_is_not_found(tool: NatsTool, names: Names) -> None:
    outcomes = {
        "NATS_BUCKET_NOT_FOUND": call("kv_get", bucket="nowhere", key="k"),
        "NATS_NO_STREAM": call("js_publish", subject=f"{names.subject}.nobody", data="x"),
        "NATS_10059": call("js_stream_info", stream="nowhere"),
    }
    for code, asked in outcomes.items():
        assert failure(await tool.run(asked)) == (ErrorKind.NOT_FOUND, code, False)


@pytest.mark.parametrize(
    ("operation", "config"),
    [
        (None, {}),
        ("kv_steal", {}),
        ("kv_get", {"bucket": "b"}),
        ("kv_put", {"bucket": "b", "key": "k"}),
        ("js_get", {"stream": "s"}),
        ("js_get", {"stream": "s", "seq": "first"}),
        ("kv_put", {"bucket": "b", "key": "k", "value": "%", "encoding": "base64"}),
        ("kv_get", {"bucket": "b", "key": {"a": 1}}),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused(
    tool: NatsTool, names: Names, operation: JsonValue, config: dict[str, JsonValue]
) -> None:
    own: dict[str, JsonValue] = {"bucket": names.bucket, "stream": names.stream}
    written = {key: own.get(key, value) for key, value in config.items()}

    outcome = await tool.run(replace(call(None), config={"operation": operation, **written}))

    assert failure(outcome) == (ErrorKind.SCHEMA, "TOOL_CONFIG", False)


async def test_a_name_that_no_key_can_have_is_refused(tool: NatsTool, names: Names) -> None:
    outcome = await tool.run(call("kv_get", bucket=names.bucket, key="not a key"))

    assert failure(outcome) == (ErrorKind.SCHEMA, "NATS_INVALID_NAME", False)


@pytest.mark.parametrize(("auth", "code"), [(None, "AUTH_MISSING"), ("nobody", "CREDENTIAL_NOT_FOUND")])
async def test_without_a_credential_no_server_is_asked(tool: NatsTool, auth: JsonValue, code: str) -> None:
    assert failure(await tool.run(call("kv_keys", bucket="b", auth=auth))) == (ErrorKind.AUTH, code, False)


async def test_a_credential_without_an_address_does_not_fit(
    tool: NatsTool, credentials: InMemoryToolCredentials
) -> None:
    credentials.add("empty", "nats", {"user": "ada"})

    assert failure(await tool.run(call("kv_keys", bucket="b", auth="empty")))[1] == "CREDENTIAL_UNFIT"


async def test_a_server_that_is_not_there_may_be_later(tool: NatsTool, credentials: InMemoryToolCredentials) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        credentials.add("gone", "nats", {"host": "127.0.0.1", "port": taken.getsockname()[1]})

        outcome = await tool.run(call("kv_keys", bucket="b", auth="gone"))

    assert failure(outcome) == (ErrorKind.CONNECTION, "CONN_REFUSED", True)


async def test_a_server_that_never_answers_is_a_timeout(tool: NatsTool, credentials: InMemoryToolCredentials) -> None:
    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silence, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        credentials.add("silent", "nats", {"url": f"nats://127.0.0.1:{port}"})
        outcome = await tool.run(call("kv_keys", bucket="b", auth="silent", timeout_seconds=0.3))

    assert failure(outcome) == (ErrorKind.TIMEOUT, "TIMEOUT", True)


async def test_a_server_that_does_not_let_us_in_is_an_auth_error_without_the_password(
    connections: NatsConnections,
) -> None:
    stored = InMemoryToolCredentials()
    tool = NatsTool(connections, stored)
    with embedded_nats() as server:
        address = server.url.rpartition("@")[2]
        stored.add("token", "nats", {"url": f"nats://{address}", "token": "not-the-token"})
        stored.add("user", "nats", {"url": f"nats://{address}", "user": "ada", "password": "not-the-password"})
        stored.add("in_url", "nats", {"url": f"nats://not-the-token@{address}"})
        stored.add("none", "nats", {"url": f"nats://{address}"})
        wrong = ("token", "user", "in_url", "none")
        outcomes = [await tool.run(call("kv_keys", bucket="b", auth=name)) for name in wrong]
        stored.add("right", "nats", {"url": f"nats://{address}", "token": urlsplit(server.url).username})
        right = await tool.run(call("kv_keys", bucket="b", auth="right"))

    for outcome in outcomes:
        assert failure(outcome) == (ErrorKind.AUTH, "NATS_AUTH", False)
        assert "not-the" not in json.dumps(outcome.envelope())
    assert failure(right)[1] == "NATS_BUCKET_NOT_FOUND"


async def test_a_connection_that_breaks_is_made_again(connections: NatsConnections) -> None:
    stored = InMemoryToolCredentials()
    tool = NatsTool(connections, stored)
    with embedded_nats() as server:
        stored.add("bus", "nats", {"url": server.url})
        before = await tool.run(call("kv_keys", bucket="b"))
        server.kill()
        during = await tool.run(call("kv_keys", bucket="b", timeout_seconds=3.0))
        server.start()
        after = await tool.run(call("kv_keys", bucket="b"))

    assert failure(before)[1] == failure(after)[1] == "NATS_BUCKET_NOT_FOUND"
    assert failure(during)[0] in (ErrorKind.CONNECTION, ErrorKind.TIMEOUT)
    assert failure(during)[2]


# --- connections --------------------------------------------------------------------------------------------


async def test_calls_of_one_organization_share_a_connection(
    tool: NatsTool, connections: NatsConnections, names: Names
) -> None:
    puts = [call("kv_put", bucket=names.bucket, key=f"k{number}", value=number) for number in range(20)]
    outcomes = await asyncio.gather(*(tool.run(put) for put in puts))

    assert {outcome.status for outcome in outcomes} == {"ok"}
    assert connections.open_count == 1
    await tool.run(call("kv_keys", bucket=names.bucket, tenant_id="else"))
    assert connections.open_count == 2


async def test_a_connection_that_nobody_uses_is_closed(credentials: InMemoryToolCredentials, names: Names) -> None:
    async with NatsConnections(NatsLimits(sharing=SharingLimits(idle_seconds=0.0))) as connections:
        tool = NatsTool(connections, credentials)
        assert (await tool.run(call("kv_keys", bucket=names.bucket))).status == "ok"
        await connections.upkeep.once()
        assert connections.open_count == 0


async def test_after_the_worker_has_stopped_nothing_is_asked(
    credentials: InMemoryToolCredentials, names: Names
) -> None:
    async with NatsConnections() as connections:
        tool = NatsTool(connections, credentials)

    outcome = await tool.run(call("kv_keys", bucket=names.bucket))

    assert failure(outcome) == (ErrorKind.CONNECTION, "NATS_POOL_FULL", True)
