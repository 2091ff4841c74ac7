"""Evidence of other versions: what an earlier release wrote is read, what a later one wrote is not guessed at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from noetl_cli.verify.check_bundle import check_bundle
from noetl_core.canonical import decode, encode
from noetl_core.evidence.bundle import FILES, INDEX, artifact, index_document
from noetl_core.evidence.documents import SCHEMA
from noetl_testkit.verifying import Scene

JSON_ROLES = [role for role in FILES if role not in ("events", "projector")]


async def made(directory: Path) -> Path:
    """Evidence that holds."""
    await Scene().verify(directory)
    assert check_bundle(directory).findings == []
    return directory


def rewrite(directory: Path, change: Callable[[str, Any], None], *, index_version: int) -> None:
    """Change documents by their roles, and digest everything anew."""
    for role in JSON_ROLES:
        document: Any = decode((directory / FILES[role]).read_bytes())
        change(role, document)
        (directory / FILES[role]).write_bytes(encode(document) + b"\n")
    index: Any = decode((directory / INDEX).read_bytes())
    files = [artifact(one["role"], one["path"], (directory / one["path"]).read_bytes()) for one in index["artifacts"]]
    anew: Any = {**index_document(files), "schema_version": index_version}
    (directory / INDEX).write_bytes(encode(anew) + b"\n")


def as_the_second_version(role: str, document: Any) -> None:
    document["schema_version"] = 2
    if role == "live_rows":
        del document["columns"]


def as_the_first_version(role: str, document: Any) -> None:
    as_the_second_version(role, document)
    document["schema_version"] = 1
    if role in ("live_rows", "live_checksums"):
        del document["upcasters"]
    if role == "report":
        del document["verdict"]["upcasters"]


@pytest.mark.parametrize(("version", "change"), [(1, as_the_first_version), (2, as_the_second_version)])
async def test_evidence_of_an_earlier_version_still_holds(
    tmp_path: Path, version: int, change: Callable[[str, Any], None]
) -> None:
    directory = await made(tmp_path / "bundle")

    rewrite(directory, change, index_version=version)

    checked = check_bundle(directory)
    assert checked.findings == []
    assert checked.verdict is not None
    assert checked.verdict.is_proved


async def test_all_documents_of_a_bundle_are_of_one_version(tmp_path: Path) -> None:
    def only_live(role: str, document: Any) -> None:
        if role in ("live_rows", "live_checksums"):
            as_the_first_version(role, document)

    directory = await made(tmp_path / "bundle")
    rewrite(directory, only_live, index_version=1)

    found = check_bundle(directory).found
    assert f"live_rows.schema_version is 1, not {SCHEMA}" in {one.message for one in found["live_rows_integrity"]}
    assert [one.message for one in found["manifest"]] == [f"it is of version {SCHEMA}, and the index of version 1"]


async def test_evidence_of_a_later_version_is_left_to_a_later_release(tmp_path: Path) -> None:
    def of_tomorrow(role: str, document: Any) -> None:
        document["schema_version"] = SCHEMA + 1

    directory = await made(tmp_path / "bundle")
    rewrite(directory, of_tomorrow, index_version=SCHEMA + 1)

    checked = check_bundle(directory)
    assert [one.code for one in checked.found["manifest"]] == ["bundle.later"]
    assert checked.verdict is None


async def test_live_rows_that_hide_their_registry_do_not_have_their_shape(tmp_path: Path) -> None:
    def hidden(role: str, document: Any) -> None:
        if role in ("live_rows", "live_checksums"):
            del document["upcasters"]

    directory = await made(tmp_path / "bundle")
    rewrite(directory, hidden, index_version=SCHEMA)

    found = check_bundle(directory).found
    assert [one.message for one in found["live_rows_integrity"]] == ["live_rows.upcasters is missing"]
    assert [one.message for one in found["live_checksums"]] == ["live_checksums.upcasters is missing"]
