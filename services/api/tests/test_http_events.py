"""What HTTP shows of an event, under every name by which readers know it."""

from __future__ import annotations

from noetl_api.entrypoints.http.schemas import EventOut
from noetl_core.checkpoints.events import CheckpointCommitted
from noetl_testkit.frame_histories import drawn_frame_history
from noetl_testkit.histories import choices


def test_an_event_of_a_loop_shows_its_epoch_under_each_of_its_names() -> None:
    history = drawn_frame_history(choices(1))
    history.add(CheckpointCommitted(epoch_id="checkpoint_1_1", position=1, last_event_id="7"))

    *shown, checkpoint = [EventOut.of(stored).context for stored in history.stored]

    of_loops = [context for context in shown if "loop_id" in context]
    assert of_loops
    for context in of_loops:
        assert context["epoch_id"] == context["loop_event_id"] == context["loop_id"]
    assert all("epoch_id" not in context for context in shown if "loop_id" not in context)
    assert checkpoint["epoch_id"] == "checkpoint_1_1"
