"""Where `noetl chaos` kills, what it counts, and what it says, without a stack."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from noetl_cli.__main__ import run
from noetl_cli.app import app
from noetl_cli.chaos.boundaries import boundaries, kills
from noetl_cli.chaos.effects import CountedEffects, effects_server
from noetl_cli.chaos.report import Campaign, campaign_lines
from noetl_cli.chaos.trial import Landed, Trial
from noetl_cli.chaos.verdict import judge, undisturbed
from noetl_core.envelope import StoredEvent
from noetl_testkit.simulation.playbooks import HAND_WRITTEN
from noetl_testkit.simulation.verdict import quiet
from noetl_testkit.simulation.world import Script, World

CASES = {case.name: case for case in HAND_WRITTEN}
NOTHING = CountedEffects(calls=Counter())


@pytest.fixture(scope="module")
def history() -> list[StoredEvent]:
    with quiet():
        world = World(Script(seed=0, case=CASES["chain"], minds=("",), replicas=(1, 1, 1, 1))).run()
        world.close()
    (stream,) = world.log.streams.values()
    return list(stream.events)


def trial(events: list[StoredEvent], *, effects: CountedEffects = NOTHING, landed: tuple[Landed, ...] = ()) -> Trial:
    return Trial(
        execution_id=events[0].envelope().execution_id,
        histories={"": events},
        has_ended=True,
        seconds=1.0,
        landed=landed,
        effects=effects,
    )


def test_boundaries_stand_where_the_log_took_something_and_not_inside_of_an_append(
    history: list[StoredEvent],
) -> None:
    found = boundaries({"": history})

    times = [event.ingest_time for event in history]
    assert len(found) == len(set(times))
    assert found[0].after == "playbook.initialized"
    assert (found[-1].number, found[-1].after) == (len(history), "playbook.completed")


def test_heartbeats_move_no_boundary(history: list[StoredEvent]) -> None:
    started = next(index for index, one in enumerate(history) if one.envelope().event_type == "command.started")
    beat = history[started]._replace(
        body=history[started].body.replace(b'"command.started"', b'"command.heartbeat"'),
        ingest_time=history[started].ingest_time + timedelta(milliseconds=1),
    )
    with_beat = [*history[: started + 1], beat, *history[started + 1 :]]

    assert boundaries({"": with_beat}) == boundaries({"": history})


def test_a_seed_draws_the_same_kills_again_and_all_of_them_are_in_the_order_of_the_log(
    history: list[StoredEvent],
) -> None:
    where = boundaries({"": history})
    every = kills(("api", "worker"), where, sample=None, seed=0)

    assert len(every) == 2 * len(where)
    drawn = kills(("api", "worker"), where, sample=3, seed=7)
    assert (
        drawn == kills(("api", "worker"), where, sample=3, seed=7) != kills(("api", "worker"), where, sample=3, seed=8)
    )
    assert [every.index(one) for one in drawn] == sorted(every.index(one) for one in drawn)
    assert kills(("api",), where, sample=1000, seed=7) == kills(("api",), where, sample=None, seed=0)


def test_the_counter_takes_any_call_and_counts_a_key_once() -> None:
    with effects_server() as effects:
        for key in ("one", "one", "two", None, None):
            headers = {"Idempotency-Key": key} if key else {}
            assert httpx.post(f"{effects.url}/pay", json={}, headers=headers).status_code == 200
        counted = effects.taken()
        assert effects.taken().calls == Counter()

    assert counted.applied == Counter({"POST /pay": 4})
    assert list(counted.repeated()) == [("POST /pay", "one", 2)]


def test_a_run_with_other_effects_or_another_history_is_not_the_same(history: list[StoredEvent]) -> None:
    paid = CountedEffects(calls=Counter({("POST /pay", "k"): 1}))
    twice = CountedEffects(calls=Counter({("POST /pay", "k"): 2}))
    unkeyed = CountedEffects(calls=Counter({("POST /pay", ""): 2}))
    good = undisturbed([trial(history, effects=paid), trial(history, effects=paid)])

    assert judge(trial(history, effects=paid), good, []).is_same
    assert judge(trial(history, effects=twice), good, []).is_same, "the same key is one effect"
    assert not judge(trial(history, effects=unkeyed), good, []).is_same
    assert not judge(trial(history[:-1], effects=paid), good, []).is_same
    assert not judge(trial(history, effects=paid), good, ["5 messages for 4 events"]).is_same
    same = judge(trial(history, effects=paid), good, [])
    assert same.checksum == good.digest(good.expected) != judge(trial(history[:-1], effects=paid), good, []).checksum


def test_the_summary_says_what_was_killed_what_came_of_it_and_what_was_not_tried(history: list[StoredEvent]) -> None:
    (kill,) = kills(("worker",), boundaries({"": history})[:1], sample=None, seed=0)
    good = undisturbed([trial(history)])
    landed = (Landed(kill=kill, at_number=3, back=1.5, resumed=0.25),)
    verdicts = [
        judge(trial(history, landed=landed), good, []),
        judge(trial(history[:-1], landed=landed), good, []),
    ]
    campaign = Campaign(
        path="sim/chain",
        services=("api", "worker"),
        boundaries=4,
        planned=5,
        seed=7,
        status="COMPLETED",
        good=good,
        verdicts=verdicts,
    )

    text = "\n".join(campaign_lines(campaign))
    assert "worker   2      1     1          1.50 s  0.25 s   0" in text
    assert "api      0      0     0          -       -        0" in text
    assert "3 of 5 runs were not made" in text and "1 of 2 runs came to something else" in text
    document = campaign.to_json()
    assert (document["same"], document["runs"], document["planned"]) == (False, 2, 5)
    assert document["results"][0]["kills"][0] == {
        "service": "worker", "execution": "", "event": 1, "after": "playbook.initialized", "landed_at": 3,
        "back_seconds": 1.5, "resumed_seconds": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--seed", "3"], "--seed goes with --sample"),
        (["--service", "nobody"], "'nobody' is not one of"),
    ],
)
def test_wrong_usage_starts_nothing(arguments: list[str], told: str) -> None:
    ran = CliRunner().invoke(app, ["chaos", __file__, *arguments])

    assert ran.exit_code == 2
    assert told in ran.output


def test_a_broken_playbook_is_told_before_a_stack_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("kind: Playbook\n")

    assert run(["chaos", str(broken)]) == 2
    shown = capsys.readouterr()
    assert str(broken) in shown.err and not shown.out
