"""A lake in a bucket gives files their places, each against a real server."""

from collections.abc import Iterator

import pytest
from noetl_adapters.lake.lake_files import BucketLake
from noetl_adapters.payload.buckets import open_bucket
from noetl_core.canonical import sha256_hex
from noetl_core.errors import Corrupt
from noetl_core.lake.manifest import EVENTS, event_path, pending_path
from noetl_testkit.object_stores import ObjectServer

DATA = b"events"
DIGEST = sha256_hex(DATA)
WAITS = pending_path(1, DIGEST)


@pytest.fixture(params=["s3", "gcs", "azure"])
def lake(request: pytest.FixtureRequest) -> Iterator[BucketLake]:
    server = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(server, ObjectServer)
    bucket = open_bucket(f"{server.new_bucket()}/pre fix", server.environment)
    yield BucketLake(bucket)
    bucket.close()


@pytest.mark.parametrize("tenant_id", ["acme", "a b/Zürich", "ü" * 60])
def test_a_file_is_whole_at_its_place_and_waits_no_more_however_often_it_is_moved(
    lake: BucketLake, tenant_id: str
) -> None:
    place = event_path(1, DIGEST, tenant_id=tenant_id, date="2026-01-31")
    for _ in range(2):
        lake.write(WAITS, DATA)
        lake.move(WAITS, place, size=len(DATA))
    lake.move(WAITS, place, size=len(DATA))

    assert lake.list(EVENTS) == [place]
    assert lake.read(place) == DATA
    with pytest.raises(FileNotFoundError):
        lake.size(WAITS)


def test_a_file_that_is_nowhere_or_not_whole_is_lost(lake: BucketLake) -> None:
    place = event_path(1, DIGEST, tenant_id="acme", date="2026-01-31")
    with pytest.raises(Corrupt, match="the lake lost"):
        lake.move(WAITS, place, size=len(DATA))
    lake.write(place, DATA[:1])
    with pytest.raises(Corrupt, match="its bytes are not those that were written"):
        lake.move(WAITS, place, size=len(DATA))
