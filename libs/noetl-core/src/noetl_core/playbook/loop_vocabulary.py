"""The words of work on many items: loops, frames, cursors, reduce stages."""

from __future__ import annotations

from noetl_core.playbook.loop_model import Engine, FrameFailure, FrameProcess, RetryMode
from noetl_core.playbook.sections import Key, Section
from noetl_core.playbook.shapes import Below, Choice, Either, Items, Name, Number, Text
from noetl_core.playbook.support import Feature
from noetl_core.playbook.task_model import LoopMode
from noetl_core.playbook.task_vocabulary import (
    AUTH,
    IN,
    IN_FLIGHT,
    ITERATOR,
    SECONDS_OR_TEMPLATE,
    positive_count,
    rendered,
)

OLDER_MODES = {"async": LoopMode.PARALLEL}
RETRIES = Number(what="a whole number", is_whole=True, minimum=0)

FRAME = Section(
    name="frame",
    title="`frame`",
    is_strict=True,
    keys={
        "max_rows": rendered(positive_count(), "rows of a frame (1)"),
        "max_bytes": rendered(positive_count(), "bytes of a frame (67108864)"),
        "max_seconds": rendered(SECONDS_OR_TEMPLATE, "no row starts later than this (30)"),
        "lease_seconds": rendered(SECONDS_OR_TEMPLATE, "how long a worker holds the frame (120)"),
        "heartbeat_seconds": rendered(
            SECONDS_OR_TEMPLATE, "how often it says that it lives, twice a lease or more (30)"
        ),
        "process": Key(shape=Choice(words=tuple(FrameProcess)), says="run the tool for each row, or for the frame"),
        "row_concurrency": rendered(positive_count(), "rows at once (1)"),
        "retry_mode": Key(shape=Choice(words=tuple(RetryMode)), says="what is run again after a lost lease"),
        "max_attempts": rendered(positive_count(), "how often the frame is dispatched (3)"),
        "on_failure": Key(shape=Choice(words=tuple(FrameFailure)), says="bisect: find the rows that fail"),
    },
)
REDUCE_FRAME = Section(
    name="reduce_frame",
    title="`frame` of a reduce",
    is_strict=True,
    keys={
        "max_seconds": rendered(
            SECONDS_OR_TEMPLATE, "from then on a call that outlasts its own limit costs the lease (30)"
        ),
        **{key: FRAME.keys[key] for key in ("lease_seconds", "heartbeat_seconds", "retry_mode", "max_attempts")},
    },
    elsewhere={
        "max_rows": "a partition is one frame, whatever its rows, and `partitions` says how many there are",
        "max_bytes": "a partition is one frame, whatever its bytes, and more `partitions` are smaller ones",
        "process": "its tool always runs once for all rows of a partition",
        "row_concurrency": "its tool runs once for a partition, and `max_in_flight` says how many run at once",
        "on_failure": "a partition that failed is tried again as a whole and never cut",
    },
)
FAILURE_BUDGET = Section(
    name="failure_budget",
    title="`failure_budget`",
    is_strict=True,
    keys={
        "count": Key(shape=RETRIES, says="how many items may fail (0)"),
        "share": Key(
            shape=Number(minimum=0, maximum=1),
            says="which share of the items may fail; with a cursor judged at its end",
        ),
    },
)
CURSOR = Section(
    name="cursor",
    title="`cursor`",
    missing_code="tool_config",
    keys={
        "kind": Key(shape=Text(), required=True, says="postgres"),
        "auth": AUTH,
        "claim": rendered(Text(), "SQL that marks rows as taken and returns them", required=True),
    },
)
_ENGINE = Key(
    shape=Choice(words=tuple(Engine)),
    says="where frames run (Spark in workers that keep a session warm, else the worker)",
)
_FRAME = Key(shape=Below(FRAME), feature=Feature.LOOP_FRAME, says="work on many items as one unit")
_MODES = Choice(words=tuple(LoopMode), older=tuple(OLDER_MODES))
LOOP_SPEC = Section(
    name="loop_spec",
    title="the spec of a loop",
    keys={
        "mode": Key(shape=_MODES, says="sequential, parallel or fanout; a cursor has its own"),
        "max_in_flight": IN_FLIGHT,
        "engine": _ENGINE,
        "key": rendered(Text(), "fanout: the template of an item's key (the index)"),
        "max_item_retries": Key(shape=RETRIES, says="how often a failed item is tried again (2)"),
        "failure_budget": Key(shape=Below(FAILURE_BUDGET), says="how many items may fail"),
        "frame": _FRAME,
        "concurrency": rendered(IN_FLIGHT.shape, "another word for `max_in_flight`", is_older=True),
    },
    ignored=frozenset({"policy"}),
)
LOOP = Section(
    name="loop",
    title="a loop",
    exactly_one=("in", "cursor"),
    exactly_one_code="loop_source",
    keys={
        "in": IN,
        "cursor": Key(shape=Below(CURSOR), says="rows that slots claim from a table until there are none"),
        "iterator": ITERATOR,
        "spec": Key(shape=Below(LOOP_SPEC)),
        "mode": Key(shape=_MODES, is_older=True),
        "concurrency": rendered(IN_FLIGHT.shape, "another word for `spec.max_in_flight`", is_older=True),
    },
)
REDUCE_SPEC = Section(
    name="reduce_spec",
    title="the spec of `reduce`",
    is_strict=True,
    keys={
        "engine": _ENGINE,
        "frame": Key(
            shape=Below(REDUCE_FRAME), feature=Feature.LOOP_FRAME, says="how a partition is leased and retried"
        ),
        "max_in_flight": IN_FLIGHT,
    },
)
_NAMES = Either(Name(), Items(Name()))
REDUCE = Section(
    name="reduce",
    title="`reduce`",
    is_strict=True,
    missing_code="tool_config",
    keys={
        "from": Key(shape=_NAMES, required=True, says="the step or steps whose output is reduced"),
        "by": Key(shape=_NAMES, says="columns by which rows go to the same partition"),
        "partitions": Key(
            shape=Number(what="a whole number", is_whole=True, minimum=1), says="how many frames there are (1)"
        ),
        "spec": Key(shape=Below(REDUCE_SPEC)),
    },
)
