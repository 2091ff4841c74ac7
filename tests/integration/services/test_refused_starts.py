"""Processes that cannot work as they are told end at once and say why, instead of trying for ever."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from noetl_testkit.service_process import ServiceProcess

Prepare = Callable[..., ServiceProcess]


@pytest.fixture
def prepare(installed_dsn: str, api_values: dict[str, str], tmp_path: Path) -> Iterator[Prepare]:
    """Services beside a real api and a real database; the bus is away, which keeps nobody from starting."""
    processes: list[ServiceProcess] = []

    def prepared(service: str, **settings: str) -> ServiceProcess:
        address = f"127.0.0.1:{api.port('grpc')}"
        env = {
            **api_values,
            "NOETL_POSTGRES_DSN": f"{installed_dsn}?role=noetl_projector",
            "NOETL_API_ADDRESS": address,
            "NOETL_PLANNER_ADDRESS": address,
            "NOETL_NATS_URL": "nats://127.0.0.1:9",
            "NOETL_SPARK_ENABLED": "false",
            **settings,
        }
        processes.append(ServiceProcess(f"noetl_{service}", env, directory=tmp_path, name=f"{service}-to-refuse"))
        return processes[-1]

    with ServiceProcess("noetl_api", api_values, directory=tmp_path, name="api") as api:
        yield prepared
        for process in processes:
            process.kill()


@pytest.mark.parametrize("service", ["api", "planner", "projector", "outbox_publisher", "worker"])
def test_a_process_names_its_tokens_file_and_everything_else_that_is_wrong(
    prepare: Prepare, service: str, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"tokens": 7}')
    missing = prepare(service, NOETL_TOKENS_FILE="/nowhere/tokens.json", NOETL_GRPC_LISTEN="nowhere")

    assert missing.run() == 2
    said = missing.log_file.read_text("utf-8")
    assert "NOETL_TOKENS_FILE names '/nowhere/tokens.json', which cannot be read: No such file or directory" in said
    assert "NOETL_GRPC_LISTEN must be host:port" in said

    unusable = prepare(service, NOETL_TOKENS_FILE=str(broken))

    assert unusable.run() == 2
    assert "which cannot be used: must be" in unusable.log_file.read_text("utf-8")


def test_a_projector_whose_port_is_taken_ends_and_says_so(prepare: Prepare) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        projector = prepare("projector", NOETL_GRPC_LISTEN=address)

        assert projector.run() == 1

    said = projector.log_file.read_text("utf-8").splitlines()
    reason = f"the process that answers queries does not start: cannot listen on {address}"
    (failed,) = [line for line in said if reason in line and "service.failed" in line]
    assert "projector.queries_not_started" in failed


@pytest.mark.parametrize("service", ["projector", "planner", "reaper", "worker"])
def test_another_number_of_shards_than_the_installation_s_is_a_setting_that_is_refused(
    prepare: Prepare, service: str
) -> None:
    process = prepare(service, NOETL_SHARD_COUNT="16")

    assert process.run() == 2
    said = process.log_file.read_text("utf-8").splitlines()
    (refused,) = [line for line in said if "settings.invalid" in line]
    assert "this installation has 64 shards, NOETL_SHARD_COUNT says 16" in refused
