"""Credentials of frames: one request for all of their rows, and nothing of it afterwards."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from noetl_core.canonical import JsonValue
from noetl_core.errors import Unavailable
from noetl_core.ports.credentials import Credential
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.credentials import resolve_auth
from noetl_worker.application.frame_credentials import (
    KEPT_SECONDS,
    MOST_MADE,
    FetchedOncePerFrame,
    credentials_of_frame,
    forget_credentials,
    keep_for_name,
    kept_for_name,
    made_of,
)
from noetl_worker.application.frame_limits import CallLimit
from noetl_worker.application.keychain import Keychain
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall


class Calls:
    """Many calls that all want the same credential."""

    def __init__(self) -> None:
        self.stored = InMemoryToolCredentials()
        self.now = 0.0
        self._credentials = FetchedOncePerFrame(self.stored, clock=lambda: self.now)
        self.put("first")

    def put(self, password: str) -> None:
        self.stored.add("db", "postgres", {"password": password}, tenant_id="t", organization_id="o")

    async def credential(self) -> Credential:
        return await self._credentials.get(tenant_id="t", organization_id="o", name="db", execution_id=1)

    async def described(self, auth: JsonValue) -> Credential:
        call = ToolCall(tenant_id="t", organization_id="o", execution_id=1, step="s", kind="http")
        found = (await resolve_auth(auth, credentials=self._credentials, call=call)).one()
        assert found is not None
        return found

    async def password(self) -> object:
        return (await self.credential()).data["password"]


async def test_rows_of_a_frame_share_one_request_however_many_run_at_once() -> None:
    calls = Calls()
    with credentials_of_frame():
        assert set(await asyncio.gather(*(calls.password() for _ in range(50)))) == {"first"}
    assert len(calls.stored.fetched) == 1


async def test_the_next_frame_and_calls_outside_of_frames_ask_again() -> None:
    calls = Calls()
    for password in ("first", "second"):
        calls.put(password)
        with credentials_of_frame():
            assert await calls.password() == password
    calls.put("third")
    assert [await calls.password(), await calls.password()] == ["third", "third"]
    assert len(calls.stored.fetched) == 4


async def test_what_a_server_refuses_or_what_is_old_is_fetched_anew() -> None:
    calls = Calls()
    call = ToolCall(tenant_id="t", organization_id="o", execution_id=1, step="s", kind="postgres")
    with credentials_of_frame():
        assert await calls.password() == "first"
        calls.put("second")
        Keychain().learn_from(call, Outcome.failed(kind=ErrorKind.TIMEOUT, code="TIMEOUT", message="late"))
        assert await calls.password() == "first"
        Keychain().learn_from(call, Outcome.failed(kind=ErrorKind.AUTH, code="PG_28P01", message="no"))
        assert await calls.password() == "second"
        calls.put("third")
        calls.now += KEPT_SECONDS + 1
        assert await calls.password() == "third"
    forget_credentials()  # outside of frames there is nothing to forget


async def test_what_is_made_of_a_credential_is_made_once_and_goes_with_it() -> None:
    calls = Calls()
    made: list[str] = []

    def make(credential: Credential) -> str:
        made.append(str(credential.data["password"]))
        return made[-1]

    async def used() -> str:
        return made_of(await calls.credential(), "password", make)

    with credentials_of_frame():
        assert [await used(), await used(), made_of(await calls.credential(), "other", make)] == ["first"] * 3
        assert made == ["first", "first"]
        calls.put("second")
        forget_credentials()
        assert [await used(), await used()] == ["second"] * 2
    assert [await used(), await used()] == ["second"] * 2
    assert made == ["first", "first", "second", "second", "second"], "outside of frames nothing is kept"


class Made:
    """Something that is made of a credential."""


async def test_of_a_described_credential_things_are_made_once_too() -> None:
    calls = Calls()
    made: list[str] = []

    def make(credential: Credential) -> str:
        made.append(f"{credential.type} {credential.data['password']} {credential.data.get('host')}")
        return made[-1]

    async def used(**fields: JsonValue) -> str:
        return made_of(await calls.described({"type": "basic", "key": "db", **fields}), "text", make)

    with credentials_of_frame():
        assert [await used() for _ in range(50)] == ["basic first None"] * 50
        assert [await used(host="h") for _ in range(50)] == ["basic first h"] * 50
        assert len(made) == 2
        calls.put("second")
        forget_credentials()
        assert [await used(), await used(host="h")] == ["basic second None", "basic second h"]
    assert len(calls.stored.fetched) == 2


@pytest.mark.parametrize("auth", [{"type": "basic", "key": "db"}, {"type": "bearer"}], ids=["stored", "its own"])
async def test_what_is_kept_does_not_grow_with_the_rows_that_describe_credentials_of_their_own(
    auth: dict[str, JsonValue],
) -> None:
    calls = Calls()
    alive: weakref.WeakSet[Made] = weakref.WeakSet()

    def make(credential: Credential) -> Made:
        alive.add(one := Made())
        return one

    with credentials_of_frame():
        for row in range(5 * MOST_MADE):
            made_of(await calls.described({**auth, "token": f"of row {row}"}), "something", make)
        gc.collect()
        assert len(alive) <= (MOST_MADE if "key" in auth else 0)


async def test_that_a_credential_could_not_be_had_is_not_remembered() -> None:
    calls = Calls()
    with credentials_of_frame():
        calls.stored.is_away = True
        with pytest.raises(Unavailable):
            await calls.password()
        calls.stored.is_away = False
        assert await calls.password() == "first"


async def test_what_was_begun_in_a_frame_and_outlives_it_keeps_none_of_its_credentials() -> None:
    calls = Calls()
    alive: weakref.WeakSet[Made] = weakref.WeakSet()

    def make(credential: Credential) -> Made:
        alive.add(one := Made())
        return one

    with credentials_of_frame():
        made_of(await calls.credential(), "something", make)
        with CallLimit(600):  # the timer of all limits keeps the context of who has set it
            outliving = asyncio.create_task(calls.password())
    gc.collect()
    assert not alive
    calls.put("second")
    assert await outliving == "second"


async def test_what_is_kept_under_a_name_is_as_old_as_its_credential_may_be() -> None:
    calls = Calls()

    def kept() -> object:
        return kept_for_name("t", "o", "db", "pool")

    with credentials_of_frame():
        keep_for_name("t", "o", "db", "pool", "of nothing")
        assert kept() is None, "nobody has fetched it"
        await calls.credential()
        keep_for_name("t", "o", "db", "pool", "first")
        assert kept() == "first"
        assert [kept_for_name(*other, "pool") for other in (("u", "o", "db"), ("t", "p", "db"), ("t", "o", "d"))] == [
            None
        ] * 3
        calls.now = KEPT_SECONDS
        assert kept() == "first"
        calls.now = KEPT_SECONDS + 0.001
        assert kept() is None
        await calls.credential()
        assert kept() is None, "what there was, was made of another one"
        keep_for_name("t", "o", "db", "pool", "second")
        forget_credentials()
        assert kept() is None
        await calls.credential()
        keep_for_name("t", "o", "db", "pool", "third")
    assert kept() is None
    keep_for_name("t", "o", "db", "pool", "outside")
    assert kept() is None


async def test_rows_with_names_of_their_own_are_not_all_kept() -> None:
    calls = Calls()
    with credentials_of_frame():
        await calls.credential()
        for number in range(MOST_MADE + 1):
            keep_for_name("t", "o", "db", f"pool of {number}", number)
        kept = [kept_for_name("t", "o", "db", f"pool of {number}") for number in range(MOST_MADE + 1)]
    assert [one for one in kept if one is not None] == [MOST_MADE]
