import json
from dataclasses import replace
from pathlib import Path

import pytest
from noetl_cli.dev.down import exit_code_of
from noetl_cli.dev.processes import ProcessIdentity
from noetl_cli.dev.progress import Progress, status_lines
from noetl_cli.dev.state import ComponentState, Phase, StackState, Status
from noetl_core.errors import Corrupt

ME = ProcessIdentity.current()
GONE = ProcessIdentity(pid=ME.pid, started="another time")
READY = StackState(
    phase=Phase.READY,
    supervisor=ME,
    components={
        "nats": ComponentState(name="nats", status=Status.READY, process=ME, ports={"nats": 4222}, start_seconds=0.25),
        "api": ComponentState(name="api", status=Status.READY, process=GONE, restarts=2, error="crashed"),
    },
)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    READY.write(tmp_path / "state.json")

    assert StackState.read(tmp_path / "state.json") == READY
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600


def test_where_nothing_ever_ran_there_is_no_state(tmp_path: Path) -> None:
    assert StackState.read(tmp_path / "state.json") is None


@pytest.mark.parametrize("content", ["{", "{}", '{"phase": "dancing", "components": []}'])
def test_a_file_that_is_no_state_is_reported_as_corrupt(content: str, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(content)

    with pytest.raises(Corrupt):
        StackState.read(tmp_path / "state.json")


def test_a_live_supervisor_is_believed() -> None:
    assert READY.observed() is READY
    assert exit_code_of(READY) == 0


def test_a_killed_supervisor_is_found_out() -> None:
    observed = replace(READY, supervisor=GONE).observed()

    assert observed.phase is Phase.LOST
    assert observed.components["nats"].status is Status.READY  # it is alive, though nobody keeps it
    assert observed.components["api"].status is Status.LOST
    assert exit_code_of(observed) == 1


def test_scripts_learn_from_the_exit_code_how_the_stack_is() -> None:
    restarting = READY.with_component("api", status=Status.RESTARTING)

    assert exit_code_of(restarting) == 1
    assert exit_code_of(replace(READY, phase=Phase.STARTING)) == 1
    assert exit_code_of(replace(READY, phase=Phase.STOPPED)) == 3
    assert exit_code_of(None) == 3


def test_people_see_one_line_per_component() -> None:
    assert status_lines(READY) == [
        f"ready (supervisor {ME.pid})",
        f"  nats               {ME.pid:>8}  ready in 0.25 s  nats 127.0.0.1:4222",
        f"  api                {GONE.pid:>8}  ready, restarted 2 times",
    ]
    assert status_lines(None) == ["not running"]


def test_progress_tells_each_change_once() -> None:
    told: list[str] = []
    progress = Progress(told.append)
    starting = replace(READY.with_component("api", status=Status.STARTING), phase=Phase.STARTING)

    for state in (starting, starting, READY, READY):
        progress(state)

    assert told == [
        "  nats               ready in 0.25 s  nats 127.0.0.1:4222",
        "  api                ready, restarted 2 times",
        "ready",
    ]


def test_a_state_is_a_document_for_programs() -> None:
    document = json.loads(json.dumps(READY.to_json()))

    assert document["phase"] == "ready"
    assert [each["name"] for each in document["components"]] == ["nats", "api"]
