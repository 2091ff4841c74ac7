import json

from noetl_contracts.problem_json import problem_json, retry_after
from noetl_core.errors import (
    LeaseLost,
    NoetlError,
    NotFound,
    Overloaded,
    PlaybookInvalid,
    Problem,
    Unavailable,
)


def test_a_refusal_says_what_it_is_and_carries_its_facts() -> None:
    status, body = problem_json(NotFound("execution", 42), instance="/api/executions/42")

    assert status == 404
    assert body == {
        "type": "https://noetl.io/problems/not_found",
        "title": "Not found",
        "status": 404,
        "detail": "execution '42' does not exist",
        "code": "not_found",
        "retryable": False,
        "instance": "/api/executions/42",
        "what": "execution",
        "name": "42",
    }


def test_every_problem_of_a_playbook_is_listed_with_its_place() -> None:
    problem = Problem(code="step.unknown", message="no step 'lod'", path="/next/0", line=12, column=3)

    status, body = problem_json(PlaybookInvalid([problem]))

    assert status == 422
    assert body["problems"] == [
        {"code": "step.unknown", "message": "no step 'lod'", "path": "/next/0", "line": 12, "column": 3}
    ]
    json.dumps(body)


def test_a_fact_cannot_replace_a_member_of_the_standard() -> None:
    _, body = problem_json(Unavailable("away", status="bad", detail="bad", code="bad", dependency="postgres"))

    assert (body["status"], body["detail"], body["code"]) == (503, "away", "unavailable")
    assert body["dependency"] == "postgres"


def test_an_exception_that_is_not_ours_leaks_nothing() -> None:
    status, body = problem_json(RuntimeError("password is hunter2"))

    assert (status, body["code"], body["title"]) == (500, "internal", "Internal error")
    assert "hunter2" not in json.dumps(body)


def test_clients_are_told_to_wait_only_where_waiting_helps() -> None:
    assert retry_after(Unavailable("away")) == {"Retry-After": "1"}
    assert retry_after(Overloaded("full")) == {"Retry-After": "1"}
    assert retry_after(LeaseLost(command_id="c", worker="w", holder=None)) == {}
    assert retry_after(NoetlError("odd")) == {}
    assert retry_after(RuntimeError("odd")) == {}
