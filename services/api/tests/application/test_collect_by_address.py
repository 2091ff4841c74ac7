"""What is named by nothing but an address is kept with all that it leads to."""

from collections.abc import AsyncIterator

import pytest
from noetl_api.application.payload_survey import DocumentUnreadable
from noetl_core.append import AppendRequest, StreamAppend, StreamStart
from noetl_core.canonical import encode
from noetl_core.collection.documents import json_media_type
from noetl_core.envelope import Draft
from noetl_core.errors import Unavailable
from noetl_core.payloads import PayloadRef
from noetl_core.ports.reachability import ScannedText
from noetl_testkit.collecting import Collecting
from noetl_testkit.memory.payloads import InMemoryPayloadStore

TABLE = b"\xff\xff\xff\xff"


@pytest.fixture
def collecting() -> Collecting:
    return Collecting()


async def put_document(collecting: Collecting, value: object) -> PayloadRef:
    data = encode(value)
    return await collecting.payloads.put(
        tenant_id="acme", organization_id="ops", data=data, media_type=json_media_type(data)
    )


async def put_result(collecting: Collecting, rows: PayloadRef) -> PayloadRef:
    """As a PySpark program of a user's own leaves it: only its address is told to anybody."""
    chunk = [rows.sha256, rows.bytes, 1, "application/vnd.apache.arrow.stream"]
    return await put_document(collecting, {"rows": {"_chunks": [chunk]}})


async def tell_fields(collecting: Collecting, fields: dict[str, object]) -> None:
    draft = Draft(event_type="user.fact", idempotency_key="k", meta=fields)
    stream = StreamAppend(execution_id=collecting.log.next_id(), drafts=(draft,), start=StreamStart())
    await collecting.log.append(AppendRequest(tenant_id="acme", organization_id="ops", streams=(stream,)))


async def collect_all(collecting: Collecting) -> None:
    for _ in range(4):
        collecting.wait()
        await collecting.run()


@pytest.mark.parametrize("place", ["event", "text in an event", "unknown", "playbook", "workload", "deep"])
async def test_rows_stay_while_anything_names_the_address_of_their_result(collecting: Collecting, place: str) -> None:
    rows, garbage = await collecting.put(TABLE + b"rows"), await collecting.put(b"garbage")
    result = await put_result(collecting, rows)
    match place:
        case "event":
            await tell_fields(collecting, {"variables": {"report": result.uri}})
        case "text in an event":
            await tell_fields(collecting, {"told": f'{{"at":"{result.uri}"}}'.replace("/", "\\/")})
        case "unknown":
            reference = {**result.to_json(), "media_type": "application/octet-stream", "bytes": 0}
            await tell_fields(collecting, {"result_ref": reference})
        case "playbook":
            collecting.scan.texts.append(ScannedText("acme", "ops", f"result_ref: {result.uri}"))
        case "workload":
            await collecting.tell(await put_document(collecting, {"report": result.uri}))
        case "deep":
            inner = await put_document(collecting, {"report": result.uri})
            await collecting.tell(await put_document(collecting, [{"inner": inner.uri}]))

    await collect_all(collecting)

    assert [await collecting.is_there(ref) for ref in (result, rows, garbage)] == [True, True, False]


async def test_a_document_that_many_name_is_read_once() -> None:
    reads: list[str] = []

    class Counting(InMemoryPayloadStore):
        def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
            reads.append(ref.sha256)
            return super().stream(ref)

    collecting = Collecting(Counting())
    result = await put_result(collecting, await collecting.put(b"rows"))
    for number in range(3):
        await collecting.tell(await put_document(collecting, {"report": result.uri, "number": number}))
    collecting.wait()

    assert (await collecting.run()).unreferenced == 0
    assert len(reads) == 4
    assert reads.count(result.sha256) == 1


async def test_a_reference_that_says_what_it_leads_to_is_not_followed(collecting: Collecting) -> None:
    """Or every result would be read in every run, and lists of garbage would keep it."""
    garbage = await collecting.put(b"garbage")
    told = await collecting.put(encode([garbage.sha256]))
    await collecting.tell(told)
    await collect_all(collecting)

    assert [await collecting.is_there(ref) for ref in (told, garbage)] == [True, False]


async def test_a_table_is_read_as_far_as_it_may_name_anything(
    collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = 100_000
    monkeypatch.setattr("noetl_core.collection.worklist.MAX_HEADER_BYTES", header)
    beside, within = await collecting.put(b"beside its rows"), await collecting.put(b"in a row")
    naming = await collecting.put(TABLE + beside.sha256.encode() + bytes(4 * header))
    rows = await collecting.put(TABLE + bytes(4 * header) + within.sha256.encode())
    await tell_fields(collecting, {"tables": [naming.uri, rows.uri]})
    await collect_all(collecting)

    assert [await collecting.is_there(ref) for ref in (naming, rows, beside, within)] == [True, True, True, False]


async def test_nothing_is_deleted_while_a_document_cannot_be_read() -> None:
    class Away(InMemoryPayloadStore):
        is_away = False

        def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
            if self.is_away:
                raise Unavailable("the bucket is away")
            return super().stream(ref)

    store = Away()
    collecting = Collecting(store)
    result = await put_result(collecting, await collecting.put(b"rows"))
    garbage = await collecting.put(b"garbage")
    await tell_fields(collecting, {"report": result.uri})

    store.is_away = True
    for _ in range(4):
        collecting.wait()
        with pytest.raises(DocumentUnreadable, match=r"nothing is collected.*the bucket is away"):
            await collecting.run()
    assert collecting.told() == []

    store.is_away = False
    await collect_all(collecting)
    assert not await collecting.is_there(garbage)
