"""Each service is killed at 25, 50 and 75 % of a loop over a thousand items: it goes on, and comes to the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from noetl_cli.chaos.boundaries import Boundary, Kill
from noetl_cli.chaos.command import SERVICES, SETTINGS
from noetl_cli.chaos.effects import Effects
from noetl_cli.chaos.family import ROOT, is_fact
from noetl_cli.chaos.own_stack import own_stack
from noetl_cli.chaos.settling import Settling
from noetl_cli.chaos.trial import Trial, Trials
from noetl_cli.chaos.verdict import Undisturbed, judge, undisturbed
from noetl_cli.connection import Server, connected
from noetl_cli.dev.endpoint import LocalEndpoint
from noetl_cli.dev.home import StackHome
from noetl_core.envelope import StoredEvent
from noetl_testkit.backends import temporary_directory

ITEMS = 1000
SHARES = (0.25, 0.5, 0.75)
RESUMED_SECONDS = 5.0
GROUPS = (("api",), ("planner",), ("worker",), ("outbox-publisher", "projector", "reaper"))
"""The loop does not wait for the last three: one run is enough for them, in which each is killed three times."""
LOOP = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: thousand, path: tests/thousand}}
workflow:
- step: each
  loop: {{in: "{{{{ range({ITEMS}) | list }}}}", iterator: n, spec: {{mode: parallel, max_in_flight: 16}}}}
  tool: {{kind: noop, result: "{{{{ iter.n * iter.n }}}}"}}
  next: {{arcs: [{{step: sum}}]}}
- step: sum
  tool: {{kind: noop, result: "{{{{ each.results | sum }}}}"}}
"""


def test_every_service_is_killed() -> None:
    assert sorted(service for group in GROUPS for service in group) == sorted(SERVICES)


@dataclass(frozen=True, kw_only=True)
class Thousand:
    """A stack of its own, and what the loop comes to on it when nobody kills anything."""

    trials: Trials
    settling: Settling
    good: Undisturbed
    events: Sequence[StoredEvent]

    def kills(self, services: Sequence[str]) -> list[Kill]:
        """Found by watching the log: when so much of what an undisturbed run has written is there."""
        facts = [event.envelope() for event in self.events if is_fact(event.envelope().event_type)]
        numbers = [int(share * len(facts)) for share in SHARES]
        return [
            Kill(service=service, boundary=Boundary(place=ROOT, number=one, after=facts[one - 1].event_type))
            for one in numbers
            for service in services
        ]


@pytest.fixture(scope="module")
def thousand() -> Iterator[Thousand]:
    with temporary_directory() as directory:
        home = StackHome(root=directory.resolve() / "stack")
        with own_stack(home, SETTINGS, out=print) as stack:
            endpoint = LocalEndpoint.read(home)
            assert endpoint is not None
            server = Server(address=endpoint.address, token=endpoint.token)
            asyncio.run(register(server))
            trials = Trials(
                stack, server, path="tests/thousand", version=1, payload={}, effects=Effects(), timeout_seconds=300.0
            )
            calm = asyncio.run(trials.run())
            assert calm.has_ended
            yield Thousand(
                trials=trials,
                settling=Settling(home),
                good=undisturbed([calm]),
                events=calm.histories[ROOT],
            )


async def register(server: Server) -> None:
    async with connected(server) as clients:
        await clients.catalog.register(None, LOOP)


@pytest.mark.parametrize("services", GROUPS, ids=" ".join)
def test_a_loop_goes_on_and_comes_to_the_same_although_three_times_somebody_kills(
    services: tuple[str, ...], thousand: Thousand
) -> None:
    trial, unsettled = asyncio.run(run(thousand, services))

    verdict = judge(trial, thousand.good, unsettled)
    assert verdict.is_same, (verdict.problems, verdict.differences[:5])
    assert Counter(one.kill.service for one in trial.landed) == Counter([*services] * len(SHARES))
    waits = [landed.resumed for landed in trial.landed]  # None: nobody waited for it, and the loop ended before
    assert max((seconds for seconds in waits if seconds is not None), default=0.0) < RESUMED_SECONDS
    assert len(services) > 1 or None not in waits
    committed = Counter(
        envelope.meta["loop_iteration_index"]
        for envelope in (event.envelope() for event in trial.histories[ROOT])
        if envelope.event_type == "call.done" and envelope.node_name == "each"
    )
    assert committed == Counter(range(ITEMS))
    assert verdict.checksum == thousand.good.digest(thousand.good.expected)


async def run(thousand: Thousand, services: Sequence[str]) -> tuple[Trial, Sequence[str]]:
    trial = await thousand.trials.run(thousand.kills(services))
    return trial, await thousand.settling.problems(trial.histories) if trial.has_ended else []
