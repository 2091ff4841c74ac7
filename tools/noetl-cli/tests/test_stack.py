import importlib
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from noetl_cli.dev.component import Component, Part, check_stack
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.ports import release_ports
from noetl_cli.dev.stack import SETTINGS_FILE, components, read_replicas, read_settings
from noetl_core.errors import InvalidInput
from noetl_servicekit.env import Address
from noetl_servicekit.process_settings import ProcessSettings

SERVICES = ("api", "outbox-publisher", "planner", "projector", "reaper", "worker")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    home = StackHome(root=tmp_path / "stack")
    home.create()
    yield home.root
    release_ports(home.ports_file)


def parts_of(root: Path) -> Mapping[str, Part]:
    return {part.name: part for part in components(root)}


def environment(root: Path, service: str) -> Mapping[str, str]:
    part = parts_of(root)[service]
    assert isinstance(part, Component)
    return part.env


def test_the_stack_is_postgres_nats_the_schema_and_six_services(root: Path) -> None:
    parts = components(root)

    check_stack(parts)
    assert [part.name for part in parts[:3]] == ["postgres", "nats", "schema"]
    assert {part.name for part in parts[3:]} == set(SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_accepts_the_settings_that_it_is_given(root: Path, service: str) -> None:
    (root / "nats").mkdir()
    (root / "nats" / "nats.token").write_text("made by NATS' own start\n")
    env = environment(root, service)

    settings = importlib.import_module(f"noetl_{service.replace('-', '_')}.settings").Settings.from_env(env)
    process = ProcessSettings.from_env(service, env)

    assert isinstance(settings.ops_listen, Address)
    assert settings.ops_listen.port > 0
    assert process.stop_seconds < 10.0


def test_the_next_start_has_the_same_ports_and_secrets(root: Path) -> None:
    first = {service: dict(environment(root, service)) for service in SERVICES}
    second = {service: dict(environment(root, service)) for service in SERVICES}

    assert first == second


def test_secrets_are_readable_by_their_owner_only(root: Path) -> None:
    components(root)

    assert stat.S_IMODE((root / "secrets").stat().st_mode) == 0o700
    for file in (root / "secrets").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


def test_a_worker_never_comes_back_under_the_name_of_its_predecessor(root: Path) -> None:
    assert "NOETL_INSTANCE" not in environment(root, "worker")
    assert environment(root, "planner")["NOETL_INSTANCE"] == "planner-local"


def test_a_file_of_settings_goes_over_those_of_every_service(root: Path) -> None:
    (root / SETTINGS_FILE).write_text("# quicker\nNOETL_COMMAND_LEASE_SECONDS = 3\n\nNOETL_LOG_LEVEL=debug\n")

    assert environment(root, "planner")["NOETL_COMMAND_LEASE_SECONDS"] == "3"
    assert environment(root, "worker")["NOETL_LOG_LEVEL"] == "debug"


def test_a_line_that_is_no_setting_is_refused_with_its_number(tmp_path: Path) -> None:
    file = tmp_path / SETTINGS_FILE
    file.write_text("A=1\nwhatever\n")

    with pytest.raises(InvalidInput, match=r"settings.env:2: a setting is NAME=value"):
        read_settings(file)


def test_there_may_be_several_of_a_service_each_with_a_name_and_ports_of_its_own(root: Path) -> None:
    (root / SETTINGS_FILE).write_text("NOETL_DEV_REPLICAS=planner=3, worker=2\n")

    parts = components(root)

    check_stack(parts)
    names = [part.name for part in parts]
    assert [name for name in names if name.startswith("planner")] == ["planner", "planner-2", "planner-3"]
    assert [name for name in names if name.startswith("worker")] == ["worker", "worker-2"]
    planners = [environment(root, name) for name in ("planner", "planner-2", "planner-3")]
    assert len({env["NOETL_GRPC_LISTEN"] for env in planners}) == len({env["NOETL_INSTANCE"] for env in planners}) == 3
    assert not any("NOETL_DEV_REPLICAS" in env for env in planners)


@pytest.mark.parametrize("text", ["planner", "planner=0", "planner=17", "api=2", "baker=1", "planner=two"])
def test_a_number_of_replicas_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="NOETL_DEV_REPLICAS"):
        read_replicas(text)
