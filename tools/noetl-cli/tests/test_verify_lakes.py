"""Where a lake may be that bulk verification reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from noetl_cli.__main__ import run
from noetl_cli.verify.bulk import lake_place
from noetl_core.errors import InvalidInput


@pytest.mark.parametrize("place", ["hdfs://host/lake", "ftp://host"])
def test_what_is_no_place_for_a_lake_is_refused_before_anything_is_asked(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "all", "--lake", place]) == 2

    assert "a lake is a directory or an address that begins with s3" in capsys.readouterr().err


def test_a_file_is_no_lake(tmp_path: Path) -> None:
    file = tmp_path / "lake"
    file.touch()

    with pytest.raises(InvalidInput, match="is a file"):
        lake_place(str(file))


@pytest.mark.parametrize("place", ["/data/lake", "file:///data/lake"])
def test_a_directory_may_be_named_as_such_or_by_its_address(place: str) -> None:
    assert lake_place(place) == "/data/lake"


def test_a_directory_is_the_one_that_the_command_sees_wherever_tasks_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert lake_place("lake") == str(tmp_path / "lake")


def test_a_bucket_stays_as_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    assert lake_place("s3://bucket/lake") == "s3://bucket/lake"
