from dataclasses import MISSING, fields, is_dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_core.canonical import decode, encode
from noetl_core.children.state import AnsweredCall, ParentCall, ParkedCall
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.errors import Corrupt
from noetl_core.executions.state import Arrival, Execution, ExecutionStatus, Step, StepStatus
from noetl_core.fold import State, empty, fold, fold_all, prune
from noetl_core.loops.state import Loop
from noetl_core.stages.policy import FrameBounds
from noetl_core.stages.state import EndedFrame, Frame, Stage
from noetl_core.state_json import FORMAT, decode_state, encode_state
from noetl_core.steering.state import HeldCause
from noetl_core.streams.state import Chunk, ChunkQueue, Place
from noetl_testkit.histories import EXECUTION, WORKLOAD, History, histories, two_steps

LATER = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)

CHUNK = Chunk(step="s", task="t", call=1, chunk_index=4, row_count=9, has_more=True, reference=WORKLOAD.to_json())
STEP = Step(
    status=StepStatus.SKIPPED,
    activation=2,
    cause_step="x",
    result={"n": 1.5},
    deadline=LATER,
    chunk=CHUNK,
    made_at="noetl://tenant/t/org/o/worker/w",
)
FRAME = Frame(
    frame_id="1-s-4",
    index=4,
    start=8,
    stop=10,
    attempt=2,
    slot=1,
    sequence=3,
    worker_id="w",
    worker_locator="noetl://tenant/t/org/o/worker/w",
    source="noetl://tenant/t/org/o/worker/v",
    lease_until=LATER,
    dispatched_at=LATER,
    aggregate_version=6,
    after="1-s-3/1",
    claim_id="c-1/0",
    parent_frame_id="1-s-2",
    claimed=WORKLOAD,
    claimed_at=6,
    claimed_event_id=2**60,
    created_at=LATER,
    started_at=LATER,
)
STAGE = Stage(
    stage_id="1-s",
    step="l",
    activation=2,
    loop_id="loop_1_l_2",
    kind="loop",
    engine="inline",
    total=20,
    max_in_flight=3,
    bounds=FrameBounds(
        max_rows=2,
        max_bytes=3,
        max_seconds=4.5,
        lease_seconds=5.5,
        heartbeat_seconds=1.5,
        process="frame",
        row_concurrency=7,
        retry_mode="other",
        max_attempts=9,
        on_failure="bisect",
    ),
    pool="gpu",
    next_row=10,
    dispatched=5,
    rest=((3, 4),),
    frames={"1-s-4": FRAME},
    sequences=(2, 4),
    ended=(EndedFrame(key="1-s-3/1", worker_id="w", ended_by="frame.committed", stream_version=6),),
    is_cursor=True,
    drained=(2,),
    sources=({"step": "s", "reference": {"type": "loop"}},),
    parent_stage_id="1-r",
    status="partial",
    opened_event_id=2**60,
    parent_event_id=2**61,
    opened_at=LATER,
)
FULL = State(
    execution=Execution(
        execution_id=2**63 - 1,
        tenant_id="t",
        organization_id="o",
        path="a/b",
        version=9,
        catalog_id="c",
        parent_execution_id=str(2**62),
        parent_call=ParentCall(command_id="up", call_id="call", step="s", pool="p", pipeline=True),
        depth=3,
        children=4,
        answered={"call": AnsweredCall(step="s", status="failed")},
        cascades=True,
        workload=WORKLOAD,
        variables={"limit": 7, "list": [1, {}]},
        variable_refs={"large": {"uri": "noetl://x"}},
        status=ExecutionStatus.PAUSED,
        pauses=2,
        held=(HeldCause(version=3, event_type="x.y", event_time=LATER, node_name="n", command_id="c", meta={"a": 1}),),
        released=(HeldCause(version=4, event_type="x.z", event_time=LATER),),
        redrive_of="7",
        inherited=WORKLOAD,
        redriven_rows={"step": "l", "count": 2, "reference": {"uri": "noetl://y"}},
        steps={"ü\u0000 step": STEP},
        arrivals=(Arrival(step="j", cause_step="a", chunk=CHUNK, times=2),),
        streams={"s": ChunkQueue(activation=3, waiting=(CHUNK, CHUNK), closed=True)},
        loops={
            "l": Loop(
                loop_id="loop_1_l_2",
                activation=2,
                mode="parallel",
                total=9,
                max_in_flight=4,
                started_version=3,
                items=(1, {"a": [None]}),
                collection=WORKLOAD,
                begun=5,
                finished=((0, 1), (3, 3)),
                success=2,
                failed=1,
                first_error={"index": 3, "code": "x", "message": None},
                awaits=2,
                breaks=1,
                frame_count=7,
                stage_id="1-s",
                outcome={"status": "ok"},
                before={"v": {"value": None}, "w": {}},
                status="partial",
            )
        },
        stages={"l": STAGE},
        failure={},
        failed_chunk=CHUNK,
        deadline=LATER,
        started_at=LATER,
        ended_at=LATER,
        error={"code": "x", "list": [1, None, {"deep": []}]},
        trace="00-a",
    ),
    commands={
        "cmd": Command(
            command_id="cmd",
            step="s",
            activation=2,
            attempt=3,
            pool="gpu",
            cause_step="c",
            pipeline=True,
            status=CommandStatus.STARTED,
            issued_at=LATER,
            issued_version=4,
            trace="00-b",
            worker_id="w",
            worker_locator="noetl://tenant/t/org/o/worker/w",
            claimed_after="before",
            lease_until=LATER,
            aggregate_version=5,
            stream_version=6,
            ended_at=LATER,
            evaluation={"place": "leave", "step": "s"},
            answer={"status": "ok", "context": {"evaluation": {"arcs/0/when": {"is": True}}}},
            parked=ParkedCall(call_id="k", child_execution_id="7", pipeline=WORKLOAD, status="completed"),
            deadline=LATER,
            streamed=Place(call=1, chunk=5),
            loop_id="loop_1_l_2",
            loop_index=7,
            stage_id="1-s",
        )
    },
    stream_version=7,
    last_event_id=2**63 - 2,
    last_event_type="x.y",
    last_node_name="s",
    event_time_watermark=LATER,
    unknown_events=8,
    checkpoints=2,
    checkpoint_version=11,
)


def test_every_field_of_a_state_survives() -> None:
    assert decode_state(encode_state(FULL)) == FULL


def test_the_example_above_leaves_no_field_at_its_default() -> None:
    """Otherwise a field that the encoding forgets would not be missed."""

    def check(value: Any) -> None:
        assert is_dataclass(value)
        for field in fields(value):
            made = field.default if field.default_factory is MISSING else field.default_factory()
            assert getattr(value, field.name) != made, f"{type(value).__name__}.{field.name}"

    for part in (
        FULL,
        FULL.execution,
        *FULL.execution.steps.values(),
        *FULL.execution.arrivals,
        *FULL.execution.loops.values(),
        STAGE,
        STAGE.bounds,
        FRAME,
        *FULL.commands.values(),
    ):
        check(part)


def test_an_execution_of_which_nothing_is_known_survives() -> None:
    assert decode_state(encode_state(empty(EXECUTION))) == empty(EXECUTION)


@given(histories())
def test_a_state_survives_at_every_version(history: History) -> None:
    state = empty(EXECUTION)
    for event in history.recorded:
        state = fold(state, event)
        assert decode_state(encode_state(state)) == state


@given(histories(), st.data())
def test_folding_onto_a_stored_state_is_folding_on(history: History, data: st.DataObject) -> None:
    events = history.recorded
    cut = data.draw(st.integers(0, len(events)))
    stored = encode_state(prune(fold_all(empty(EXECUTION), events[:cut])))

    continued = fold_all(decode_state(stored), events[cut:])

    assert encode_state(prune(continued)) == encode_state(prune(fold_all(empty(EXECUTION), events)))


def test_ids_are_text_because_a_json_number_would_lose_digits() -> None:
    fields_of = decode(encode_state(FULL))

    assert isinstance(fields_of, dict)
    assert fields_of["execution_id"] == str(2**63 - 1)
    assert fields_of["last_event_id"] == str(2**63 - 2)


def test_equal_states_have_equal_bytes_in_whatever_order_they_were_built() -> None:
    steps = {"a": Step(status=StepStatus.DONE), "b": Step(status=StepStatus.ACTIVE)}
    one = State(execution=Execution(execution_id=1, steps=steps))
    other = State(execution=Execution(execution_id=1, steps=dict(reversed(steps.items()))))

    assert encode_state(one) == encode_state(other)


def test_no_failure_and_an_empty_failure_are_different_facts() -> None:
    possible: tuple[dict[str, str] | None, ...] = (None, {})
    for failure in possible:
        state = State(execution=Execution(execution_id=1, failure=failure))
        assert decode_state(encode_state(state)).execution.failure == failure


def test_a_small_state_is_a_small_row() -> None:
    history = two_steps(History())

    assert len(encode_state(fold_all(empty(EXECUTION), history.recorded))) < 2200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        encode({"format": FORMAT + 1, "execution_id": "1", "last_event_id": "0", "status": "RUNNING"}),
        encode({"format": FORMAT}),
        encode({"format": FORMAT, "execution_id": "x", "last_event_id": "0", "status": "RUNNING"}),
        encode({"format": FORMAT, "execution_id": "1", "last_event_id": "0", "status": "RUNNING", "steps": [1]}),
        encode({"format": FORMAT, "execution_id": "1", "last_event_id": "0", "status": "DANCING"}),
        encode(
            {"format": FORMAT, "execution_id": "1", "last_event_id": "0", "status": "RUNNING", "workload": {"a": 1}}
        ),
    ],
)
def test_bytes_that_hold_no_state_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_state(data)


def test_a_changed_field_is_a_changed_state() -> None:
    assert encode_state(replace(FULL, unknown_events=9)) != encode_state(FULL)
