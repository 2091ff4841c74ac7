"""All runs of `noetl chaos`: undisturbed ones first, then one for each kill, each judged as soon as it has ended."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from noetl_core.errors import DeadlinePassed
from noetl_core.replay.history import Replay

from noetl_cli.chaos.boundaries import Kill, boundaries, kills
from noetl_cli.chaos.effects import Effects
from noetl_cli.chaos.family import ROOT
from noetl_cli.chaos.own_stack import OwnStack
from noetl_cli.chaos.report import Campaign, kill_text, verdict_text
from noetl_cli.chaos.settling import Settling
from noetl_cli.chaos.trial import Trial, Trials
from noetl_cli.chaos.verdict import Undisturbed, Verdict, judge, undisturbed
from noetl_cli.connection import Server, connected
from noetl_cli.dev.endpoint import LocalEndpoint
from noetl_cli.dev.home import StackHome
from noetl_cli.shown.durations import span_text

UNDISTURBED = 2
"""Two, so that what differs by itself is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for."""

    playbook: str
    others: Sequence[str]
    payload: Mapping[str, Any]
    services: Sequence[str]
    sample: int | None
    seed: int
    timeout_seconds: float


async def campaign(
    plan: Plan, *, home: StackHome, stack: OwnStack, effects: Effects, out: Callable[[str], None]
) -> Campaign:
    """Runs until all is tried, or until it is cancelled: then with what there is."""
    endpoint = LocalEndpoint.read(home)
    if endpoint is None:
        raise AssertionError("a stack that runs has said where")
    server = Server(address=endpoint.address, token=endpoint.token)
    path, version = await _register(server, plan)
    trials = Trials(
        stack,
        server,
        path=path,
        version=version,
        payload=plan.payload,
        effects=effects,
        timeout_seconds=plan.timeout_seconds,
    )
    settling = Settling(home)
    calm = [await _undisturbed(trials, settling, number, out) for number in range(1, UNDISTURBED + 1)]
    good = undisturbed(calm)
    where = boundaries(calm[0].histories)
    planned = kills(plan.services, where, sample=plan.sample, seed=plan.seed)
    out(
        f"{len(where)} boundaries between events, {len(plan.services)} services: {len(planned)} kills"
        + (f" drawn with seed {plan.seed}" if len(planned) < len(where) * len(plan.services) else "")
    )
    verdicts: list[Verdict] = []
    try:
        for number, kill in enumerate(planned, start=1):
            verdicts.append(await _judged(trials, settling, kill, good))
            out(f"{kill_text(number, len(planned), kill)}: {verdict_text(verdicts[-1])}")
    except asyncio.CancelledError:
        out("interrupted")
    return Campaign(
        path=path,
        services=plan.services,
        boundaries=len(where),
        planned=len(planned),
        seed=plan.seed if plan.sample is not None else None,
        status=_status(calm[0]),
        good=good,
        verdicts=verdicts,
    )


async def _register(server: Server, plan: Plan) -> tuple[str, int]:
    async with connected(server) as clients:
        for content in plan.others:
            await clients.catalog.register(None, content)
        entry = (await clients.catalog.register(None, plan.playbook)).entry
    return entry.path, entry.version


async def _undisturbed(trials: Trials, settling: Settling, number: int, out: Callable[[str], None]) -> Trial:
    trial = await trials.run()
    if not trial.has_ended:
        raise DeadlinePassed(
            f"undisturbed, the playbook has not ended within {trial.seconds:.0f} s: give it more with --timeout"
        )
    problems = await settling.problems(trial.histories)
    for problem in problems:
        out(f"  {problem}")
    events = sum(map(len, trial.histories.values()))
    many = f" in {len(trial.histories)} executions" if len(trial.histories) > 1 else ""
    out(f"undisturbed {number}/{UNDISTURBED}: {_status(trial)} in {span_text(trial.seconds)}, {events} events{many}")
    return trial


async def _judged(trials: Trials, settling: Settling, kill: Kill, good: Undisturbed) -> Verdict:
    trial = await trials.run([kill])
    unsettled = await settling.problems(trial.histories) if trial.has_ended else []
    return judge(trial, good, unsettled)


def _status(trial: Trial) -> str:
    replay = Replay(trial.execution_id)
    replay.take(trial.histories[ROOT])
    return replay.result().state.execution.status.value
