"""What a worker tells the planner was stored before: the types say so, and nobody makes the proof but one module."""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from noetl_worker.application import event_result, frame_work, persist_before_emit, slots
from noetl_worker.application.command_end import CommandEnd
from noetl_worker.application.event_result import EventResult
from noetl_worker.application.outcome import OutcomeMeta
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, failed_with, nothing_stored

WORKER = Path(persist_before_emit.__file__).parents[1]
ONE_WAY = Path(persist_before_emit.__file__)
STORES_WITHOUT_TELLING = {"captured_output.py", "spark_inputs.py"}
"""What was printed is a courtesy, and inputs of Spark are no results."""


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(WORKER.rglob("*.py")):
        yield path, ast.parse(path.read_text("utf-8"))


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id, node
            elif isinstance(node.func, ast.Attribute):
                yield node.func.attr, node


def test_what_is_delivered_is_a_result_that_was_stored() -> None:
    assert typing.get_type_hints(CommandEnd)["result"] is EventResult
    makers = (PersistBeforeEmit.__call__, PersistBeforeEmit.rows, failed_with, nothing_stored)
    assert {maker.__annotations__["return"] for maker in makers} == {EventResult.__name__}
    assert getattr(EventResult, "__final__", False)


def test_nobody_else_can_make_one() -> None:
    """The constructor wants a proof; nobody but the one way out makes or hands out any."""
    with pytest.raises(TypeError):
        EventResult(status="ok", reference=None, parent_ref=None, context={}, proof=None)  # type: ignore[arg-type]
    makers = {path for path, tree in trees() for name, _ in calls(tree) if name in ("EventResult", "Proof")}
    assert makers == {ONE_WAY}
    named = {
        path
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.alias) and _is_proof(node)
    }
    assert named <= {ONE_WAY, Path(event_result.__file__)}
    assert "_STORED" not in persist_before_emit.__all__


def _is_proof(node: ast.AST) -> bool:
    names = (getattr(node, key, None) for key in ("id", "attr", "name"))
    return not isinstance(node, ast.ClassDef) and any(name in ("Proof", "_STORED") for name in names)


def test_results_reach_the_planner_from_one_place_only() -> None:
    telling = ("complete", "commit_frame", "fail_frame")
    tellers = {
        path for path, tree in trees() for name, call in calls(tree) if name in telling and _has(call, "wants_next")
    }
    assert tellers == {Path(slots.__file__), Path(frame_work.__file__)}


def _has(call: ast.Call, keyword: str) -> bool:
    return any(word.arg == keyword for word in call.keywords)


def test_bytes_that_events_refer_to_are_stored_in_one_way() -> None:
    """With the pauses of one place between attempts, and without a second one that forgets what the first knows."""
    writers = {
        path for path, tree in trees() for name, call in calls(tree) if name == "put" and _has(call, "tenant_id")
    }
    assert {path.name for path in writers} - STORES_WITHOUT_TELLING == {ONE_WAY.name}


def test_results_without_bytes_refer_to_nothing() -> None:
    refused = failed_with(persist_before_emit.lost_result("why", OutcomeMeta()))
    for result in (refused, nothing_stored({"row_count": 0})):
        assert isinstance(result, Mapping)
        assert (result["reference"], result["parent_ref"]) == (None, None)
