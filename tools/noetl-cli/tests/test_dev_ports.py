import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from noetl_cli.dev.port_claims import PortClaims
from noetl_cli.dev.ports import PORTS_VARIABLE, _handed_out, free_port, is_free, release_ports, remembered_ports
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


CHOOSE = """
import sys
from pathlib import Path
from noetl_cli.dev.ports import remembered_ports
print(remembered_ports(Path(sys.argv[1]), ["api"])["api"], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ports are chosen by chance")
def test_a_port_that_a_stack_has_chosen_is_no_other_stacks_until_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = free_port(), free_port()
    monkeypatch.setenv(PORTS_VARIABLE, f"{first}-{first}")
    claims = PortClaims()
    with subprocess.Popen(
        [sys.executable, "-c", CHOOSE, str(tmp_path / "theirs.json")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert int(other.stdout.readline()) == first

        assert is_free(first), "its server does not listen yet"
        assert not claims.claim(first)
        assert claims.claim(second)
        (tmp_path / "ours.json").write_text(json.dumps({"api": first}))
        assert remembered_ports(tmp_path / "ours.json", ["api"])["api"] != first
        other.kill()

    assert claims.claim(first)
    assert claims.claim(first), "ours already"
    for port in (first, second):
        claims.release(port)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ports are chosen by chance")
def test_ports_of_a_stack_that_is_gone_are_free_for_others_and_hold_no_descriptor(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    others, before = PortClaims(), descriptors()
    gone, kept = tmp_path / "gone.json", tmp_path / "kept.json"
    ports = remembered_ports(gone, ["postgres", "nats"])
    still = remembered_ports(kept, ["nats"])["nats"]
    assert descriptors() == before + 3

    release_ports(gone)

    assert descriptors() == before + 1
    assert others.claim(ports["nats"])
    assert not others.claim(still)
    assert remembered_ports(gone, ["postgres", "nats"])["nats"] != ports["nats"], "somebody else's by now"
    others.release(ports["nats"])
    for file in (gone, kept):
        release_ports(file)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ports are chosen by chance")
def test_a_port_that_others_have_chosen_is_not_handed_out_and_can_be_taken_when_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, file = free_port(), tmp_path / "ports.json"
    _handed_out.pop(theirs)
    monkeypatch.setenv(PORTS_VARIABLE, f"{theirs}-{theirs}")
    others = PortClaims()
    assert others.claim(theirs)

    assert free_port() != theirs
    file.write_text(json.dumps({"nats": theirs}))
    assert remembered_ports(file, ["nats"])["nats"] != theirs
    others.release(theirs)

    file.write_text(json.dumps({"nats": theirs}))
    assert remembered_ports(file, ["nats"])["nats"] == theirs
    release_ports(file)
