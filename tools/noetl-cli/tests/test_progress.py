import io
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from noetl_cli.follow.display import LiveDisplay, PlainDisplay, choose_display
from noetl_cli.follow.progress import Progress, Row, RowStatus
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Unavailable
from noetl_core.executions.events import PlaybookFailed, StepEntered, StepExited, StepSkipped, WorkflowInitialized
from noetl_core.loops.events import LoopDone, LoopItemStarted, LoopStarted
from noetl_testkit.histories import (
    EXECUTION,
    History,
    abandoned,
    claimed,
    completed,
    done,
    failed,
    failed_call,
    heartbeat,
    initialized,
    issued,
    started,
    two_steps,
)

TRAVEL = timedelta(milliseconds=20)


def take_all(progress: Progress, events: Sequence[StoredEvent]) -> list[tuple[str, str, int]]:
    """What each event changed: step, status and attempt."""
    changes = []
    for event in events:
        for row in progress.take(event, now=event.ingest_time + TRAVEL):
            changes.append((row.step, row.status.value, row.attempt))
    return changes


def failing_history() -> History:
    """One attempt is lost, the next one fails, and a step behind it is skipped."""
    history = History()
    first, second = issued(history, "load"), issued(history, "load", attempt=2)
    error = {"step": "load", "code": "PY_ValueError", "message": "no such file"}
    history.add(initialized())
    history.add(WorkflowInitialized(entry_step="load"), StepEntered(step="load", activation=1, consumes=("",)), first)
    history.add(claimed(first), started(first))
    history.add(abandoned(first), second)
    history.add(claimed(second, worker_id="worker-2"), started(second, worker_id="worker-2"))
    return history.add(
        failed_call(second, "no such file"),
        StepExited(step="load", activation=1, status="error", error=error, handled=False),
        failed(second, worker_id="worker-2"),
        StepSkipped(step="report"),
        PlaybookFailed(error=error),
    )


def test_steps_wait_run_and_end_in_the_order_in_which_they_were_entered() -> None:
    progress = Progress(EXECUTION)

    changes = take_all(progress, two_steps(History()).stored)

    seen = list(dict.fromkeys(changes))
    assert seen == [
        ("first", "waiting", 0),
        ("first", "waiting", 1),
        ("first", "running", 1),
        ("first", "done", 1),
        ("second", "waiting", 0),
        ("second", "waiting", 1),
        ("second", "running", 1),
        ("second", "done", 1),
    ]
    assert [row.step for row in progress.rows()] == ["first", "second"]


def test_a_lost_attempt_is_followed_by_another_and_a_failure_keeps_its_reason() -> None:
    progress = Progress(EXECUTION)

    take_all(progress, failing_history().stored)

    load, report = progress.rows()
    assert (load.status, load.attempt, load.worker_id) == (RowStatus.FAILED, 2, "worker-2")
    assert load.error is not None and load.error["code"] == "PY_ValueError"
    assert (report.status, report.seconds(datetime.max)) == (RowStatus.SKIPPED, None)


def test_durations_go_by_the_servers_clock_however_wrong_ours_is() -> None:
    history = two_steps(History())
    wrong = timedelta(hours=3)
    progress = Progress(EXECUTION)
    for event in history.stored[:6]:  # up to command.started of the first step
        progress.take(event, now=event.ingest_time + wrong)

    (row,) = progress.rows()
    later = history.stored[5].ingest_time + wrong + timedelta(seconds=5)

    assert row.seconds(progress.server_time(later)) == pytest.approx(6.0)  # entered one second before it was started
    assert progress.seconds(later) == pytest.approx(7.0, abs=0.1)


def test_where_nothing_can_move_each_change_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay(Progress(EXECUTION))

    for event in failing_history().stored:
        display.take(event, now=event.ingest_time + TRAVEL)
        display.tick(now=event.ingest_time + TRAVEL)
    display.close()

    assert capsys.readouterr().out.splitlines() == [
        "  load  waiting",
        "  load  running  1.0 s",
        "  load  waiting  attempt 2",
        "  load  running  3.0 s  attempt 2",
        "  load  failed   4.0 s  attempt 2  no such file (PY_ValueError)",
        "  report  skipped",
    ]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_list_is_drawn_over_itself_and_the_cursor_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    terminal = Terminal()
    display = choose_display(Progress(EXECUTION), stream=terminal, env={"TERM": "xterm"})
    assert isinstance(display, LiveDisplay)

    for event in two_steps(History()).stored:
        display.take(event, now=event.ingest_time + TRAVEL)
        display.tick(now=event.ingest_time + TRAVEL)
    display.outage(Unavailable("connection refused"))
    display.tick(now=event.ingest_time + TRAVEL)
    display.close()

    drawn = terminal.getvalue()
    last = drawn.rpartition("\x1b[2A\r")[2]
    assert drawn.startswith("\x1b[?25l") and drawn.endswith("\x1b[?25h")
    assert "RUNNING" in drawn and "RUNNING" not in last
    assert "✓ first " in last and "✓ second" in last
    assert "the server is away, waiting for it: connection refused" in last


def test_a_list_that_is_longer_than_the_screen_shows_what_is_still_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "8")
    history = History().add(initialized())
    for number in range(10):
        command = issued(history, f"step-{number}")
        history.add(StepEntered(step=f"step-{number}", activation=1), command)
        if number:
            history.add(StepExited(step=f"step-{number}", activation=1, status="ok"))
    terminal = Terminal()
    display = LiveDisplay(Progress(EXECUTION), stream=terminal)

    for event in history.stored:
        display.take(event, now=event.ingest_time)
    display.tick(now=history.now)

    lines = terminal.getvalue().splitlines()
    assert len(lines) <= 8
    assert "… 6 earlier steps" in terminal.getvalue()
    assert "step-0" in terminal.getvalue() and "step-9" in terminal.getvalue() and "step-3" not in terminal.getvalue()


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {}, {"TERM": "xterm", "NO_COLOR": "1"}])
def test_plain_lines_are_chosen_where_drawing_would_not_work_or_is_not_wanted(env: dict[str, str]) -> None:
    assert isinstance(choose_display(Progress(EXECUTION), stream=Terminal(), env=env), PlainDisplay)


def test_what_a_step_is_called_cannot_reach_the_terminal_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    history = History().add(initialized(), StepEntered(step="\x1b]0;owned\x07", activation=1))
    display = PlainDisplay(Progress(EXECUTION))

    for event in history.stored:
        display.take(event, now=event.ingest_time)

    assert capsys.readouterr().out == "  \\x1b]0;owned\\x07  waiting\n"


def test_a_loop_is_one_row_that_counts_its_items(capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    epoch: dict[str, Any] = {"loop_id": "loop", "step": "load", "activation": 1, "collection_size": 2}
    items = [replace(issued(history, "load", attempt=n + 1), loop_id="loop", loop_iteration_index=n) for n in (0, 1)]
    history.add(initialized())
    history.add(WorkflowInitialized(entry_step="load"), StepEntered(step="load", activation=1, consumes=("",)))
    history.add(LoopStarted(**epoch, mode="sequential", max_in_flight=1, items=(1, 2)))
    for n, item in enumerate(items):
        history.add(LoopItemStarted(loop_id="loop", step="load", iter_index=n, loop_iteration_index=n), item)
        history.add(claimed(item), started(item))
        history.add(replace(done(item), loop_id="loop", loop_iteration_index=n), completed(item))
    history.add(LoopDone(**epoch, status="ok", success=2), StepExited(step="load", activation=1, status="ok"))
    progress = Progress(EXECUTION)
    display = PlainDisplay(progress)

    for event in history.stored:
        display.take(event, now=event.ingest_time + TRAVEL)

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[1]) for line in lines] == [("load", "waiting"), ("load", "running"), ("load", "done")]
    assert progress.rows()[0].items == "2 of 2 items"


def test_a_row_that_never_ran_took_no_time() -> None:
    assert Row(step="a", status=RowStatus.SKIPPED).seconds(datetime.max) is None


def test_how_far_spark_is_stands_beside_its_step_until_that_ends(capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    command = issued(history, "count")
    told = {"engine": "spark", "stages_done": 1, "stages": 3, "tasks_done": 40, "tasks": 200}
    history.add(initialized())
    history.add(WorkflowInitialized(entry_step="count"), StepEntered(step="count", activation=1), command)
    history.add(claimed(command), started(command))
    history.add(replace(heartbeat(command), progress=told))
    history.add(heartbeat(command))
    progress = Progress(EXECUTION)
    display = PlainDisplay(progress)
    for event in history.stored:
        display.take(event, now=event.ingest_time + TRAVEL)

    (row,) = progress.rows()
    assert row.call == "Spark: stage 1 of 3, task 40 of 200"
    assert capsys.readouterr().out.count("Spark: stage 1 of 3, task 40 of 200") == 1
    history.add(done(command), StepExited(step="count", activation=1, status="ok"), completed(command))
    for event in history.stored[-3:]:
        display.take(event, now=event.ingest_time + TRAVEL)
    assert progress.rows()[0].call == ""
