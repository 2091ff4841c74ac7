import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from noetl_cli.dev.commands import dev
from noetl_cli.dev.home import StackHome


@pytest.fixture(autouse=True)
def _stacks_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def run(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(dev, ["--home", str(home), *arguments])


def test_a_stack_is_brought_up_looked_at_and_taken_down(tmp_path: Path) -> None:
    try:
        assert run(tmp_path, "status").exit_code == 3
        assert run(tmp_path, "up", "--stack", "dev_stacks:chain").exit_code == 0

        text = run(tmp_path, "status")
        assert text.exit_code == 0
        assert "database" in text.output
        document = json.loads(run(tmp_path, "status", "-o", "json").output)
        assert document["phase"] == "ready"
        assert "api says hello" in run(tmp_path, "logs").output
        assert run(tmp_path, "logs", "api", "-n", "1").output == "api                | api says hello\n"
    finally:
        result = run(tmp_path, "down")
    assert (result.exit_code, result.output) == (0, "stopped\n")
    assert json.loads(run(tmp_path, "status", "-o", "json").output)["phase"] == "stopped"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "/where/we/stand/.noetl"),
        ({"NOETL_HOME": "/else"}, "/else"),
        ({"NOETL_HOME": "near"}, "/where/we/stand/near"),
    ],
)
def test_the_data_directory_is_where_we_stand_unless_the_environment_names_another(
    env: dict[str, str], expected: str
) -> None:
    assert StackHome.locate(env, working_directory=Path("/where/we/stand")).root == Path(expected)
