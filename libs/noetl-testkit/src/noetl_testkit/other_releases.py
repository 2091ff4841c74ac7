"""Other releases of the core: copies of it whose fold or upcasters are not ours, to be imported by a process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import noetl_cli
import noetl_core

_COMMAND_ROWS: Final = ("surfaces/command_rows.py", '"attempt": command.attempt,', '"attempt": command.attempt + 1,')
_INITIALIZED: Final = (
    "executions/events.py",
    '@event_type("playbook.initialized")',
    '@event_type("playbook.initialized", schema_version=2)',
)
_UPCASTERS: Final = (
    "upcasting/releases.py",
    "UPCASTERS: Final = Upcasters()",
    """\
from dataclasses import replace
from noetl_core.upcasting.registry import Upcaster

def _renamed(envelope):
    return replace(envelope, meta={**envelope.meta, "path": "renamed/" + envelope.meta["path"]})

UPCASTERS: Final = Upcasters(
    [Upcaster(event_type="playbook.initialized", from_version=1, to_version=2, change=_renamed)]
)""",
)


def with_another_fold(folder: Path) -> str:
    """Counts attempts of commands otherwise; a PYTHONPATH."""
    return _copied(folder, _COMMAND_ROWS)


def with_another_upcaster(folder: Path) -> str:
    """Has a second version of an execution's first event, and reads old ones as such; a PYTHONPATH."""
    return _copied(folder, _INITIALIZED, _UPCASTERS)


def as_it_is(folder: Path) -> str:
    """The same code at another place; a PYTHONPATH."""
    return _copied(folder)


def _copied(folder: Path, *changes: tuple[str, str, str]) -> str:
    for package in (noetl_core, noetl_cli):
        source = Path(str(package.__file__)).parent
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in changes:
        file = folder / "noetl_core" / name
        text = file.read_text()
        if text.count(old) != 1:
            raise AssertionError(f"{name} has {old!r} {text.count(old)} times: change what is changed")
        file.write_text(text.replace(old, new))
    return str(folder)
