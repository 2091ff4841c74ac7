"""Judges a history: invariants, what was acknowledged, and whether it ended as it does on a good day."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import structlog
from noetl_core.canonical import decode
from noetl_core.causes import is_cause
from noetl_core.commands.events import CallDone, CallFailed
from noetl_core.executions.decide import decide
from noetl_core.executions.events import StepEntered, StepExited, StepSkipped
from noetl_core.executions.plan import Plan
from noetl_core.fold import empty, fold
from noetl_core.loops.events import LoopDone
from noetl_core.recorded import Recorded
from noetl_core.stages.events import FrameCommitted, FrameDispatched, FrameStarted
from noetl_core.stages.shard_events import ShardEnqueued

from noetl_testkit.simulation.invariants import Stream, of_stream, row_equals_replay
from noetl_testkit.simulation.nodes import MAX_ATTEMPTS, parsed
from noetl_testkit.simulation.playbooks import Case
from noetl_testkit.simulation.world import Script, World

REDECIDED = 4
"""One history in so many is decided again, cause by cause."""


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What came of a script."""

    script: Script
    digest: str
    seconds: float
    steps: int
    problems: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


def judge(script: Script) -> Verdict:
    """Run a script, and look at what is left."""
    world = World(script)
    try:
        with quiet():
            with uncollected():
                world.run()
            problems = list(problems_of(world))
        return Verdict(
            script=script,
            digest=world.digest,
            seconds=world.loop.time(),
            steps=world.loop.steps,
            problems=problems,
            trace=world.trace,
        )
    finally:
        world.close()


@contextmanager
def uncollected() -> Iterator[None]:
    """Finalizers of what others left behind find the running loop and take steps on it: not in a history."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def quiet() -> Iterator[None]:
    """What processes say about faults would fill pages, and take longer than the faults."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.reset_defaults() if before is None else structlog.configure(**before)


def problems_of(world: World) -> Iterator[str]:
    """All of them, the most telling first."""
    yield from world.loop.unhandled
    yield from world.seen
    streams = [Stream(execution_id, stream.events) for execution_id, stream in sorted(world.log.streams.items())]
    for stream in streams:
        yield from of_stream(stream)
    if not world.is_over:
        yield f"not everything has ended after {world.loop.time():.0f} s: {_left(world)}"
        return
    rows = world.place.projections.executions
    for stream in streams:
        row = rows.get(stream.execution_id)
        yield from row_equals_replay(stream, row.state if row else None)
        if world.script.seed % REDECIDED == 0:
            yield from _decided_again(world, stream)
    roots = [one for one in streams if not one.events[0].envelope.parent_execution_id]
    if len(roots) != len(world.users):
        yield f"{len(world.users)} starts became {len(roots)} executions"
    yield from _lost(world)
    if not world.script.case.minds_time and not any(mind.startswith("cancel") for mind in world.script.minds):
        told, expected = outcome(streams), good_day(world.script.case, len(world.users))
        if told != expected:
            yield f"it ended differently than on a good day: {_difference(told, expected)}"


def _left(world: World) -> str:
    open_ones = [str(key) for key, stream in world.log.streams.items() if not stream.head.terminal]
    impatient = [str(number) for number, user in enumerate(world.users) if not user.is_done]
    return f"executions {open_ones}, users {impatient}"


def _lost(world: World) -> Iterator[str]:
    """Whatever anybody was told is in the log is there, in the same place."""
    for execution_id, version, checksum in world.acknowledged:
        stored = world.log.streams[execution_id].events
        if len(stored) < version or stored[version - 1].checksum != checksum:
            yield f"execution {execution_id} version {version} was acknowledged and is not in the log"


def outcome(streams: list[Stream]) -> Counter[str]:
    """What matters of histories: no ids, times, attempts, heartbeats or order of things that happen side by side."""
    told: Counter[str] = Counter()
    for stream in streams:
        path = stream.state.execution.path
        told[f"{path} {stream.status.value} {dict(sorted(stream.state.execution.variables.items()))}"] += 1
        for one in stream.events:
            told.update(f"{path} {what}" for what in _what(one))
    return told


def _what(one: Recorded) -> Iterator[str]:
    content = one.content
    match content:
        case StepEntered() | StepSkipped():
            yield f"{one.envelope.event_type} {content.step}"
        case StepExited():
            yield f"left {content.step} {content.status}"
        case CallDone() | CallFailed():
            yield f"{one.envelope.event_type} {content.step} {content.loop_iteration_index}"
        case LoopDone():
            yield f"loop.done {content.step}"
        case FrameCommitted():
            yield from (f"row {content.step} {row}" for row in range(content.start, content.stop))
        case _:
            return


@lru_cache(maxsize=256)
def good_day(case: Case, users: int) -> Counter[str]:
    """What comes of a playbook when nothing goes wrong."""
    world = World(Script(seed=0, case=case, minds=("",) * users, replicas=(1, 1, 1, 1))).run()
    try:
        return outcome([Stream(key, stream.events) for key, stream in sorted(world.log.streams.items())])
    finally:
        world.close()


def _difference(told: Counter[str], expected: Counter[str]) -> str:
    return f"more {dict(told - expected)}, less {dict(expected - told)}"


def _decided_again(world: World, stream: Stream) -> Iterator[str]:
    """Whoever recovers decides as the first one did: each cause again, on what was known at it."""
    state, folded = empty(stream.execution_id), set[int]()
    plan: Plan | None = None
    granted = FrameDispatched | FrameStarted | ShardEnqueued
    for event in stream.events:
        if event.stream_version in folded:
            continue
        state = fold(state, event)
        if not is_cause(event):
            continue
        plan = plan or plan_of(world, stream)
        decision = [other for other in stream.events if other.decided_through == event.stream_version]
        now: list[Any] = [*decide(state, event, plan)]
        for fact in decision:
            state = fold(state, fact)
            folded.add(fact.stream_version)
        decided = [fact.content for fact in decision if not isinstance(fact.content, granted)]
        if decided and decided != now:
            yield f"execution {stream.execution_id}: version {event.stream_version} would be decided otherwise now"


def plan_of(world: World, stream: Stream) -> Plan:
    """What an execution was started with."""
    execution = stream.state.execution
    documents = (world.script.case.document, *world.script.case.others)
    document = next(one for one in documents if parsed(one).path == execution.path)
    workload: Any = {}
    if execution.workload is not None:
        workload = decode(world.place.payloads.objects[execution.workload.uri])
    return Plan(playbook=parsed(document), workload=workload, max_attempts=MAX_ATTEMPTS)
