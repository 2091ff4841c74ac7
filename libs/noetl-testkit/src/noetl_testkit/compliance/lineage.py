"""What every lineage must answer; an adapter's tests subclass this and supply a log with the lineage over it."""

from abc import ABC, abstractmethod
from dataclasses import replace

import pytest
from noetl_core.append import StreamStart
from noetl_core.envelope import Draft
from noetl_core.errors import NotFound
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.lineage import MAX_TRACE, Lineage

from noetl_testkit.compliance.event_log import ACME, RIVAL, new_id, note, request

Result = tuple[str, str, str | None]
"""Step, reference, and the reference that it was made from."""


def told(number: int, result: Result, *, event_type: str = "call.done", loop_id: str | None = None) -> Draft:
    """An event that tells of a result."""
    step, ref_id, parent = result
    return Draft(
        event_type=event_type,
        idempotency_key=f"result/{number}",
        aggregate_type="command",
        aggregate_id=f"command-{number}",
        command_id=f"command-{number}",
        node_name=step,
        meta={"loop_id": loop_id} if loop_id else {},
        result={
            "status": "error" if event_type == "call.error" else "ok",
            "reference": {"ref_id": ref_id, "bytes": number},
            "parent_ref": None if parent is None else {"ref_id": parent},
            "context": None,
        },
    )


async def execution(log: EventLog, *results: Result) -> int:
    """An execution in which these results were told in this order, the first at version 2."""
    execution_id = new_id()
    drafts = [told(number, result) for number, result in enumerate(results)]
    await log.append(request(execution_id, note("start"), *drafts, start=StreamStart()))
    return execution_id


class LineageCompliance(ABC):
    """One suite, run by the adapter and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def log(self) -> EventLog:
        """An empty log."""

    @pytest.fixture
    @abstractmethod
    def lineage(self) -> Lineage:
        """The lineage over this log."""

    async def test_a_chain_goes_back_to_the_first_result(self, log: EventLog, lineage: Lineage) -> None:
        execution_id = await execution(log, ("a", "ref-a", None), ("b", "ref-b", "ref-a"), ("c", "ref-c", "ref-b"))

        trace = await lineage.trace(ACME, execution_id, "c")

        assert [(result.step, result.ref_id, result.stream_version) for result in trace.results] == [
            ("c", "ref-c", 4),
            ("b", "ref-b", 3),
            ("a", "ref-a", 2),
        ]
        assert not trace.truncated
        assert trace.results[0].parent_ref_id == "ref-b"
        assert trace.results[2].parent_ref_id is None
        assert trace.results[0].command_id == "command-2"

    async def test_what_a_pipeline_gave_is_found_under_its_step(self, log: EventLog, lineage: Lineage) -> None:
        """Also beside a step that has the name of its node."""
        execution_id = await execution(log, ("a", "ref-a", None))
        of_pipeline = told(1, ("b:task_sequence", "ref-b", "ref-a"))
        events = [replace(of_pipeline, meta={"pipeline": True}), told(2, ("b:task_sequence", "ref-c", "ref-b"))]
        await log.append(request(execution_id, *events))

        pipeline = await lineage.trace(ACME, execution_id, "b")
        other = await lineage.trace(ACME, execution_id, "b:task_sequence")

        assert [(result.step, result.ref_id) for result in pipeline.results] == [("b", "ref-b"), ("a", "ref-a")]
        assert [result.step for result in other.results] == ["b:task_sequence", "b", "a"]

    async def test_other_branches_are_left_out(self, log: EventLog, lineage: Lineage) -> None:
        execution_id = await execution(log, ("a", "ref-a", None), ("x", "ref-x", "ref-a"), ("b", "ref-b", "ref-a"))

        trace = await lineage.trace(ACME, execution_id, "b")

        assert [result.step for result in trace.results] == ["b", "a"]

    async def test_of_several_results_the_last_before_is_meant(self, log: EventLog, lineage: Lineage) -> None:
        execution_id = await execution(
            log, ("a", "same", None), ("b", "b1", "same"), ("a", "same", "b1"), ("b", "b2", "same"), ("a", "same", "b2")
        )

        trace = await lineage.trace(ACME, execution_id, "b")
        earlier = await lineage.trace(ACME, execution_id, "b", at_version=4)

        assert [result.stream_version for result in trace.results] == [5, 4, 3, 2]
        assert [result.stream_version for result in earlier.results] == [3, 2]

    async def test_a_result_that_names_itself_ends_the_chain(self, log: EventLog, lineage: Lineage) -> None:
        execution_id = await execution(log, ("a", "same", "same"))

        assert len((await lineage.trace(ACME, execution_id, "a")).results) == 1

    async def test_errors_are_results_too(self, log: EventLog, lineage: Lineage) -> None:
        execution_id = await execution(log, ("a", "ref-a", None))
        await log.append(request(execution_id, told(9, ("b", "ref-b", "ref-a"), event_type="call.error")))

        trace = await lineage.trace(ACME, execution_id, "b")

        assert [(result.step, result.status) for result in trace.results] == [("b", "error"), ("a", "ok")]

    @pytest.mark.parametrize("event_type", ["call.done", "frame.committed"])
    async def test_a_loop_was_made_from_what_its_items_or_frames_were_made_from(
        self, log: EventLog, lineage: Lineage, event_type: str
    ) -> None:
        execution_id = await execution(log, ("a", "ref-a", None))
        events = [
            told(1, ("each", "item-1", "ref-a"), event_type=event_type, loop_id="loop-1"),
            told(2, ("each", "item-2", "ref-a"), event_type=event_type, loop_id="loop-1"),
            told(3, ("each", "all", None), event_type="loop.done", loop_id="loop-1"),
            told(4, ("b", "ref-b", "all")),
        ]
        await log.append(request(execution_id, *events))

        trace = await lineage.trace(ACME, execution_id, "b")

        assert [result.ref_id for result in trace.results] == ["ref-b", "all", "ref-a"]
        assert trace.results[1].parent_ref_id == "ref-a"
        assert await lineage.find(ACME, execution_id, "item-2") is not None

    async def test_a_step_without_a_result_has_no_trace(self, log: EventLog, lineage: Lineage) -> None:
        execution_id = await execution(log, ("a", "ref-a", None))

        assert (await lineage.trace(ACME, execution_id, "nothing")).results == ()

    async def test_a_long_chain_is_cut(self, log: EventLog, lineage: Lineage) -> None:
        results: list[Result] = [("a", "ref-0", None)]
        results += [("a", f"ref-{n}", f"ref-{n - 1}") for n in range(1, MAX_TRACE + 5)]
        execution_id = await execution(log, *results)

        trace = await lineage.trace(ACME, execution_id, "a")

        assert trace.truncated
        assert len(trace.results) == MAX_TRACE
        assert trace.results[0].ref_id == f"ref-{MAX_TRACE + 4}"

    async def test_a_result_is_found_by_its_reference(self, log: EventLog, lineage: Lineage) -> None:
        execution_id = await execution(log, ("a", "ref-a", None), ("b", "ref-b", "ref-a"), ("a", "ref-a", "ref-b"))

        found = await lineage.find(ACME, execution_id, "ref-a")

        assert found is not None
        assert (found.step, found.stream_version, found.reference["bytes"]) == ("a", 4, 2)
        assert await lineage.find(ACME, execution_id, "ref-c") is None

    async def test_what_belongs_to_others_does_not_exist(self, log: EventLog, lineage: Lineage) -> None:
        execution_id = await execution(log, ("a", "ref-a", None))

        for owner, wanted in ((RIVAL, execution_id), (ACME, new_id())):
            with pytest.raises(NotFound) as refusal:
                await lineage.trace(owner, wanted, "a")
            assert refusal.value.code == "execution.not_found"
            with pytest.raises(NotFound):
                await lineage.find(owner, wanted, "ref-a")
        assert (await lineage.trace(None, execution_id, "a")).results
