"""Which Python `make` takes for its environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.interpreter import unfit_because

ROOT = Path(__file__).parents[2]
_BASH = shutil.which("bash") or "/bin/bash"


@pytest.mark.parametrize(
    ("version", "makes", "configured", "prefix", "reason"),
    [
        ((3, 10), True, "'--enable-optimizations'", "/usr/local", "older than 3.11"),
        ((3, 11), False, "", "/usr", "without the modules venv and ensurepip"),
        ((3, 12), True, "'--enable-shared'", "/opt/pyenv/versions/3.12.1", "built without optimisation"),
        ((3, 12), True, "'--enable-optimizations' '--with-lto'", "/usr/local", ""),
        ((3, 11), True, "'--enable-shared'", "/usr", ""),
        ((3, 14), True, "'--enable-optimizations'", "/opt/python", ""),
    ],
)
def test_what_makes_an_interpreter_fit(
    version: tuple[int, int], makes: bool, configured: str, prefix: str, reason: str
) -> None:
    assert unfit_because(version, makes, configured, prefix) == reason


def _interpreter(folder: Path, *, reason: str = "", name: str = "python3") -> Path:
    folder.mkdir()
    path = folder / name
    path.write_text(f"#!{_BASH}\n" + (f"echo '{reason}' >&2; exit 1\n" if reason else "exit 0\n"), encoding="utf-8")
    path.chmod(0o755)
    return path


def _chosen(*folders: Path) -> tuple[str, str]:
    done = subprocess.run(
        [_BASH, ROOT / "scripts" / "python.sh"],
        env={"PATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr.strip()


def test_the_first_one_is_taken_if_it_is_fit(tmp_path: Path) -> None:
    first = _interpreter(tmp_path / "a")
    _interpreter(tmp_path / "b")
    assert _chosen(tmp_path / "a", tmp_path / "b") == (str(first), "")


def test_the_next_fit_one_is_taken_and_said_if_the_first_is_not(tmp_path: Path) -> None:
    first = _interpreter(tmp_path / "a", reason="built without optimisation")
    _interpreter(tmp_path / "b", reason="older than 3.11")
    third = _interpreter(tmp_path / "c", name="python3.12")
    chosen, said = _chosen(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert chosen == str(third)
    assert f"taking {third} instead of {first} (built without optimisation)" in said


def test_a_slow_one_is_better_than_none(tmp_path: Path) -> None:
    first = _interpreter(tmp_path / "a b", reason="built without optimisation")
    assert _chosen(tmp_path / "a b") == (str(first), "")
    _interpreter(tmp_path / "old", reason="older than 3.11")
    chosen, said = _chosen(tmp_path / "old", tmp_path / "a b")
    assert chosen == str(first)
    assert "(older than 3.11)" in said


def test_without_a_fit_one_it_is_what_path_says(tmp_path: Path) -> None:
    first = _interpreter(tmp_path / "a", reason="older than 3.11")
    assert _chosen(tmp_path / "a") == (str(first), "")
    (tmp_path / "none").mkdir()
    assert _chosen(tmp_path / "none") == ("python3", "")
