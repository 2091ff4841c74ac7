"""The keychain: what a call is given of it, how long it is kept, and that it goes nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from noetl_core.playbook.model import KeychainEntry, KeychainScope
from noetl_worker.application.kept_secrets import KeptSecrets
from noetl_worker.application.keychain import Keychain, Secret, SecretRequest, Unresolved
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from structlog.testing import capture_logs


class Source:
    """Gives a new token each time it is asked; the test decides how long they live, and whether it works."""

    def __init__(self, lives_seconds: float = 0.0) -> None:
        self.lives_seconds = lives_seconds
        self.requests: list[SecretRequest] = []
        self.is_broken = False
        self.asked = asyncio.Event()
        self.gate: asyncio.Event | None = None

    async def resolve(self, request: SecretRequest) -> Secret:
        self.requests.append(request)
        self.asked.set()
        number = len(self.requests)
        if self.gate is not None:
            await self.gate.wait()
        if self.is_broken:
            raise Unresolved("it is broken")
        return Secret(fields={"token": f"token-{number}", **request.config}, lives_seconds=self.lives_seconds)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def call(config: dict[str, Any], *, execution_id: int = 1, tenant_id: str = "t", **names: object) -> ToolCall:
    return ToolCall(
        tenant_id=tenant_id,
        organization_id="o",
        execution_id=execution_id,
        step="s",
        kind="http",
        config=config,
        names=names,
    )


def entry(name: str, **fields: Any) -> KeychainEntry:
    return KeychainEntry(name=name, kind="k", **fields)


def entries(*all_of_them: KeychainEntry) -> dict[str, KeychainEntry]:
    return {one.name: one for one in all_of_them}


def keychain(source: Source, clock: Callable[[], float] | None = None) -> Keychain:
    return Keychain({"k": source}, kept=KeptSecrets(clock=clock) if clock else None)


async def rendered(chain: Keychain, one: ToolCall, known: dict[str, KeychainEntry]) -> object:
    opened = await chain.opened_for(one, known)
    return opened.render(one.config["url"])


async def test_entries_are_seen_below_keychain_and_by_their_own_name() -> None:
    chain, known = keychain(Source()), entries(entry("api"))

    assert await rendered(chain, call({"url": "{{ keychain.api.token }}"}), known) == "token-1"
    assert await rendered(chain, call({"url": "{{ api.token }}"}, api="a variable"), known) == "token-2"
    assert await rendered(chain, call({"url": "{{ keychain['api'].token }}"}), known) == "token-3"
    assert await rendered(chain, call({"url": "{{ keychain | length }}"}), known) == 1


async def test_only_what_is_named_is_opened() -> None:
    source = Source()
    chain, known = keychain(source), entries(entry("a"), entry("b"), entry("c", config={"x": "{{ a.token }}"}))

    await chain.opened_for(call({"url": "https://example"}), known)
    assert source.requests == []

    opened = await chain.opened_for(call({"url": "{{ keychain.c.token }}"}), known)
    assert [request.name for request in source.requests] == ["a", "c"]
    assert source.requests[1].config == {"x": "token-1"}
    assert opened.keychain.keys() == {"a", "c"}


async def test_an_entry_sees_no_later_one() -> None:
    source = Source()
    known = entries(entry("a", config={"x": "{{ b.token }}"}), entry("b"))

    await keychain(source).opened_for(call({"url": "{{ a.token }}"}), known)

    assert source.requests[0].config == {"x": None}


@pytest.mark.parametrize("key", ["script", "code_b64", "command_b64"])
async def test_templates_that_cannot_be_read_in_advance_may_name_any_entry(key: str) -> None:
    opened = await keychain(Source()).opened_for(call({key: "c2VsZWN0"}), entries(entry("a"), entry("b")))

    assert opened.keychain.keys() == {"a", "b"}


async def test_a_child_playbook_is_given_nothing() -> None:
    one = replace(call({"input": "{{ keychain.a.token }}"}), kind="playbook")

    assert await keychain(Source()).opened_for(one, entries(entry("a"))) is one


async def test_what_cannot_be_opened_is_logged_and_undefined() -> None:
    source = Source()
    source.is_broken = True
    with capture_logs() as logs:
        one = await keychain(source).opened_for(
            call({"url": "[{{ a.token }}]"}, a={"token": "old"}), entries(entry("a"))
        )

    assert one.render("[{{ a.token }}{{ keychain.a }}]") == "[]"
    assert one.render("{{ a is defined }}") is False
    assert [(log["event"], log["entry"], log["reason"]) for log in logs] == [
        ("worker.keychain_unresolved", "a", "it is broken")
    ]


async def test_a_kind_without_a_source_and_a_template_that_fails_are_unresolved() -> None:
    with capture_logs() as logs:
        await Keychain().opened_for(call({"url": "{{ a.x }}"}), entries(entry("a")))
        known = entries(entry("a", config={"x": "{{ 1 / 0 }}"}))
        await keychain(Source()).opened_for(call({"url": "{{ a.x }}"}), known)

    assert [log["reason"] for log in logs] == [
        "this worker cannot open entries of the kind 'k'",
        "its configuration cannot be rendered: division by zero",
    ]


async def test_the_names_of_a_call_and_what_it_shows_of_itself_have_no_secret() -> None:
    opened = await keychain(Source()).opened_for(call({"url": "{{ a.token }}"}), entries(entry("a")))

    assert "a" not in opened.names
    assert "token-1" not in repr(opened)


async def test_what_has_no_end_is_fetched_for_each_call() -> None:
    source = Source(lives_seconds=0)
    chain, known = keychain(source), entries(entry("a"))

    assert [await rendered(chain, call({"url": "{{ a.token }}"}), known) for _ in range(2)] == ["token-1", "token-2"]


async def test_what_lasts_is_kept_until_its_end_and_renewed_before_it_where_that_is_wanted() -> None:
    clock, source = Clock(), Source(lives_seconds=600)
    chain = keychain(source, clock)
    plain, renewing = entries(entry("a")), entries(entry("b", auto_renew=True))
    first = call({"url": "{{ a.token }}{{ b.token }}"})
    for known in (plain, renewing):
        await chain.opened_for(first, known)
    clock.now += 545

    await chain.opened_for(first, plain)
    await chain.opened_for(first, renewing)
    assert [request.name for request in source.requests] == ["a", "b", "b"]

    clock.now += 60
    await chain.opened_for(first, plain)
    assert [request.name for request in source.requests] == ["a", "b", "b", "a"]


async def test_a_renewal_that_fails_leaves_what_is_still_good() -> None:
    clock, source = Clock(), Source(lives_seconds=100)
    chain, known = keychain(source, clock), entries(entry("a", auto_renew=True))
    one = call({"url": "{{ a.token }}"})
    await chain.opened_for(one, known)
    source.is_broken = True
    clock.now += 60
    assert await rendered(chain, one, known) == "token-1"

    clock.now += 41
    assert await rendered(chain, one, known) is None


async def test_a_local_entry_belongs_to_its_execution_and_a_global_one_to_its_organization() -> None:
    clock, source = Clock(), Source(lives_seconds=100)
    chain = keychain(source, clock)
    known = entries(entry("mine"), entry("ours", scope=KeychainScope.GLOBAL))
    for execution_id, tenant_id in ((1, "t"), (2, "t"), (1, "other")):
        one = call({"url": "{{ mine }}{{ ours }}"}, execution_id=execution_id, tenant_id=tenant_id)
        await chain.opened_for(one, known)

    asked = [(request.name, request.execution_id, request.tenant_id) for request in source.requests]
    assert asked == [("mine", 1, "t"), ("ours", 1, "t"), ("mine", 2, "t"), ("mine", 1, "other"), ("ours", 1, "other")]


async def test_another_configuration_is_another_secret() -> None:
    source = Source(lives_seconds=100)
    chain, known = keychain(source, Clock()), entries(entry("a", config={"for": "{{ who }}"}))
    for who in ("ada", "bob", "ada"):
        await chain.opened_for(call({"url": "{{ a }}"}, who=who), known)

    assert [request.config["for"] for request in source.requests] == ["ada", "bob"]


async def test_those_who_ask_at_the_same_time_cause_one_request() -> None:
    source = Source(lives_seconds=100)
    source.gate = asyncio.Event()
    chain, known = keychain(source, Clock()), entries(entry("a"))
    asking = [asyncio.create_task(chain.opened_for(call({"url": "{{ a }}"}), known)) for _ in range(5)]
    await source.asked.wait()
    asking[0].cancel()  # whose task it was does not matter to the others
    source.gate.set()
    ends = await asyncio.gather(*asking, return_exceptions=True)

    assert len(source.requests) == 2
    assert {str(dict(end.keychain)) for end in ends if isinstance(end, ToolCall)} == {"{'a': {'token': 'token-2'}}"}


async def test_a_source_that_has_just_failed_is_left_alone_for_a_while() -> None:
    clock, source = Clock(), Source()
    source.is_broken = True
    chain, known = keychain(source, clock), entries(entry("a"))
    for _ in range(3):
        await chain.opened_for(call({"url": "{{ a }}"}), known)
    assert len(source.requests) == 1

    clock.now += 6
    await chain.opened_for(call({"url": "{{ a }}"}), known)
    assert len(source.requests) == 2


async def test_what_a_server_refused_is_fetched_anew() -> None:
    source = Source(lives_seconds=100)
    chain, known = keychain(source, Clock()), entries(entry("a"))
    opened = await chain.opened_for(call({"url": "{{ a.token }}"}), known)

    chain.learn_from(opened, Outcome.failed(kind=ErrorKind.SERVER_ERROR, code="HTTP_500", message="no"))
    assert await rendered(chain, opened, known) == "token-1"
    chain.learn_from(opened, Outcome.failed(kind=ErrorKind.AUTH, code="HTTP_401", message="no"))
    assert await rendered(chain, opened, known) == "token-2"


async def test_no_more_is_kept_than_there_is_room_for() -> None:
    source, kept = Source(lives_seconds=100), KeptSecrets(clock=Clock(), max_kept=3)
    chain = Keychain({"k": source}, kept=kept)
    for execution_id in range(10):
        await chain.opened_for(call({"url": "{{ a }}"}, execution_id=execution_id), entries(entry("a")))

    assert len(kept) == 3
