"""Folds histories that come on stdin: what another release, in a process of its own, says to the same events.

Lines of events, an empty line after each history; for each one line with its checksum document, or with an error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from noetl_core.replay.event_lines import read_event_line
from noetl_core.replay.history import Replay


def documents(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """One document for each history."""
    replay: Replay | None = None
    failure = ""
    for raw in lines:
        line = raw.rstrip(b"\n")
        if not line:
            yield _document(replay, failure)
            replay, failure = None, ""
        elif not failure:
            try:
                event = read_event_line(line)
                replay = replay or Replay(event.envelope().execution_id)
                replay.take([event])
            except Exception as exc:
                # Whatever it is: it is this release that cannot read a history which another one wrote.
                failure = f"{type(exc).__name__}: {exc}"


def _document(replay: Replay | None, failure: str) -> dict[str, Any]:
    if failure or replay is None:
        return {"error": failure or "a history without events"}
    return dict(replay.result().checksums())


def main() -> None:
    """The process that `noetl replay drift --with` starts."""
    for document in documents(sys.stdin.buffer):
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
