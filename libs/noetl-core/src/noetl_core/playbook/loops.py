"""Read loops, frames and reduce stages."""

from __future__ import annotations

from typing import TypeVar

from noetl_core.playbook.context_names import warn_if_shadowing
from noetl_core.playbook.fields import Fields, type_name
from noetl_core.playbook.loop_model import (
    Cursor,
    Engine,
    FailureBudget,
    FrameFailure,
    FramePolicy,
    FrameProcess,
    Loop,
    Reduce,
    is_late,
)
from noetl_core.playbook.loop_vocabulary import OLDER_MODES
from noetl_core.playbook.support import Feature
from noetl_core.playbook.task_model import Count, LoopMode, TaskLoop

Value = TypeVar("Value")

_CURSOR_KINDS = ("postgres",)
_DEFAULT_IN_FLIGHT = 8
_FEATURES = {
    LoopMode.SEQUENTIAL: Feature.LOOP_SEQUENTIAL,
    LoopMode.PARALLEL: Feature.LOOP_PARALLEL,
    LoopMode.FANOUT: Feature.LOOP_FANOUT,
    LoopMode.CURSOR: Feature.LOOP_CURSOR,
}


def read_loop(loop: Fields, step_spec: Fields | None) -> Loop | None:
    """The loop of a step; part of it may stand in the step's spec in older playbooks."""
    spec = loop.below("spec")
    cursor = loop.below("cursor")
    retries = None if spec is None else spec.whole("max_item_retries")
    if retries is None:
        retries = _older_retries(step_spec)
    mode = _mode(loop, spec, step_spec)
    read = Loop(
        items=loop.values.get("in"),
        cursor=None if cursor is None else _read_cursor(cursor),
        iterator=_iterator(loop),
        mode=mode,
        max_in_flight=_max_in_flight(mode, loop, spec),
        engine=_engine(spec),
        key=None if spec is None else spec.text("key"),
        max_item_retries=2 if retries is None else retries,
        failure_budget=_read_budget(spec),
        frame=read_frame(spec),
    )
    return read if _has_source(loop) and _is_supported(read, loop, spec) else None


def read_task_loop(loop: Fields) -> TaskLoop | None:
    """The loop of a task."""
    if not _has_source(loop):
        return None
    spec = loop.below("spec")
    mode = LoopMode((None if spec is None else spec.text("mode")) or LoopMode.SEQUENTIAL)
    return TaskLoop(
        items=loop.values.get("in"),
        iterator=_iterator(loop),
        mode=mode,
        max_in_flight=_max_in_flight(mode, loop, spec),
    )


def read_reduce(reduce: Fields) -> Reduce:
    """A reduce stage; whether its sources are stages is known when all steps have been read."""
    spec = reduce.below("spec")
    sources, by = reduce.texts("from"), reduce.texts("by")
    partitions = reduce.whole("partitions")
    if "from" in reduce.values and not sources:
        reduce.invalid("from", "must name at least one step", code="tool_config")
    if partitions is not None and partitions > 1 and not by:
        reduce.invalid("partitions", "above 1 needs 'by', the columns that tell where a row goes", code="tool_config")
    in_flight = None if spec is None else spec.count("max_in_flight")
    return Reduce(
        sources=sources,
        by=by,
        partitions=partitions or 1,
        engine=_engine(spec),
        frame=read_frame(spec),
        max_in_flight=_DEFAULT_IN_FLIGHT if in_flight is None else in_flight,
    )


def read_frame(spec: Fields | None) -> FramePolicy | None:
    """The bounds of a frame; what is not written has its default."""
    frame = None if spec is None else spec.below("frame")
    if frame is None:
        return None
    defaults = FramePolicy()
    policy = FramePolicy(
        max_rows=_or(frame.count("max_rows"), defaults.max_rows),
        max_bytes=_or(frame.count("max_bytes"), defaults.max_bytes),
        max_seconds=_or(frame.amount("max_seconds"), defaults.max_seconds),
        lease_seconds=_or(frame.amount("lease_seconds"), defaults.lease_seconds),
        heartbeat_seconds=_or(frame.amount("heartbeat_seconds"), defaults.heartbeat_seconds),
        process=FrameProcess(frame.text("process") or defaults.process),
        row_concurrency=_or(frame.count("row_concurrency"), defaults.row_concurrency),
        max_attempts=_or(frame.count("max_attempts"), defaults.max_attempts),
        on_failure=FrameFailure(frame.text("on_failure") or defaults.on_failure),
    )
    _check_lease(frame, policy)
    if policy.on_failure is FrameFailure.BISECT:
        frame.findings.supports(Feature.FRAME_BISECT, (*frame.path, "on_failure"))
    return policy


def _check_lease(frame: Fields, policy: FramePolicy) -> None:
    """What is a template is checked when the stage opens."""
    lease, heartbeat = policy.lease_seconds, frame.number("heartbeat_seconds")
    if heartbeat is not None and not isinstance(lease, str) and is_late(heartbeat, lease_seconds=lease):
        frame.invalid("heartbeat_seconds", f"must be at most half of the lease of {lease:g} s, not {heartbeat:g}")


def _has_source(loop: Fields) -> bool:
    items = loop.values.get("in")
    if isinstance(items, bool | int | float):
        loop.invalid("in", f"must be a list, a map, text or a template, not {type_name(items)}")
        return False
    return len(loop.written.intersection(loop.section.exactly_one)) == 1


def _is_supported(read: Loop, loop: Fields, spec: Fields | None) -> bool:
    is_supported = loop.findings.supports(_FEATURES[read.mode], loop.path)
    if read.mode is LoopMode.FANOUT and spec is not None:
        if read.frame is not None:
            is_supported = loop.findings.supports(Feature.FANOUT_FRAME, (*spec.path, "frame")) and is_supported
        if read.key is not None:
            is_supported = loop.findings.supports(Feature.FANOUT_KEY, (*spec.path, "key")) and is_supported
    if read.engine is Engine.SPARK and spec is not None:
        return loop.findings.supports(Feature.LOOP_SPARK, (*spec.path, "engine")) and is_supported
    return is_supported


def _mode(loop: Fields, spec: Fields | None, step_spec: Fields | None) -> LoopMode:
    word = None if spec is None else spec.text("mode")
    if word in OLDER_MODES and spec is not None:
        spec.older("mode", f"{word!r} is read as {OLDER_MODES[word]}", suggestion=f"write {OLDER_MODES[word]}")
    older = loop.text("mode")
    if older is not None:
        meant = OLDER_MODES.get(older, older)
        loop.older("mode", "'mode' belongs into the loop's `spec`", suggestion=f"write `spec: {{mode: {meant}}}`")
        word = word or older
    if word is None and step_spec is not None:
        word = step_spec.text("loop_mode")
    mode = None if word is None else OLDER_MODES.get(word) or LoopMode(word)
    place = loop if spec is None or not spec.has("mode") else spec
    is_cursor = "cursor" in loop.written and "in" not in loop.written
    if mode is None:
        return LoopMode.CURSOR if is_cursor else LoopMode.SEQUENTIAL
    if is_cursor != (mode is LoopMode.CURSOR):
        place.invalid("mode", f"must not be {mode}: " + ("a cursor has its own" if is_cursor else "there is no cursor"))
    return mode


def _max_in_flight(mode: LoopMode, loop: Fields, spec: Fields | None) -> Count:
    written = None if spec is None else spec.count("max_in_flight")
    for fields in (spec, loop):
        if fields is not None and fields.has("concurrency"):
            fields.older("concurrency", "'concurrency' is now `spec.max_in_flight`")
            written = fields.count("concurrency") if written is None else written
    if mode is LoopMode.SEQUENTIAL:
        return 1
    return written or (1 if mode is LoopMode.CURSOR else _DEFAULT_IN_FLIGHT)


def _engine(spec: Fields | None) -> Engine | None:
    word = None if spec is None else spec.text("engine")
    return None if word is None else Engine(word)


def _iterator(loop: Fields) -> str:
    name = loop.text("iterator")
    if name is None:
        return "item"
    warn_if_shadowing("iterator", name, (*loop.path, "iterator"), loop.findings)
    return name


def _read_cursor(cursor: Fields) -> Cursor:
    kind = cursor.text("kind") or ""
    if cursor.has("kind") and kind not in _CURSOR_KINDS:
        suggestion = f"write {_CURSOR_KINDS[0]}"
        cursor.invalid("kind", f"must be {_CURSOR_KINDS[0]}, not {kind!r}", code="tool_config", suggestion=suggestion)
    return Cursor(kind=kind, auth=cursor.values.get("auth"), claim=cursor.text("claim") or "")


def _read_budget(spec: Fields | None) -> FailureBudget:
    budget = None if spec is None else spec.below("failure_budget")
    if budget is None:
        return FailureBudget(count=0)
    count, share = budget.whole("count"), budget.number("share")
    return FailureBudget(count=0 if count is None and share is None else count, share=share)


def _older_retries(step_spec: Fields | None) -> int | None:
    fanout = None if step_spec is None else step_spec.below("fanout")
    return None if fanout is None else fanout.whole("max_shard_retries")


def _or(written: Value | None, default: Value) -> Value:
    return default if written is None else written
