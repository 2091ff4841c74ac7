"""Judges a run against those that nobody disturbed: the same state, the same effects, and what was called again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from noetl_core.canonical import JsonObject
from noetl_core.envelope import StoredEvent
from noetl_core.likeness.accounts import Account, account
from noetl_core.likeness.calls import Calls, RepeatedCall, calls
from noetl_core.likeness.comparing import Difference, differences, digest, expectation, varying
from noetl_core.recorded import record
from noetl_core.surfaces.shapes import Surface

from noetl_cli.chaos.effects import CountedEffects
from noetl_cli.chaos.trial import Trial

Accounts = Mapping[str, Account]


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """What runs come to when nobody kills anything."""

    expected: Accounts
    committed: int
    effects: CountedEffects
    effects_vary: bool

    @cached_property
    def varying(self) -> Sequence[str]:
        """What differs from run to run by itself: not compared."""
        places = [f"{place} {where}".strip() for place, one in self.expected.items() for where in varying(one)]
        return [*places, *(["effects"] if self.effects_vary else [])]

    def digest(self, accounts: Accounts) -> str:
        """One checksum of everything that is compared; equal for runs that are alike."""
        parts = [digest(self.expected.get(place, {}), accounts.get(place, {})) for place in sorted(self.expected)]
        return digest({}, {"parts": [*parts, *sorted(accounts.keys() - self.expected.keys())]})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be said about a run with kills."""

    trial: Trial
    problems: tuple[str, ...]
    differences: tuple[Difference, ...]
    checksum: str
    committed: int
    repeated: tuple[RepeatedCall, ...]

    @property
    def is_same(self) -> bool:
        """Whether state and effects are those of an undisturbed run."""
        return not self.problems and not self.differences

    def to_json(self) -> JsonObject:
        """For whoever reads it with a program."""
        return {
            "execution_id": str(self.trial.execution_id),
            "kills": [
                {
                    **one.kill.to_json(),
                    "landed_at": one.at_number,
                    "back_seconds": _rounded(one.back),
                    "resumed_seconds": _rounded(one.resumed),
                }
                for one in self.trial.landed
            ],
            "same": self.is_same,
            "seconds": round(self.trial.seconds, 3),
            "checksum": self.checksum,
            "problems": list(self.problems),
            "differences": [one.to_json() for one in self.differences],
            "committed": self.committed,
            "repeated_calls": [one.to_json() for one in self.repeated],
            "effects": self.trial.effects.to_json(),
        }


def undisturbed(trials: Sequence[Trial]) -> Undisturbed:
    """What they have in common."""
    told = [_accounts(trial.histories) for trial in trials]
    places = sorted({place for one in told for place in one})
    first = trials[0]
    return Undisturbed(
        expected={place: expectation([one.get(place, {}) for one in told]) for place in places},
        committed=_committed(_calls(first.histories)),
        effects=first.effects,
        effects_vary=any(trial.effects.applied != first.effects.applied for trial in trials),
    )


def judge(trial: Trial, good: Undisturbed, unsettled: Sequence[str]) -> Verdict:
    """Everything that is not as it should be."""
    if not trial.has_ended:
        told = f"did not end within {trial.seconds:.0f} s; look at it with: noetl why {trial.execution_id}"
        return Verdict(trial=trial, problems=(told,), differences=(), checksum="", committed=0, repeated=())
    accounts = _accounts(trial.histories)
    found = [
        Difference(where=f"{place} {one.where}".strip(), expected=one.expected, found=one.found)
        for place in sorted({*good.expected, *accounts})
        for one in _telling_first(differences(good.expected.get(place, {}), accounts.get(place, {})))
    ]
    made = _calls(trial.histories)
    problems = [*unsettled, *(f"committed more than once: {name}" for one in made for name in one.doubled)]
    if not good.effects_vary and trial.effects.applied != good.effects.applied:
        problems.append(f"effects: {dict(trial.effects.applied)} instead of {dict(good.effects.applied)}")
    return Verdict(
        trial=trial,
        problems=tuple(problems),
        differences=tuple(found),
        checksum=good.digest(accounts),
        committed=_committed(made),
        repeated=tuple(again for one in made for again in one.repeated),
    )


def _telling_first(found: Sequence[Difference]) -> list[Difference]:
    """How it ended, before everything that led there."""
    return sorted(found, key=lambda one: not one.where.startswith(f"{Surface.EXECUTION} "))


def _accounts(histories: Mapping[str, Sequence[StoredEvent]]) -> Accounts:
    return {place: account(events) for place, events in histories.items()}


def _calls(histories: Mapping[str, Sequence[StoredEvent]]) -> list[Calls]:
    return [calls([record(event) for event in events]) for events in histories.values()]


def _committed(made: Sequence[Calls]) -> int:
    return sum(one.committed for one in made)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
