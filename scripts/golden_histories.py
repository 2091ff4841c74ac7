"""Adds histories to the golden corpus of replays, or computes again what is expected of those that are there.

python -m scripts.golden_histories add NAME --case loops/some-case     a conformance case, run in memory
python -m scripts.golden_histories add NAME --drawn SEED               a history drawn at random (--frames: stages)
python -m scripts.golden_histories add NAME --run                      the run of that name in noetl_testkit.golden_runs
python -m scripts.golden_histories add NAME --events FILE              lines of `noetl replay events ID`
python -m scripts.golden_histories expect                              after rows have changed on purpose
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from noetl_core.canonical import encode
from noetl_core.envelope import StoredEvent
from noetl_core.replay.event_lines import event_line, read_event_line
from noetl_core.replay.golden import expectation
from noetl_testkit.conformance import load_cases
from noetl_testkit.frame_histories import drawn_frame_history
from noetl_testkit.golden_runs import RUNS
from noetl_testkit.histories import choices, drawn_history
from noetl_testkit.in_memory_runtime import InMemoryRuntime

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests/replay/golden"
CASES = ROOT / "tests/conformance/cases"


def read_history(folder: Path) -> list[StoredEvent]:
    """The events of a history of the corpus."""
    return [read_event_line(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add")
    add.add_argument("name")
    source = add.add_mutually_exclusive_group(required=True)
    source.add_argument("--case")
    source.add_argument("--drawn", type=int)
    source.add_argument("--run", action="store_true")
    source.add_argument("--events", type=Path)
    add.add_argument("--frames", action="store_true")
    commands.add_parser("expect")
    asked = parser.parse_args(arguments)
    if asked.command == "expect":
        for folder in sorted(one for one in CORPUS.iterdir() if one.is_dir()):
            _write_expected(folder, read_history(folder))
        return
    folder = CORPUS / asked.name
    events = _history(asked)
    folder.mkdir()
    (folder / "events.jsonl").write_bytes(b"".join(event_line(event) + b"\n" for event in events))
    _write_expected(folder, events)
    sys.stdout.write(f"{folder.relative_to(ROOT)}: {len(events)} events\n")


def _history(asked: argparse.Namespace) -> list[StoredEvent]:
    if asked.events is not None:
        return [read_event_line(line) for line in asked.events.read_bytes().splitlines()]
    if asked.run:
        if asked.name not in RUNS:
            raise SystemExit(f"there is no run {asked.name!r}: {', '.join(RUNS)}")
        return RUNS[asked.name].make()
    if asked.drawn is not None:
        drawn = drawn_frame_history if asked.frames else drawn_history
        return drawn(choices(asked.drawn), moves=30).stored
    return asyncio.run(_run(asked.case))


async def _run(name: str) -> list[StoredEvent]:
    case = next(one for one in load_cases(CASES) if one.name == name)
    runtime = InMemoryRuntime()
    came = await runtime.run(case)
    if came.state is None:
        raise SystemExit(f"{name} is refused: it has no history")
    return list(runtime.log.streams[came.state.execution.execution_id].events)


def _write_expected(folder: Path, events: Sequence[StoredEvent]) -> None:
    expected, rows = expectation(events)
    (folder / "expected.json").write_bytes(encode(expected) + b"\n")
    (folder / "rows.jsonl").write_bytes(b"".join(encode(row) + b"\n" for row in rows))


if __name__ == "__main__":
    main()
