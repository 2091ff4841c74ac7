import asyncio
import json
import os
from pathlib import Path

import pytest
from noetl_core.errors import NotAuthenticated, NotPermitted
from noetl_servicekit.callers import Caller, Role, answer_as, current_caller
from noetl_servicekit.env import SettingsInvalid
from noetl_servicekit.tokens import Tokens, token_sha256
from structlog.testing import capture_logs


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def entry(name: str, token: str, **changes: object) -> dict[str, object]:
    return {
        "name": name,
        "token_sha256": token_sha256(token),
        "tenant_id": "acme",
        "organization_id": "data",
        "role": "writer",
        **changes,
    }


def write(path: Path, *entries: object) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps({"tokens": entries}))
    unfinished.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.json"
    write(path, entry("ada", "secret-a"))
    return path


def test_a_token_maps_to_its_caller(path: Path) -> None:
    caller = Tokens(path).authenticate("Bearer secret-a")

    assert caller == Caller(name="ada", tenant_id="acme", organization_id="data", role=Role.WRITER)
    assert Tokens(path).authenticate("bearer  secret-a") == caller


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic secret-a", "secret-a", "Bearer nope"])
def test_anything_else_is_nobody(path: Path, header: str | None) -> None:
    with pytest.raises(NotAuthenticated) as refusal:
        Tokens(path).authenticate(header)

    assert "nope" not in str(refusal.value)


def test_a_changed_file_counts_within_a_second(path: Path) -> None:
    clock = FakeClock()
    tokens = Tokens(path, clock=clock)
    write(path, entry("bob", "secret-b"))

    clock.now = 0.9
    assert tokens.authenticate("Bearer secret-a").name == "ada"

    clock.now = 1.0
    with capture_logs() as logs:
        assert tokens.authenticate("Bearer secret-b").name == "bob"
    with pytest.raises(NotAuthenticated):
        tokens.authenticate("Bearer secret-a")
    assert [(line["event"], line["count"]) for line in logs] == [("tokens.reloaded", 1)]


def test_a_file_replaced_within_the_same_tick_and_size_is_noticed(path: Path) -> None:
    clock = FakeClock()
    tokens = Tokens(path, clock=clock)
    before = path.stat()
    write(path, entry("bob", "secret-b"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size

    clock.now = 1.0
    assert tokens.authenticate("Bearer secret-b").name == "bob"


@pytest.mark.parametrize("broken", ["half a {", "[]", '{"tokens": [{"name": "x"}]}'])
def test_a_file_that_breaks_later_changes_nothing_and_is_reported_once(path: Path, broken: str) -> None:
    clock = FakeClock()
    tokens = Tokens(path, clock=clock)
    path.write_text(broken)

    with capture_logs() as logs:
        for second in (1.0, 2.0, 3.0):
            clock.now = second
            assert tokens.authenticate("Bearer secret-a").name == "ada"
    assert [line["event"] for line in logs] == ["tokens.reload_failed"]

    write(path, entry("bob", "secret-b"))
    clock.now = 4.0
    assert tokens.authenticate("Bearer secret-b").name == "bob"


def test_a_file_that_vanishes_changes_nothing_is_reported_once_and_read_when_it_is_back(path: Path) -> None:
    clock = FakeClock()
    tokens = Tokens(path, clock=clock)
    kept = path.rename(path.with_suffix(".kept"))

    with capture_logs() as logs:
        for second in (1.0, 2.0, 3.0):
            clock.now = second
            assert tokens.authenticate("Bearer secret-a").name == "ada"
        kept.rename(path)
        clock.now = 4.0
        assert tokens.authenticate("Bearer secret-a").name == "ada"
    assert [line["event"] for line in logs] == ["tokens.reload_failed", "tokens.reloaded"]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (["ada"], r"tokens\[0\]: must be an object"),
        ([entry("", "a")], r"tokens\[0\]: name must be a text"),
        ([entry("ada", "a", role=3)], r"tokens\[0\]: role must be a text"),
        ([entry("ada", "a", role="king")], "role must be one of reader, writer, admin, service, not 'king'"),
        ([entry("ada", "a", token_sha256="a")], "64 lower-case hexadecimal digits"),
        (
            [entry("ada", "a", role="service", tenant_id="acme")],
            "a service acts for every tenant and organization: both must be '*'",
        ),
        ([entry("ada", "a", tenant_id="*")], "only a service may act for any tenant, not the role writer"),
        ([entry("ada", "a", tenant_id="*", role="admin")], "only a service may act for any tenant, not the role admin"),
        ([entry("ada", "a"), entry("bob", "a")], r"tokens\[1\]: 'bob' and 'ada' share a token"),
    ],
)
def test_a_malformed_file_keeps_the_process_from_starting(path: Path, entries: list[object], problem: str) -> None:
    write(path, *entries)

    with pytest.raises(SettingsInvalid, match=problem):
        Tokens(path)


@pytest.mark.parametrize("text", ["{", "[]", '{"tokens": {}}', "null"])
def test_a_file_that_is_no_list_of_tokens_is_refused(path: Path, text: str) -> None:
    path.write_text(text)

    with pytest.raises(SettingsInvalid, match="tokens file"):
        Tokens(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="cannot be read: No such file"):
        Tokens(tmp_path / "gone.json")


def test_a_role_may_do_what_lesser_roles_may() -> None:
    writer = Caller(name="ada", tenant_id="acme", organization_id="data", role=Role.WRITER)

    assert writer.may(Role.READER)
    assert writer.may(Role.WRITER)
    assert not writer.may(Role.ADMIN)
    assert not writer.may(Role.SERVICE)
    writer.require(Role.READER)
    with pytest.raises(NotPermitted, match="'ada' has the role writer, this takes service"):
        writer.require(Role.SERVICE)


def test_the_roles_are_in_the_order_of_what_they_may() -> None:
    assert [role.value for role in Role] == ["reader", "writer", "admin", "service"]


def test_a_caller_sees_its_own_tenant_and_organization_and_a_service_sees_all() -> None:
    ada = Caller(name="ada", tenant_id="acme", organization_id="data", role=Role.WRITER)
    planner = Caller(name="planner", tenant_id="*", organization_id="*", role=Role.SERVICE)

    assert ada.sees("acme", "data")
    assert not ada.sees("acme", "sales")
    assert not ada.sees("other", "data")
    assert planner.sees("acme", "sales")


async def test_the_caller_is_known_inside_its_call_and_nowhere_else() -> None:
    ada = Caller(name="ada", tenant_id="acme", organization_id="data", role=Role.WRITER)
    inside, proceed = asyncio.Event(), asyncio.Event()

    async def call() -> str:
        answer_as(ada, "/a/B")
        inside.set()
        await proceed.wait()
        return current_caller().name

    task = asyncio.create_task(call())
    await inside.wait()
    with pytest.raises(NotAuthenticated):
        current_caller()
    proceed.set()
    assert await task == "ada"
