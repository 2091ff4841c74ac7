"""The import contracts hold, and each of them is seen to fail when it is broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

VIOLATIONS = {
    "Packages build on each other in one direction; services know nothing of each other": (
        "noetl_planner/application/asks.py",
        "import noetl_reaper",
    ),
    "The core does no I/O, knows no clock and no random source": ("noetl_core/fold.py", "import time"),
    "Generated code is used by the contracts package and by services' entrypoints only": (
        "noetl_planner/application/turn.py",
        "from noetl.event.v1 import event_pb2",
    ),
    "Only bootstraps, the CLI's local parts and tests choose an adapter": (
        "noetl_worker/application/run_command.py",
        "import noetl_adapters.postgres.pool",
    ),
    "Nothing that ships imports the test kit": ("noetl_api/application/group_commit.py", "import noetl_testkit"),
    "A service is main, bootstrap, entrypoints, application, then settings and telemetry": (
        "noetl_reaper/application/__init__.py",
        "import noetl_reaper.bootstrap",
    ),
}


def lint(sources: Path) -> dict[str, str]:
    """Verdict per contract for the packages below `sources`."""
    environment = {**os.environ, "PYTHONPATH": str(sources), "COLUMNS": "200"}
    linter = str(Path(sys.executable).with_name("lint-imports"))
    command = [linter, "--no-logo", "--no-cache", "--config", ".importlinter"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    verdicts = dict(re.findall(r"^(.+?) (KEPT|BROKEN)", done.stdout, re.MULTILINE))
    assert verdicts, done.stdout + done.stderr
    return verdicts


def copied_sources(target: Path) -> Path:
    for group in ("libs", "services", "tools"):
        for package in (ROOT / group).glob("*/src/*"):
            shutil.copytree(package, target / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def test_each_import_contract_holds_and_fails_when_it_is_broken(tmp_path: Path) -> None:
    sources = copied_sources(tmp_path / "sources")
    assert set(lint(sources).values()) == {"KEPT"}
    for place, statement in VIOLATIONS.values():
        broken = sources / place
        broken.write_text(
            broken.read_text(encoding="utf-8") + f"\n\ndef _broken() -> None:\n    {statement}\n", "utf-8"
        )

    verdicts = lint(sources)

    assert set(verdicts) == set(VIOLATIONS)
    assert set(verdicts.values()) == {"BROKEN"}
