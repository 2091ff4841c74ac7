"""What `noetl chaos` compares is the same whatever went wrong, and other when a run has come to something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from noetl_core.envelope import StoredEvent
from noetl_core.likeness.accounts import Account, account
from noetl_core.likeness.calls import calls
from noetl_core.likeness.comparing import differences, digest, expectation
from noetl_core.recorded import record
from noetl_testkit.simulation.playbooks import HAND_WRITTEN, Case
from noetl_testkit.simulation.verdict import quiet
from noetl_testkit.simulation.world import Script, World, script_of

CASES = {case.name: case for case in HAND_WRITTEN if not case.minds_time}
SEEDS = 120
"""Looked through for those that run one of the cases, and in which nobody cancels."""


def histories(script: Script) -> list[Sequence[StoredEvent]]:
    world = World(script)
    try:
        with quiet():
            world.run()
        return [stream.events for _, stream in sorted(world.log.streams.items())]
    finally:
        world.close()


def by_path(streams: list[Sequence[StoredEvent]]) -> dict[str, list[Account]]:
    """Accounts of executions of the same playbook; several users start several."""
    told: dict[str, list[Account]] = {}
    for events in streams:
        told.setdefault(str(events[0].envelope().meta["path"]), []).append(account(events))
    return told


def undisturbed(case: Case) -> dict[str, Account]:
    runs = [histories(Script(seed=seed, case=case, minds=("",), replicas=(1, 1, 1, 1))) for seed in (0, 1)]
    together = by_path([*runs[0], *runs[1]])
    return {path: expectation(accounts) for path, accounts in together.items()}


def disturbed() -> dict[str, list[Script]]:
    found: dict[str, list[Script]] = {}
    for seed in range(SEEDS):
        script = script_of(seed)
        if script.case.name in CASES and not any(script.minds) and script.faults:
            found.setdefault(script.case.name, []).append(script)
    return found


SCRIPTS = disturbed()


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_disturbed_run_tells_what_an_undisturbed_one_does(name: str) -> None:
    expected = undisturbed(CASES[name])
    for script in SCRIPTS[name][:3]:
        for path, accounts in by_path(histories(script)).items():
            for told in accounts:
                assert differences(expected[path], told) == [], f"seed {script.seed}"
                assert digest(expected[path], told) == digest(expected[path], expected[path])


def test_calls_that_ran_again_are_named_with_their_key_and_count_once() -> None:
    seen: Counter[str] = Counter()
    for script in [one for scripts in SCRIPTS.values() for one in scripts[:2]]:
        for events in histories(script):
            told = calls([record(event) for event in events])
            assert told.doubled == ()
            assert told.begun >= told.committed
            for one in told.repeated:
                seen[one.call.split("#")[0]] += 1
                assert one.attempts > 1
                assert one.idempotency_key.startswith(f"{events[0].envelope().execution_id}/")
    assert seen, "no seed has made a worker lose a call"


def test_another_result_another_way_and_a_missing_event_are_differences() -> None:
    case = CASES["chain"]
    (events,) = histories(Script(seed=0, case=case, minds=("",), replicas=(1, 1, 1, 1)))
    expected = account(events)
    other = {name: value for name, value in expected.items() if name != "command b#1"}
    done: Any = expected["command b#1"]
    changed = [{**one, "result": "another"} if one["event"] == "call.done" else one for one in done]

    assert differences(expected, expected) == []
    assert [one.where for one in differences(expected, other)] == ["command b#1"]
    assert [one.where for one in differences(expected, {**other, "command b#1": changed})] == [
        "command b#1.call.done.result"
    ]
    assert [one.where for one in differences(expected, {**other, "command b#1": done[1:]})] == ["command b#1"]
    assert digest(expected, other) != digest(expected, expected)
    assert differences(expectation([expected, {**other, "command b#1": changed}]), expected) == []
