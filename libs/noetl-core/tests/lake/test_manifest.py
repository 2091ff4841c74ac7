"""A manifest that is read names places within its lake, and nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from noetl_core.errors import Corrupt
from noetl_core.lake.manifest import LakeFile, Manifest, Position, event_path, positions_path

DIGEST = "0123456789abcdef" * 4
TENANTS = ["acme", "a/b", "..", "a b%2F", "Zürich", "a=b", "x" * 200, "x" * 245, "x" * 246, "ü" * 60]


def file_at(path: str, sha256: str = DIGEST) -> LakeFile:
    return LakeFile(path=path, rows=1, bytes=2, sha256=sha256)


def manifest(path: str = "", *, positions: str = "") -> Manifest:
    return Manifest(
        batch=7,
        scope="*",
        files=(file_at(path or event_path(7, DIGEST, tenant_id="acme", date="2026-01-31")),),
        positions={1: Position(version=3, checksum=DIGEST), 2: Position(version=1)},
        positions_file=file_at(positions or positions_path(7, DIGEST)),
        scanned_to=datetime(2026, 1, 31, tzinfo=UTC),
        compared_at=datetime(2026, 1, 30, tzinfo=UTC),
        log_branch="a/1/0",
        previous_sha256=DIGEST,
    )


@pytest.mark.parametrize("tenant_id", TENANTS)
def test_what_was_written_is_read_whatever_a_tenant_is_called(tenant_id: str) -> None:
    written = manifest(event_path(7, DIGEST, tenant_id=tenant_id, date="2026-01-31"))

    assert Manifest.from_bytes(written.to_bytes()) == written


@pytest.mark.parametrize("tenant_id", TENANTS)
def test_a_directory_can_be_made_for_a_tenant_whatever_it_is_called(tmp_path: Path, tenant_id: str) -> None:
    place = tmp_path / event_path(7, DIGEST, tenant_id=tenant_id, date="2026-01-31")

    place.parent.mkdir(parents=True)


def test_tenants_have_directories_of_their_own_and_none_can_call_itself_like_that_of_another() -> None:
    long = event_path(7, DIGEST, tenant_id="x" * 246, date="2026-01-31")
    names = ["x" * 246, "x" * 247, long.split("/")[1].removeprefix("tenant_id=")]

    assert len({event_path(7, DIGEST, tenant_id=name, date="2026-01-31") for name in names}) == 3


def test_a_long_name_that_an_earlier_release_wrote_into_a_bucket_is_read() -> None:
    written = manifest(f"events/tenant_id={'x' * 300}/date=2026-01-31/batch-000000000007-{DIGEST}.parquet")

    assert Manifest.from_bytes(written.to_bytes()) == written


@pytest.mark.parametrize(
    "path",
    [
        "../victim.txt",
        "/etc/passwd",
        f"events/tenant_id=acme/date=2026-01-31/../../../../batch-000000000007-{DIGEST}.parquet",
        f"events/tenant_id=acme/../date=2026-01-31/batch-000000000007-{DIGEST}.parquet",
        f"events/tenant_id=a%2fb/date=2026-01-31/batch-000000000007-{DIGEST}.parquet",
        f"events/tenant_id=/date=2026-01-31/batch-000000000007-{DIGEST}.parquet",
        f"events/tenant_id=sha256+{DIGEST[1:]}/date=2026-01-31/batch-000000000007-{DIGEST}.parquet",
        f"events/tenant_id=acme/date=2026-02-31/batch-000000000007-{DIGEST}.parquet",
        f"events/tenant_id=acme/date=2026-01-31/batch-000000000008-{DIGEST}.parquet",
        f"events/tenant_id=acme/date=2026-01-31/batch-000000000007-{'0' * 64}.parquet",
        f"events/tenant_id=acme/date=2026-01-31/batch-000000000007-{DIGEST}.parquet\n",
        "_lake/batches/000000000001.json",
    ],
)
def test_a_place_that_no_export_gives_to_a_file_of_events_is_refused(path: str) -> None:
    with pytest.raises(Corrupt, match="no place of a file of events"):
        Manifest.from_bytes(manifest(path).to_bytes())


@pytest.mark.parametrize("path", ["../positions", "/positions", positions_path(6, DIGEST), positions_path(7, "0" * 64)])
def test_positions_stand_where_an_export_puts_them(path: str) -> None:
    with pytest.raises(Corrupt, match="not where its positions stand"):
        Manifest.from_bytes(manifest(positions=path).to_bytes())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch", "7"),
        ("batch", 0),
        ("batch", True),
        ("scope", None),
        ("log_branch", 1),
        ("files", {}),
        ("files", [{"path": 1, "rows": 1, "bytes": 2, "sha256": DIGEST}]),
        ("files", [{"path": "events", "rows": -1, "bytes": 2, "sha256": DIGEST}]),
        ("files", [{"path": "events", "rows": 1, "bytes": "2", "sha256": DIGEST}]),
        ("files", [{"path": "events", "rows": 1, "bytes": 2, "sha256": "../../x"}]),
        ("files", [{"path": "events", "rows": 1, "bytes": 2}]),
        ("positions", {"one": 1}),
        ("positions", {"1": "3"}),
        ("positions", [1]),
        ("checksums", {"1": "../x"}),
        ("checksums", None),
        ("positions_file", "positions"),
        ("compared_at", "yesterday"),
        ("scanned_to", 5),
        ("scanned_to", "yesterday"),
        ("previous_sha256", 5),
        ("previous_sha256", None),
    ],
)
def test_a_field_of_another_type_is_refused(field: str, value: Any) -> None:
    fields = {**json.loads(manifest().to_bytes()), field: value}

    with pytest.raises(Corrupt):
        Manifest.from_bytes(json.dumps(fields).encode())


def test_a_manifest_of_a_release_that_knew_no_checksums_is_read() -> None:
    fields = json.loads(manifest().to_bytes())
    del fields["checksums"], fields["log_branch"], fields["compared_at"]

    read = Manifest.from_bytes(json.dumps(fields).encode())

    assert read.positions == {1: Position(version=3), 2: Position(version=1)}
