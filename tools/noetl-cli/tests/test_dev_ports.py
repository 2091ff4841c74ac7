import socket
from pathlib import Path

import pytest
from noetl_cli.dev.ports import PORTS_VARIABLE, free_port, is_free, remembered_ports
from noetl_core.errors import InvalidInput


def test_ports_are_handed_out_once() -> None:
    ports = [free_port() for _ in range(100)]

    assert len(set(ports)) == len(ports)


def test_a_port_stays_clear_of_those_that_the_system_gives_to_clients() -> None:
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()
        client.connect(listener.getsockname())

        assert all(free_port() < 32_768 for _ in range(20))
        assert client.getsockname()[1] > listener.getsockname()[1]


def test_ports_are_those_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "29000-29099")

    assert all(29_000 <= free_port() < 29_100 for _ in range(20))


@pytest.mark.parametrize("named", ["", "29000", "29100-29000", "a-b", "0-9", "65000-70000"])
def test_ports_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, named)

    with pytest.raises(InvalidInput, match="names two ports"):
        free_port()


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))
        listener.listen()

        assert not is_free(listener.getsockname()[1])


def test_ports_are_the_same_at_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"

    first = remembered_ports(file, ["postgres", "nats"])

    assert remembered_ports(file, ["postgres", "nats"]) == first
    assert remembered_ports(file, ["nats"]) == {"nats": first["nats"]}
    assert remembered_ports(file, ["postgres", "nats", "api"]).items() >= first.items()


def test_a_port_that_somebody_else_has_taken_is_replaced_and_the_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = remembered_ports(file, ["postgres", "nats"])

    with socket.socket() as intruder:
        intruder.bind(("127.0.0.1", first["nats"]))
        intruder.listen()
        second = remembered_ports(file, ["postgres", "nats"])

    assert second["postgres"] == first["postgres"]
    assert second["nats"] != first["nats"]
    assert remembered_ports(file, ["postgres", "nats"]) == second


def test_an_unreadable_port_file_only_costs_new_ports(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    file.write_text("{")

    assert remembered_ports(file, ["nats"])["nats"] > 0
