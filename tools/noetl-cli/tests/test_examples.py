import json
from pathlib import Path

import pytest
from noetl_cli.__main__ import run
from noetl_core.playbook.schema import playbook_schema
from noetl_core.playbook.validate import parse_playbook

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "playbooks").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_can_be_registered_without_a_warning(file: Path) -> None:
    playbook, warnings = parse_playbook(file.read_text())

    assert playbook.path == f"examples/{file.stem}"
    assert warnings == ()
    assert file.read_text().startswith("# ")


def test_there_are_examples_and_the_command_finds_all_of_them_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) >= 5
    assert run(["playbook", "validate", *(str(file) for file in EXAMPLES)]) == 0
    assert capsys.readouterr().out.count(": ok") == len(EXAMPLES)


def test_the_schema_of_playbooks_is_printed_for_editors(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["playbook", "schema"]) == 0

    assert json.loads(capsys.readouterr().out) == playbook_schema()
