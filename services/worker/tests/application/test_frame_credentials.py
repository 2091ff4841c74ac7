"""Credentials of frames: one request for all of their rows, and nothing of it afterwards."""

from __future__ import annotations

import asyncio

import pytest
from noetl_core.errors import Unavailable
from noetl_core.ports.credentials import Credential
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.frame_credentials import (
    KEPT_SECONDS,
    FetchedOncePerFrame,
    credentials_of_frame,
    forget_credentials,
    made_of,
)
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


async def test_that_a_credential_could_not_be_had_is_not_remembered() -> None:
    calls = Calls()
    with credentials_of_frame():
        calls.stored.is_away = True
        with pytest.raises(Unavailable):
            await calls.password()
        calls.stored.is_away = False
        assert await calls.password() == "first"
