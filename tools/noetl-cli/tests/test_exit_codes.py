import pytest
from noetl_cli.exits import MEANINGS, ExitCode, exit_code_of_error, exit_code_of_status
from noetl_core.errors import (
    AlreadyTerminal,
    DeadlinePassed,
    NoetlError,
    NotAuthenticated,
    NotFound,
    Overloaded,
    PlaybookInvalid,
    Problem,
    Unavailable,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NoetlError("a defect"), 1),
        (NotAuthenticated("who are you"), 1),
        (AlreadyTerminal("5"), 1),
        (PlaybookInvalid([Problem(code="playbook.kind", message="no")]), 2),
        (NotFound("execution", 5), 3),
        (Overloaded("later"), 5),
        (Unavailable("away"), 5),
        (DeadlinePassed("late"), 5),
    ],
)
def test_an_error_has_the_exit_code_of_its_nearest_class(error: NoetlError, code: int) -> None:
    assert exit_code_of_error(error) == code


@pytest.mark.parametrize(
    ("status", "code"),
    [("RUNNING", 0), ("PAUSED", 0), ("COMPLETED", 0), ("FAILED", 1), ("CANCELLED", 4), ("OF_A_NEWER_SERVER", 0)],
)
def test_the_end_of_an_execution_has_its_exit_code(status: str, code: int) -> None:
    assert exit_code_of_status(status) == code


def test_every_exit_code_is_explained() -> None:
    assert set(MEANINGS) == set(ExitCode)
