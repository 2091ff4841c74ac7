"""What `noetl chaos` shows: a line for each run while they go on, and a table at the end."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from noetl_cli.chaos.boundaries import Kill
from noetl_cli.chaos.trial import Landed
from noetl_cli.chaos.verdict import Undisturbed, Verdict
from noetl_cli.shown.durations import span_text
from noetl_cli.shown.tables import table_lines

_SHOWN = 5
"""So many of a kind are shown; all of them are in the JSON document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """All that was planned and what came of it; cut short if somebody pressed Ctrl-C."""

    path: str
    services: Sequence[str]
    boundaries: int
    planned: int
    seed: int | None
    status: str
    good: Undisturbed
    verdicts: Sequence[Verdict]

    @property
    def is_same(self) -> bool:
        """Whether every run was as an undisturbed one."""
        return all(one.is_same for one in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """For programs: stable keys."""
        return {
            "path": self.path,
            "status": self.status,
            "same": self.is_same,
            "seed": self.seed,
            "boundaries": self.boundaries,
            "planned": self.planned,
            "runs": len(self.verdicts),
            "services": [
                dict(zip(("service", *_FIELDS), row, strict=True)) for row in _by_service(self.services, self.verdicts)
            ],
            "undisturbed": {
                "committed": self.good.committed,
                "effects": self.good.effects.to_json(),
                "varying": list(self.good.varying),
            },
            "results": [one.to_json() for one in self.verdicts],
        }


_FIELDS = ("kills", "same", "different", "longest_back_seconds", "longest_resumed_seconds", "repeated_calls")


def kill_text(number: int, total: int, kill: Kill) -> str:
    """What is being tried."""
    width = len(str(total))
    return f"[{number:>{width}}/{total}] {kill.service:<16} after {kill.boundary}"


def verdict_text(verdict: Verdict) -> str:
    """How it went, in one line."""
    word = click.style("same", fg="green") if verdict.is_same else click.style("DIFFERENT", fg="red", bold=True)
    notes = [span_text(verdict.trial.seconds), *(note for one in verdict.trial.landed for note in _landing(one))]
    if not verdict.trial.landed:
        notes.append("ended before the log came there: nothing was killed")
    again = len(verdict.repeated)
    if again:
        notes.append(f"{again} call{'s' if again > 1 else ''} ran again")
    return f"{word}  {', '.join(notes)}"


def campaign_lines(campaign: Campaign) -> Iterator[str]:
    """The summary."""
    verdicts = campaign.verdicts
    rows = [("SERVICE", "KILLS", "SAME", "DIFFERENT", "BACK", "RESUMED", "CALLS AGAIN")]
    for service, kills, same, different, back, resumed, again in _by_service(campaign.services, verdicts):
        rows.append((service, str(kills), str(same), str(different), _seconds(back), _seconds(resumed), str(again)))
    yield ""
    yield from table_lines(rows)
    yield ""
    yield from _problem_lines([one for one in verdicts if not one.is_same])
    yield from _again_lines(verdicts)
    yield from _effect_lines(campaign)
    if campaign.good.varying:
        yield f"not compared, since undisturbed runs differ in it: {_some(campaign.good.varying)}"
    if len(verdicts) < campaign.planned:
        yield f"{campaign.planned - len(verdicts)} of {campaign.planned} runs were not made"
    if campaign.is_same and verdicts:
        many = f"all {len(verdicts)} runs" if len(verdicts) > 1 else "the run"
        yield f"{many} came to the same state as an undisturbed one, with the same effects"
    elif verdicts:
        yield f"{sum(not one.is_same for one in verdicts)} of {len(verdicts)} runs came to something else"


def _problem_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    for verdict in verdicts[:_SHOWN]:
        kills = ", ".join(f"{one.kill.service} after {one.kill.boundary}" for one in verdict.trial.landed)
        yield f"execution {verdict.trial.execution_id}: {kills}"
        for problem in verdict.problems[:_SHOWN]:
            yield f"  {problem}"
        for one in verdict.differences[:_SHOWN]:
            yield f"  {one.where}: {_short(one.found)} instead of {_short(one.expected)}"
        left = len(verdict.problems[_SHOWN:]) + len(verdict.differences[_SHOWN:])
        if left:
            yield f"  … and {left} more"
    if len(verdicts) > _SHOWN:
        yield f"… and {len(verdicts) - _SHOWN} more runs"
    if verdicts:
        yield ""


def _again_lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    calls = [(one, verdict) for verdict in verdicts for one in verdict.repeated]
    if not calls:
        return
    yield "These calls were begun more than once: their worker was killed, or cut off for longer than its lease, and"
    yield "nobody can say how far it had come. NoETL takes one outcome of each. What they do outside happens once if"
    yield "whoever takes it goes by the idempotency key, which is the same in every attempt:"
    for one, _ in calls[:_SHOWN]:
        yield f"  {one.call}: {one.attempts} attempts under the key {one.idempotency_key}"
    if len(calls) > _SHOWN:
        yield f"  … and {len(calls) - _SHOWN} more: -o json lists all"
    yield ""


def _effect_lines(campaign: Campaign) -> Iterator[str]:
    applied = campaign.good.effects.applied
    if not applied:
        return
    calls = sum(verdict.trial.effects.calls.total() for verdict in campaign.verdicts)
    again = sum(times - 1 for one in campaign.verdicts for _, _, times in one.trial.effects.repeated())
    yield f"the counter takes {applied.total()} effects in an undisturbed run; {len(campaign.verdicts)} runs made"
    yield f"{calls} calls, of which {again} repeated one with the same key"
    unkeyed = sorted({what for what, key in campaign.good.effects.calls if not key})
    if unkeyed:
        yield f"without an idempotency key, so that nobody can tell a repeated call from a new one: {_some(unkeyed)}"
    yield ""


def _by_service(services: Sequence[str], verdicts: Sequence[Verdict]) -> Iterator[tuple[Any, ...]]:
    for service in services:
        own = [one for one in verdicts if any(landed.kill.service == service for landed in one.trial.landed)]
        landed = [hit for one in own for hit in one.trial.landed if hit.kill.service == service]
        same = sum(one.is_same for one in own)
        yield (
            service,
            len(landed),
            same,
            len(own) - same,
            _longest([hit.back for hit in landed]),
            _longest([hit.resumed for hit in landed]),
            sum(len(one.repeated) for one in own),
        )


def _landing(landed: Landed) -> Iterator[str]:
    if landed.at_number != landed.kill.boundary.number:
        yield f"killed at event {landed.at_number}"
    if landed.back is not None:
        yield f"back in {landed.back:.2f} s"
    if landed.resumed is not None:
        yield f"went on {landed.resumed:.2f} s later"


def _longest(seconds: Sequence[float | None]) -> float | None:
    known = [one for one in seconds if one is not None]
    return round(max(known), 3) if known else None


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _short(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return ", ".join(str(one.get("event", one)) if isinstance(one, Mapping) else str(one) for one in value)[:120]
    return str(value)[:120]


def _some(names: Sequence[str]) -> str:
    more = f" … and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
