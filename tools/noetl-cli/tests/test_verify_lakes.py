"""Where a lake may be that bulk verification reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from noetl_cli.__main__ import run
from noetl_cli.verify.bulk import lake_directory
from noetl_core.errors import InvalidInput


@pytest.mark.parametrize("place", ["s3://bucket/lake", "gs://bucket", "az://container/lake", "hdfs://host/lake"])
def test_a_lake_in_a_bucket_is_refused_with_what_can_be_done_instead(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "all", "--lake", place]) == 2

    said = capsys.readouterr().err
    assert f"--lake is a directory, not '{place}'" in said
    assert "Copy the lake to a directory" in said
    assert "noetl lake verify" in said


def test_a_file_is_no_lake(tmp_path: Path) -> None:
    file = tmp_path / "lake"
    file.touch()

    with pytest.raises(InvalidInput, match="is a file"):
        lake_directory(str(file))


@pytest.mark.parametrize("place", ["/data/lake", "file:///data/lake"])
def test_a_directory_may_be_named_as_such_or_by_its_address(place: str) -> None:
    assert lake_directory(place) == Path("/data/lake")
