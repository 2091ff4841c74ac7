"""Object stores do what every payload store does, each against a real server."""

import itertools
from collections.abc import Iterator

import pytest
from noetl_adapters.payload.buckets import ENDPOINT_VARIABLE, open_bucket
from noetl_adapters.payload.fsspec_bucket import FsspecBucket
from noetl_adapters.payload.names import payload_path
from noetl_adapters.payload.object_store import ObjectPayloadStore
from noetl_adapters.payload.open_store import open_payload_store
from noetl_cli.dev.ports import free_port
from noetl_core.errors import InvalidInput, Unavailable
from noetl_core.payloads import PayloadRef, refer_to
from noetl_core.ports.payloads import PayloadStore
from noetl_testkit.compliance.collectable_payloads import CollectablePayloadsCompliance
from noetl_testkit.compliance.payload_store import HELLO, JSON, PayloadStoreCompliance, put, put_stream
from noetl_testkit.object_stores import ObjectServer

PREFIXES = itertools.count()


class ObjectStoreCompliance(PayloadStoreCompliance, CollectablePayloadsCompliance):
    """Each test has a prefix of its own in the one bucket of its class."""

    bucket: FsspecBucket

    @pytest.fixture
    def store(self, whole_bucket: FsspecBucket) -> ObjectPayloadStore:
        self.bucket = whole_bucket.below(f"pre fix/{next(PREFIXES)}")
        return ObjectPayloadStore(self.bucket)

    def damage(self, store: PayloadStore, ref: PayloadRef) -> None:
        self.bucket.write(payload_path(ref), b"other bytes")

    def object_count(self, store: PayloadStore) -> int:
        return len(self.bucket.list_objects(""))

    async def test_a_large_stream_goes_up_in_parts(self, store: PayloadStore) -> None:
        chunks = [bytes([n]) * 5_000_000 for n in range(8)]

        ref = await put_stream(store, chunks)

        assert b"".join([chunk async for chunk in store.stream(ref)]) == b"".join(chunks)

    async def test_a_payload_that_is_there_is_not_written_again(self, store: PayloadStore) -> None:
        ref = await put(store)
        before = await store.stat(ref)
        self.bucket.write(payload_path(ref), b"x" * len(HELLO))  # the size is all that is compared

        await put(store)
        await put_stream(store, [HELLO])

        assert before is not None
        assert self.bucket.read(payload_path(ref), 0, len(HELLO)) == b"x" * len(HELLO)


def opened(server: ObjectServer) -> Iterator[FsspecBucket]:
    bucket = open_bucket(server.new_bucket(), server.environment)
    yield bucket
    bucket.close()


@pytest.fixture(scope="module")
def s3_bucket(s3_server: ObjectServer) -> Iterator[FsspecBucket]:
    yield from opened(s3_server)


@pytest.fixture(scope="module")
def gcs_bucket(gcs_server: ObjectServer) -> Iterator[FsspecBucket]:
    yield from opened(gcs_server)


@pytest.fixture(scope="module")
def azure_bucket(azure_server: ObjectServer) -> Iterator[FsspecBucket]:
    yield from opened(azure_server)


class TestS3PayloadStore(ObjectStoreCompliance):
    @pytest.fixture
    def whole_bucket(self, s3_bucket: FsspecBucket) -> FsspecBucket:
        return s3_bucket


class TestGcsPayloadStore(ObjectStoreCompliance):
    @pytest.fixture
    def whole_bucket(self, gcs_bucket: FsspecBucket) -> FsspecBucket:
        return gcs_bucket


class TestAzurePayloadStore(ObjectStoreCompliance):
    @pytest.fixture
    def whole_bucket(self, azure_bucket: FsspecBucket) -> FsspecBucket:
        return azure_bucket


@pytest.fixture(params=["s3", "gcs", "azure"])
def server_and_bucket(request: pytest.FixtureRequest) -> tuple[ObjectServer, FsspecBucket]:
    server = request.getfixturevalue(f"{request.param}_server")
    bucket = request.getfixturevalue(f"{request.param}_bucket")
    assert isinstance(server, ObjectServer)
    assert isinstance(bucket, FsspecBucket)
    return server, bucket


async def test_a_store_is_chosen_by_its_address(server_and_bucket: tuple[ObjectServer, FsspecBucket]) -> None:
    server, bucket = server_and_bucket
    async with open_payload_store(f"{bucket.name}/some/where", server.environment) as store:
        ref = await put(store)
    async with open_payload_store(f"{bucket.name}/some/where", server.environment) as store:
        assert await store.get(ref) == HELLO
    async with open_payload_store(f"{bucket.name}/else/where", server.environment) as store:
        assert not await store.exists(ref)


async def test_a_bucket_that_is_missing_is_told_and_not_taken_for_a_missing_payload(
    server_and_bucket: tuple[ObjectServer, FsspecBucket],
) -> None:
    server, _ = server_and_bucket
    address = f"{server.scheme}://noetl-nobody-made-this"
    async with open_payload_store(address, server.environment) as store:
        with pytest.raises(Unavailable, match="noetl-nobody-made-this"):
            await put(store)


async def test_a_server_that_is_away_is_unavailable_and_its_secrets_stay_out_of_the_message() -> None:
    environment = {
        ENDPOINT_VARIABLE: f"http://127.0.0.1:{free_port()}",
        "AWS_ACCESS_KEY_ID": "key-id",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "AWS_REGION": "us-east-1",
    }
    async with open_payload_store("s3://bucket/x", environment) as store:
        ref = refer_to(HELLO, tenant_id="acme", organization_id="ops", media_type=JSON)
        with pytest.raises(Unavailable) as refusal:
            await store.get(ref)
    assert "secret" not in refusal.value.message
    assert "key-id" not in refusal.value.message


async def test_wrong_credentials_are_no_missing_payload(s3_server: ObjectServer, s3_bucket: FsspecBucket) -> None:
    wrong = {**s3_server.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
    async with open_payload_store(s3_bucket.name, wrong) as store:
        with pytest.raises(Unavailable):
            await put(store)


@pytest.mark.parametrize("url", ["s3://", "s3://bucket/x?y=1", "s3://key:secret@bucket/x", "ftp://host/x", "bucket"])
async def test_what_is_no_address_of_a_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        async with open_payload_store(url, {}):
            pass
    assert "secret" not in refusal.value.message
