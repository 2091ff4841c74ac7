"""What an event tells about a result: where it is, and the few scalars that routing needs; never the result."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, final

from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_core.errors import InvalidInput
from noetl_core.playbook.call_facts import FACTS
from noetl_core.playbook.outputs import PLAINLY_KEPT, Kept
from noetl_core.playbook.selection import ResultPath, parse_pointer, select_scalars

from noetl_worker.application.credential_names import is_credential_name
from noetl_worker.application.outcome import Outcome, OutcomeError
from noetl_worker.application.table_facts import table_facts

MAX_CONTEXT_BYTES = 8 * 1024
MAX_MESSAGE_BYTES = 1024
MAX_FACTS_BYTES = 2 * 1024
MAX_CODE_CHARACTERS = 128
PG_NAMES = ("sqlstate", "constraint", "schema", "table", "column")


class ContextTooLarge(InvalidInput):
    """The conditions of the playbook read more places of this result than an event may list."""

    code = "CONTROL_CONTEXT_TOO_LARGE"


class Proof:
    """Shows that what a result refers to is stored: `persist_before_emit` has one, and nobody else."""

    __slots__ = ()


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventResult(Mapping[str, JsonValue]):
    """The `result` of an event, and nothing but its four fields; what it refers to is durable, if it refers to any."""

    status: Literal["ok", "error", "break"]
    reference: JsonObject | None
    parent_ref: JsonObject | None
    context: JsonObject
    proof: Proof = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.proof, Proof):
            raise TypeError("a result is told by who has stored it")

    def __getitem__(self, key: str) -> JsonValue:
        return self.to_json()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_json())

    def __len__(self) -> int:
        return len(self.to_json())

    def telling(self, more: JsonObject) -> EventResult:
        """The same with more facts about the call."""
        return replace(self, context={**self.context, **more})

    def broken_off(self) -> EventResult:
        """The same of a pipeline that a rule has ended well."""
        return replace(self, status="break") if self.status == "ok" else self

    @property
    def ref_id(self) -> str | None:
        """What the next task of a pipeline names as its parent."""
        return None if self.reference is None else str(self.reference["ref_id"])

    def to_json(self) -> JsonObject:
        """The form that events carry."""
        return {
            "status": self.status,
            "reference": self.reference,
            "parent_ref": self.parent_ref,
            "context": self.context,
        }


def describe(
    outcome: Outcome,
    *,
    size_bytes: int,
    control_paths: Collection[ResultPath],
    fact_paths: Collection[ResultPath] = (),
    seen: object = None,
    kept: Kept = PLAINLY_KEPT,
) -> JsonObject:
    """The context of a result: facts about the call, the scalars at these paths, the error in short.

    `seen` is the result as templates see it, if that is another than the plain one. What the playbook selects besides
    what conditions read is told as far as there is room: who reads it elsewhere has the result.
    """
    context: JsonObject = {
        "size_bytes": size_bytes,
        "attempts": outcome.meta.attempt,
        "duration_ms": outcome.meta.duration_ms,
        **table_facts(outcome.data),
    }
    if outcome.error is not None:
        context["error"] = _in_short(outcome.error)
    context |= _facts(outcome) | _facts_read(outcome, fact_paths)
    shown = outcome.result() if seen is None else seen
    selected, unselected = select_scalars(shown, control_paths)
    withheld = {*unselected, *(place for place, value in selected.items() if _is_secret(place, value, kept))}
    by_size = sorted((len(encode([value])), place) for place, value in selected.items() if place not in withheld)
    while True:
        chosen = {place: selected[place] for _, place in by_size}
        described = _with_selection(context, chosen, withheld)
        if len(encode(described)) <= MAX_CONTEXT_BYTES:
            return _with_more(described, select_scalars(shown, kept.paths)[0], kept) if kept.selections else described
        if not by_size:
            raise ContextTooLarge(f"conditions read {len(withheld)} places of the result, too many to list")
        withheld.add(by_size.pop()[1])  # the largest first: a reader learns that it must be fetched


def _with_selection(context: JsonObject, chosen: JsonObject, withheld: Collection[str]) -> JsonObject:
    described = dict(context)
    if chosen:
        described["select"] = chosen
    if withheld:
        described["unselected"] = [*sorted(withheld)]
    return described


def _with_more(described: JsonObject, more: JsonObject, kept: Kept) -> JsonObject:
    told = described.get("select")
    chosen: JsonObject = dict(told) if isinstance(told, dict) else {}
    left = MAX_CONTEXT_BYTES - len(encode({**described, "select": chosen}))
    withheld = described.get("unselected") or ()
    for place, value in sorted(more.items()):
        size = len(encode({place: value}))
        if place not in chosen and place not in (withheld if isinstance(withheld, list) else ()):
            left -= size
            if left >= 0 and not _is_secret(place, value, kept):
                chosen[place] = value
    return {**described, "select": chosen} if chosen else described


def _is_secret(place: str, value: JsonValue, kept: Kept) -> bool:
    """Only text can be a secret, whatever name it is given: that there is a token, or how many, may be known."""
    if not isinstance(value, str):
        return False
    path = parse_pointer(place)
    named = kept.names.get(path[0]) if path else None
    return any(map(is_credential_name, (*path, *(named.path if named else ()))))


def _facts(outcome: Outcome) -> JsonObject:
    """What arcs see as `output.http` and `output.pg`: numbers and names, and nothing that a row or a header says."""
    facts: JsonObject = {}
    if outcome.http is not None and isinstance(outcome.http.get("status"), int):
        facts["http"] = {"status": outcome.http["status"]}
    if outcome.pg is not None:
        named = {name: outcome.pg[name] for name in PG_NAMES if name in outcome.pg}
        facts["pg"] = {name: value for name, value in named.items() if len(str(value)) <= MAX_CODE_CHARACTERS}
    return facts


def facts_of(outcome: Outcome) -> JsonObject:
    """What is known about the call besides its result, for control expressions that read more than events tell."""
    kept = {"pg": outcome.pg, "py": outcome.py}
    return {kind: dict(facts) for kind, facts in kept.items() if facts is not None}


def has_unread_facts(context: JsonObject) -> bool:
    """Whether control expressions read facts that this context is too small for."""
    facts = context.get(FACTS)
    return isinstance(facts, dict) and "unselected" in facts


def _facts_read(outcome: Outcome, paths: Collection[ResultPath]) -> JsonObject:
    selected, unselected = select_scalars(facts_of(outcome), paths) if paths else ({}, ())
    while selected and len(encode(selected)) > MAX_FACTS_BYTES:
        largest = max(selected, key=lambda place: len(encode([selected[place]])))
        del selected[largest]
        unselected = (*unselected, largest)
    told: JsonObject = {"select": selected} if selected else {}
    if unselected:
        told["unselected"] = [*sorted(unselected)]
    return {FACTS: told} if told else {}


def _in_short(error: OutcomeError) -> JsonObject:
    cut = error.message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    return {
        **error.to_json(),
        "code": error.code[:MAX_CODE_CHARACTERS],
        "message": cut,
    }
