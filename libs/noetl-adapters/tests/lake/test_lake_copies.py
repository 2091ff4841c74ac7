"""A copy that a store has only begun is waited for: what it is made from must outlive it."""

from __future__ import annotations

from datetime import datetime

import pytest
from noetl_adapters.lake import lake_files
from noetl_adapters.lake.lake_files import BucketLake
from noetl_adapters.payload.fsspec_bucket import FsspecBucket
from noetl_core.errors import Corrupt, Unavailable

WAITS, PLACE, DATA = "_lake/pending/one", "events/one", b"events"


class SlowBucket(FsspecBucket):
    """As Azure may do it: a copy is empty until somebody has looked so many times, and fails if its source goes."""

    def __init__(self, looks: int) -> None:
        super().__init__(None, "bucket", name="az://bucket", upload_options={})
        self.objects = {WAITS: DATA}
        self.copies = 0
        self._looks = looks

    def copy(self, key: str, target: str) -> None:
        if key not in self.objects:
            raise FileNotFoundError(key)
        self.objects[target] = b""
        self.copies += 1

    def size_and_time(self, key: str) -> tuple[int, datetime | None]:
        if key not in self.objects:
            raise FileNotFoundError(key)
        if self.copies:
            self._looks -= 1
            if self._looks == 0 and WAITS in self.objects:
                self.objects[key] = self.objects[WAITS]
        return len(self.objects[key]), None

    def remove(self, key: str) -> None:
        self.objects.pop(key, None)


@pytest.fixture(autouse=True)
def nobody_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_files, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(lake_files, "COPY_SECONDS", 0.5)


def test_what_waits_is_removed_when_its_copy_is_whole() -> None:
    bucket = SlowBucket(looks=3)

    BucketLake(bucket).move(WAITS, PLACE, size=len(DATA))

    assert bucket.objects == {PLACE: DATA}


def test_a_copy_that_does_not_end_is_left_to_the_next_export() -> None:
    bucket = SlowBucket(looks=1_000_000)

    with pytest.raises(Unavailable, match="the next export goes on with it"):
        BucketLake(bucket).move(WAITS, PLACE, size=len(DATA))

    assert bucket.objects[WAITS] == DATA


def test_a_copy_that_is_whole_is_not_begun_again() -> None:
    """Another export may be about to remove what it would be made from."""
    bucket = SlowBucket(looks=0)
    bucket.objects[PLACE] = DATA

    BucketLake(bucket).move(WAITS, PLACE, size=len(DATA))

    assert (bucket.objects, bucket.copies) == ({PLACE: DATA}, 0)


def test_a_copy_that_failed_is_not_taken_for_the_file() -> None:
    bucket = SlowBucket(looks=0)
    bucket.objects = {PLACE: b""}

    with pytest.raises(Corrupt, match="events/one: its bytes are not those that were written, 0 and not 6"):
        BucketLake(bucket).move(WAITS, PLACE, size=len(DATA))
