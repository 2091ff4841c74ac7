from pathlib import Path

import pytest
from noetl_cli.connection import NoServer, locate_server
from noetl_cli.dev.endpoint import LocalEndpoint
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.processes import ProcessIdentity
from noetl_cli.dev.state import Phase, StackState
from noetl_core.errors import InvalidInput

ENDPOINT = LocalEndpoint(
    address="127.0.0.1:7100", http_url="http://127.0.0.1:7101", token="local-token", payload_url="file:///payloads"
)


def stack_in(directory: Path, *, phase: Phase = Phase.READY) -> StackHome:
    """As if a supervisor, played by this very process, had started a stack there."""
    home = StackHome(root=directory / ".noetl")
    home.create()
    ENDPOINT.write(home)
    StackState(phase=phase, supervisor=ProcessIdentity.current(), components={}).write(home.state_file)
    return home


def test_an_address_is_taken_as_it_is_with_the_token_that_comes_with_it(tmp_path: Path) -> None:
    server = locate_server(address="api.example:7100", token="mine", env={}, working_directory=tmp_path)

    assert (server.address, server.token, server.tls) == ("api.example:7100", "mine", False)


def test_a_scheme_chooses_tls_and_the_token_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")

    server = locate_server(
        address="https://api.example:443/",
        token=None,
        env={"NOETL_TOKEN_FILE": str(tmp_path / "token")},
        working_directory=tmp_path,
    )

    assert (server.address, server.token, server.tls) == ("api.example:443", "from-file", True)


@pytest.mark.parametrize("address", ["api.example", ":7100", "api.example:http"])
def test_what_is_no_address_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="HOST:PORT"):
        locate_server(address=address, token=None, env={}, working_directory=tmp_path)


def test_without_an_address_the_nearest_stack_is_used(tmp_path: Path) -> None:
    stack_in(tmp_path)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)

    server = locate_server(address=None, token=None, env={}, working_directory=below)

    assert (server.address, server.token) == ("127.0.0.1:7100", "local-token")


def test_the_environment_names_another_stack(tmp_path: Path) -> None:
    home = stack_in(tmp_path / "elsewhere")

    server = locate_server(address=None, token="mine", env={"NOETL_HOME": str(home.root)}, working_directory=tmp_path)

    assert (server.address, server.token) == ("127.0.0.1:7100", "mine")


@pytest.mark.parametrize("phase", [None, Phase.STOPPED, Phase.FAILED])
def test_when_nothing_runs_the_message_says_how_to_start_it(phase: Phase | None, tmp_path: Path) -> None:
    if phase is not None:
        stack_in(tmp_path, phase=phase)

    with pytest.raises(NoServer, match="start one with: noetl dev up"):
        locate_server(address=None, token=None, env={}, working_directory=tmp_path)


def test_only_its_owner_may_read_how_to_reach_the_stack(tmp_path: Path) -> None:
    home = stack_in(tmp_path)

    assert (home.root / "client.json").stat().st_mode & 0o777 == 0o600
    assert "local-token" not in repr(LocalEndpoint.read(home))
