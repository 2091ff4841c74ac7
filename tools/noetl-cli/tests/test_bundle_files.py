"""A bundle is somebody's directory: what is no file in it is none of its files, and what it says moves no cursor."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from noetl_cli.__main__ import run
from noetl_cli.verify import bundle_files
from noetl_cli.verify.check_bundle import check_bundle
from noetl_core.errors import InvalidInput
from noetl_core.evidence.bundle import FILES, INDEX
from noetl_testkit.verifying import Scene

SECONDS = 30
MIB = 1024 * 1024


@pytest.fixture
async def bundle(tmp_path: Path) -> Path:
    """Evidence that holds."""
    assert (await Scene().verify(tmp_path / "bundle")).findings == []
    return tmp_path / "bundle"


def as_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def as_a_link(file: Path) -> None:
    outside = file.parents[1] / "outside"
    shutil.move(file, outside)
    file.symlink_to(outside)


def as_a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("name", [FILES["events"], FILES["replay"], INDEX])
def test_nobody_waits_for_a_pipe(bundle: Path, name: str) -> None:
    as_a_pipe(bundle / name)

    # Another process, since one that waits would not end with the test.
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "noetl_cli", "verify", "bundle", str(bundle)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    if name == INDEX:
        assert (ended.returncode, f"it has no {INDEX}" in ended.stderr) == (2, True)
    else:
        assert (ended.returncode, f"bundle.missing: {name} is missing" in ended.stdout) == (1, True)


@pytest.mark.parametrize("become", [as_a_link, as_a_directory])
@pytest.mark.parametrize("name", sorted({*FILES.values()} - {FILES["projector"]}))
def test_what_is_no_file_is_missing(bundle: Path, name: str, become: Callable[[Path], None]) -> None:
    become(bundle / name)

    told = {one.message for one in check_bundle(bundle).findings if one.code == "bundle.missing"}
    assert told == {f"{name} is missing"}


@pytest.mark.parametrize("become", [as_a_link, as_a_directory])
def test_an_index_that_is_no_file_is_no_index(bundle: Path, become: Callable[[Path], None]) -> None:
    become(bundle / INDEX)

    with pytest.raises(InvalidInput, match="it has no index"):
        check_bundle(bundle)


def test_events_behind_a_link_are_not_read(bundle: Path) -> None:
    as_a_link(bundle / FILES["events"])

    checked = check_bundle(bundle)

    assert checked.evidence is not None
    assert checked.evidence.events == []


def a_link(place: Path) -> None:
    place.symlink_to("/etc/passwd")


def a_link_to_a_directory(place: Path) -> None:
    place.symlink_to("/etc")


def a_loop(place: Path) -> None:
    place.symlink_to(place.name)


def a_pipe(place: Path) -> None:
    os.mkfifo(place)


def an_empty_directory(place: Path) -> None:
    place.mkdir()


@pytest.mark.parametrize("below", ["more", "payloads/more"])
@pytest.mark.parametrize("put", [a_link, a_link_to_a_directory, a_loop, a_pipe, an_empty_directory])
def test_what_is_there_besides_and_is_no_file_is_named(bundle: Path, below: str, put: Callable[[Path], None]) -> None:
    put(bundle / below)

    (found,) = check_bundle(bundle).findings
    assert (found.code, found.message.split()[0]) == ("bundle.unlisted", below)


@pytest.mark.parametrize(("depth", "name"), [(60, "x" * 100), (1500, "x")])
def test_directories_without_end_are_named_and_not_entered(bundle: Path, depth: int, name: str) -> None:
    place = os.open(bundle, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=place)
        inside = os.open(name, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inside
    os.close(place)

    try:
        assert [one.code for one in check_bundle(bundle).findings] == ["bundle.unlisted"]
    finally:
        subprocess.run(["rm", "-rf", str(bundle)], check=True)  # which knows how to remove them


def test_a_directory_that_may_not_be_entered_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: str) -> Iterator[os.DirEntry[str]]:
        """Who runs the tests may be allowed everything."""
        if Path(path).name == "payloads":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        codes = {one.code for one in check_bundle(bundle).findings}

    assert "bundle.missing" in codes
    assert "bundle.unlisted" in codes


@pytest.mark.parametrize("name", ["more", FILES["replay"], FILES["events"]])
def test_a_file_larger_than_all_memory_is_named(bundle: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_files, "MAX_DOCUMENT", 64 * MIB)
    monkeypatch.setattr(bundle_files, "MAX_LINE", 4 * MIB)
    with (bundle / name).open("wb") as file:
        file.truncate(1024 * MIB)

    tracemalloc.start()
    try:
        findings = check_bundle(bundle).findings
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert held < 64 * MIB
    assert ("bundle.unlisted" if name == "more" else "bundle.changed") in {one.code for one in findings}


@pytest.mark.parametrize("output", ["text", "json"])
def test_names_of_files_are_told_and_not_obeyed(bundle: Path, output: str, capfd: pytest.CaptureFixture[str]) -> None:
    (bundle / "\x1b[2J\nproved").touch()
    (Path(os.fsdecode(os.fsencode(bundle) + b"/\xff"))).touch()

    assert run(["verify", "bundle", str(bundle), "-o", output]) == 1

    told = capfd.readouterr().out
    assert "\x1b" not in told
    assert "proved" not in told.splitlines()
    assert "\\xff is in no index" in told.replace("\\\\", "\\")


def test_names_in_a_lake_are_told_and_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "\x1b[2J.parquet").touch()

    assert run(["lake", "verify", str(tmp_path)]) == 1

    assert "events/\\x1b[2J.parquet: no batch counts it" in capsys.readouterr().out
