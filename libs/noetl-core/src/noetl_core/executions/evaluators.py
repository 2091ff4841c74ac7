"""Who computes the values of control expressions: the planner here and now, a worker, or a worker's earlier answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.expressions import TemplateFailed, ValueWithheld

MAX_VALUE_BYTES = 8 * 1024
"""What an event carries; larger values are computed by workers, which can store them."""
_MAX_REASON_CHARACTERS = 500
_MAX_EXPRESSION_CHARACTERS = 250

Computed = TypeVar("Computed")


class NeedsEvaluation(Exception):
    """An expression reads, or gives, more than events carry: a worker must evaluate it and all that go with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A value that a worker has stored because events cannot carry it; `count` is the length of a list or map."""

    ref: PayloadRef
    type: str
    count: int | None = None


class EvaluationFailed(TemplateFailed):
    """The values could not be had at all, for a reason that is not the expression's."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message") or "the expressions could not be evaluated"), expression="")
        self.code = str(error.get("code") or TemplateFailed.code)  # type: ignore[misc]  # told by whoever tried
        self.kind = str(error.get("kind") or "unknown")
        self.message = self.reason


class Evaluator(Protocol):
    """Gives each expression its value, by the place where it stands: `set/0`, `arcs/1/when`.

    The functions that walk through expressions call it for every one, in the same order on planner and worker, so
    that a worker's answers can take the place of the computations. Each method may raise `TemplateFailed`.
    """

    def condition(self, place: str, compute: Callable[[], bool]) -> bool:
        """Whether a condition holds."""
        ...

    def value(self, place: str, compute: Callable[[], JsonValue]) -> JsonValue | Stored:
        """A value that is told in an event."""
        ...

    def between(self, place: str, compute: Callable[[], JsonValue]) -> JsonValue:
        """A value that only later expressions of the same walk read: nobody else is told."""
        ...


class Locally:
    """The planner, on event contexts: raises `NeedsEvaluation` where these are not enough."""

    def condition(self, place: str, compute: Callable[[], bool]) -> bool:
        try:
            return compute()
        except ValueWithheld as exc:
            raise NeedsEvaluation(place) from exc

    def value(self, place: str, compute: Callable[[], JsonValue]) -> JsonValue | Stored:
        value = self.between(place, compute)
        if len(encode(value)) > MAX_VALUE_BYTES:
            raise NeedsEvaluation(place)
        return value

    def between(self, place: str, compute: Callable[[], JsonValue]) -> JsonValue:
        try:
            return compute()
        except ValueWithheld as exc:
            raise NeedsEvaluation(place) from exc


LOCALLY = Locally()


@dataclass(slots=True)
class Recording:
    """A worker: computes with all data, and notes what it found; `NeedsEvaluation` means that some is not loaded."""

    values: dict[str, JsonValue] = field(default_factory=dict)
    failures: dict[str, TemplateFailed] = field(default_factory=dict)

    def condition(self, place: str, compute: Callable[[], bool]) -> bool:
        self.values[place] = holds = self._computed(place, compute)
        return holds

    def value(self, place: str, compute: Callable[[], JsonValue]) -> JsonValue | Stored:
        self.values[place] = value = self._computed(place, compute)
        return value

    def between(self, place: str, compute: Callable[[], JsonValue]) -> JsonValue:
        return self._computed(place, compute)

    def _computed(self, place: str, compute: Callable[[], Computed]) -> Computed:
        try:
            return compute()
        except ValueWithheld as exc:
            raise NeedsEvaluation(place) from exc
        except TemplateFailed as exc:
            self.failures[place] = exc
            raise

    def told(self, stored: Mapping[str, PayloadRef]) -> JsonObject:
        """The answers as an event carries them; values that were stored are told by reference."""
        answers: JsonObject = {}
        for place, value in self.values.items():
            ref = stored.get(place)
            answers[place] = {"is": value} if ref is None else _by_reference(ref, value)
        for place, failure in self.failures.items():
            answers[place] = {
                "failed": failure.reason[:_MAX_REASON_CHARACTERS],
                "expression": failure.expression.strip()[:_MAX_EXPRESSION_CHARACTERS],
                **({"path": failure.path[:_MAX_EXPRESSION_CHARACTERS]} if failure.path else {}),
            }
        return answers


@dataclass(frozen=True, slots=True)
class Answered:
    """A worker's answers: nothing is computed any more."""

    answers: Mapping[str, Any]

    def condition(self, place: str, compute: Callable[[], bool]) -> bool:
        return self.value(place, compute) is True

    def value(self, place: str, compute: Callable[[], JsonValue]) -> JsonValue | Stored:
        self.between(place, compute)
        answer = self.answers.get(place)
        if answer is None:
            raise TemplateFailed("its value was not computed", expression=place)
        if "ref" in answer:
            return Stored(ref=PayloadRef.from_json(answer["ref"]), type=answer["type"], count=answer.get("count"))
        value: JsonValue = answer["is"]
        return value

    def between(self, place: str, compute: Callable[[], JsonValue]) -> JsonValue:
        answer = self.answers.get(place) or {}
        if "failed" in answer:
            raise TemplateFailed(answer["failed"], expression=answer["expression"], path=answer.get("path", ""))
        return None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No worker could answer: that is the failure, and what handles it is tried on event contexts alone."""

    error: Mapping[str, Any]

    def condition(self, place: str, compute: Callable[[], bool]) -> bool:
        return self._handling(place, compute)

    def value(self, place: str, compute: Callable[[], JsonValue]) -> JsonValue | Stored:
        return self._handling(place, compute)

    def between(self, place: str, compute: Callable[[], JsonValue]) -> JsonValue:
        return self._handling(place, compute)

    def _handling(self, place: str, compute: Callable[[], Computed]) -> Computed:
        if not place.startswith(HANDLING):
            raise EvaluationFailed(self.error)
        return compute()


HANDLING = "error/"
"""How places begin that are evaluated only after the step has failed."""


def _by_reference(ref: PayloadRef, value: JsonValue) -> JsonObject:
    answer: JsonObject = {"ref": ref.to_json(), "type": _type_name(value)}
    if isinstance(value, list | dict):
        answer["count"] = len(value)
    return answer


def _type_name(value: JsonValue) -> str:
    match value:
        case list():
            return "list"
        case dict():
            return "map"
        case str():
            return "text"
        case _:
            return "scalar"
