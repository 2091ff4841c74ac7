import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from noetl_cli.dev.down import down, status
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.postgres import PostgresCluster
from noetl_cli.dev.processes import ProcessIdentity
from noetl_cli.dev.sql import fetch_value
from noetl_cli.dev.state import ComponentState, Phase, StackState, Status
from noetl_cli.dev.up import up
from noetl_testkit.eventually import eventually

FOREGROUND = """
import sys
from pathlib import Path
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.up import up
out = lambda line: print(line, flush=True)
sys.exit(up(StackHome(root=Path(sys.argv[1])), stack="dev_stacks:chain", out=out, foreground=True))
"""


@pytest.fixture(autouse=True)
def _stacks_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StackHome]:
    home = StackHome(root=tmp_path / "stack")
    yield home
    down(home, out=lambda _: None)


class Told(list[str]):
    """What a command said, to be looked through."""

    def has(self, text: str) -> bool:
        return any(text in line for line in self)


def started(home: StackHome, stack: str) -> Told:
    told = Told()
    assert up(home, stack=f"dev_stacks:{stack}", out=told.append) == 0, "\n".join(told)
    return told


def state_of(home: StackHome) -> StackState:
    state = status(home)
    assert state is not None
    return state


def process_of(home: StackHome, name: str) -> ProcessIdentity:
    process = state_of(home).components[name].process
    assert process is not None
    return process


def until(home: StackHome, name: str, condition: Callable[[ComponentState], bool]) -> ComponentState:
    eventually(lambda: condition(state_of(home).components[name]))
    return state_of(home).components[name]


def events(home: StackHome) -> list[str]:
    return (home.root / "events.txt").read_text().splitlines()


def all_processes(home: StackHome) -> list[ProcessIdentity]:
    state = state_of(home)
    return [state.supervisor, *(each.process for each in state.components.values() if each.process is not None)]


def test_a_stack_starts_in_the_order_of_its_dependencies_and_stops_in_the_reverse(home: StackHome) -> None:
    told = started(home, "chain")
    state = state_of(home)
    assert state.phase is Phase.READY
    assert state.components["migrate"].status is Status.DONE
    assert state.components["api"].ports == {"http": 8080}
    assert told.has("api") and told[-1] == "ready"

    assert down(home, out=told.append) == 0

    assert events(home) == [
        "start database",
        "run migrate",
        "start api",
        "start worker",
        "stop worker",
        "stop api",
        "stop database",
    ]
    assert state_of(home).phase is Phase.STOPPED
    assert not any(process.is_alive() for process in [state.supervisor])


def test_the_stack_outlives_the_command_that_started_it_in_a_session_of_its_own(home: StackHome) -> None:
    started(home, "with_parent")

    supervisor = state_of(home).supervisor.pid
    assert os.getsid(supervisor) == supervisor != os.getsid(0)


def test_up_on_a_running_stack_says_so_and_changes_nothing(home: StackHome) -> None:
    started(home, "chain")
    before = all_processes(home)

    told = started(home, "chain")

    assert told.has("already running")
    assert all_processes(home) == before


def test_two_ups_at_once_start_one_stack_and_both_wait_for_it(home: StackHome) -> None:
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda _: started(home, "slow"), range(2)))

    assert all(each.has("ready") or each.has("already running") for each in told)
    assert events(home) == ["start good"]


def test_a_killed_component_is_started_again_and_the_others_are_left_alone(home: StackHome) -> None:
    started(home, "chain")
    api, database = process_of(home, "api"), process_of(home, "database")

    os.kill(api.pid, signal.SIGKILL)

    again = until(home, "api", lambda each: each.restarts == 1 and each.status is Status.READY)
    assert again.process is not None and again.process != api
    assert again.error == "ended by SIGKILL"
    assert process_of(home, "database") == database
    assert state_of(home).phase is Phase.READY


def test_what_a_killed_component_had_started_is_ended_with_it(home: StackHome) -> None:
    started(home, "with_parent")
    pid = next(int(line.split()[1]) for line in events(home) if line.startswith("child"))
    child = ProcessIdentity.of(pid)
    assert child is not None

    os.kill(process_of(home, "parent").pid, signal.SIGKILL)

    eventually(lambda: not child.is_alive())


def test_a_killed_supervisor_takes_its_components_along_and_the_next_up_starts_afresh(home: StackHome) -> None:
    started(home, "chain")
    before = all_processes(home)

    os.kill(state_of(home).supervisor.pid, signal.SIGKILL)
    eventually(lambda: state_of(home).phase is Phase.LOST)
    eventually(lambda: not any(process.is_alive() for process in before))

    started(home, "chain")
    assert not set(all_processes(home)) & set(before)


def test_an_orphan_that_will_not_end_is_ended_by_the_next_up(home: StackHome) -> None:
    started(home, "with_stubborn")
    orphan = process_of(home, "stubborn")
    os.kill(state_of(home).supervisor.pid, signal.SIGKILL)
    eventually(lambda: state_of(home).phase is Phase.LOST)
    assert orphan.is_alive()

    started(home, "with_stubborn")

    assert not orphan.is_alive()
    assert process_of(home, "stubborn").is_alive()


def test_down_ends_the_orphans_of_a_killed_supervisor(home: StackHome) -> None:
    started(home, "with_stubborn")
    orphan = process_of(home, "stubborn")
    os.kill(state_of(home).supervisor.pid, signal.SIGKILL)
    eventually(lambda: state_of(home).phase is Phase.LOST)
    told = Told()

    assert down(home, out=told.append) == 0

    assert told.has("ended stubborn")
    assert not orphan.is_alive()
    assert state_of(home).phase is Phase.STOPPED


def test_a_component_that_will_not_stop_is_killed_after_its_deadline(home: StackHome) -> None:
    started(home, "with_stubborn")
    stubborn = process_of(home, "stubborn")

    assert down(home, out=lambda _: None) == 0

    assert not stubborn.is_alive()


def test_down_is_harmless_when_nothing_runs(home: StackHome) -> None:
    told = Told()
    assert down(home, out=told.append) == 0
    assert not home.root.exists()

    started(home, "with_parent")
    assert down(home, out=told.append) == 0
    assert down(home, out=told.append) == 0

    assert told == ["not running", "stopped", "not running"]


def test_a_component_that_never_gets_ready_fails_the_start_and_everything_is_stopped(home: StackHome) -> None:
    told = Told()

    assert up(home, stack="dev_stacks:with_silent", out=told.append) == 1

    assert told.has("silent did not start: not ready after 3 s")
    assert told.has("| silent says hello")
    assert state_of(home).phase is Phase.FAILED
    assert events(home)[-1] == "stop good"
    assert "start late" not in events(home)
    assert home.lock().holder() is None


def test_a_component_that_exits_at_once_is_shown_with_the_end_of_its_log(home: StackHome) -> None:
    told = Told()

    assert up(home, stack="dev_stacks:with_broken", out=told.append) == 1

    assert told.has("broken did not start: exited with code 1")
    assert told.has("| the configuration makes no sense")


@pytest.mark.parametrize(
    ("stack", "reason"),
    [
        ("dev_stacks:with_failing_task", "migrate: table is already there"),
        ("dev_stacks:undefined", "no definition for stack"),
        ("dev_stacks:missing", "no stack at 'dev_stacks:missing'"),
        ("no_such_module:chain", "no stack at 'no_such_module:chain'"),
    ],
)
def test_a_stack_that_cannot_be_started_is_refused_with_the_reason(home: StackHome, stack: str, reason: str) -> None:
    told = Told()

    assert up(home, stack=stack, out=told.append) == 1

    assert told.has(reason)
    assert home.lock().holder() is None


def test_a_failed_start_does_not_stand_in_the_way_of_the_next(home: StackHome) -> None:
    assert up(home, stack="dev_stacks:with_broken", out=lambda _: None) == 1

    started(home, "chain")


def test_in_the_foreground_an_interrupt_stops_the_stack(home: StackHome) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, str(home.root)], stdout=subprocess.PIPE, text=True
    ) as foreground:
        assert foreground.stdout is not None
        assert any(line == "ready\n" for line in iter(foreground.stdout.readline, ""))
        processes = all_processes(home)

        foreground.send_signal(signal.SIGINT)

        assert foreground.wait() == 0
    assert events(home)[-1] == "stop database"
    assert not any(process.is_alive() for process in processes)


def test_settings_of_the_shell_do_not_reach_the_components(home: StackHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_SHARD_COUNT", "7")
    monkeypatch.setenv("ORDINARY", "yes")

    started(home, "with_parent")

    environment = Path(f"/proc/{process_of(home, 'parent').pid}/environ").read_bytes()
    assert b"ORDINARY=yes" in environment
    assert b"NOETL_READY_FILE=" in environment
    assert b"NOETL_SHARD_COUNT" not in environment


def test_real_servers_keep_their_data_and_ports_over_crashes_and_the_next_up(home: StackHome) -> None:
    started(home, "servers")
    ports = {name: each.ports for name, each in state_of(home).components.items()}
    database = PostgresCluster(directory=home.root / "postgres", port=ports["postgres"]["sql"])

    for name in ("postgres", "nats"):
        os.kill(process_of(home, name).pid, signal.SIGKILL)
    for name in ("postgres", "nats"):
        until(home, name, lambda each: each.restarts > 0 and each.status is Status.READY)
    assert fetch_value(database.dsn(), "SELECT count(*) FROM kept") == 1

    os.kill(state_of(home).supervisor.pid, signal.SIGKILL)
    eventually(lambda: state_of(home).phase is Phase.LOST)
    started(home, "servers")

    assert {name: each.ports for name, each in state_of(home).components.items()} == ports
    assert fetch_value(database.dsn(), "SELECT count(*) FROM kept") == 2
