"""Read lists of rules: what becomes of a call, and whether a step may start."""

from __future__ import annotations

from collections.abc import Iterator

from noetl_core.playbook.assignments import read_set
from noetl_core.playbook.fields import Fields
from noetl_core.playbook.model import AdmitRule
from noetl_core.playbook.sections import Section
from noetl_core.playbook.source import Path
from noetl_core.playbook.task_model import Action, Condition, Do, Rule
from noetl_core.playbook.task_vocabulary import RULE
from noetl_core.playbook.vocabulary import ADMIT_RULE

_DEFAULT_DELAY = 1.0


def read_rules(policy: Fields) -> tuple[tuple[Rule, Path], ...]:
    """What becomes of a call, and where the action stands; labels that jumps lead to are not looked up here."""
    found: list[tuple[Rule, Path]] = []
    for when, then in _rules(policy, RULE):
        action = _read_action(then)
        if action is not None:
            found.append((Rule(when=when, then=action), then.path))
    return tuple(found)


def read_admit(policy: Fields) -> tuple[AdmitRule, ...]:
    """Whether a step may start; the first rule that matches decides."""
    admit = policy.below("admit")
    if admit is None:
        return ()
    found: list[AdmitRule] = []
    for when, then in _rules(admit, ADMIT_RULE):
        allow = then.flag("allow")
        if allow is not None:
            found.append(AdmitRule(when=when, allow=allow))
        elif "allow" not in then.written and not then.section.keys["allow"].required:
            then.missing("allow")
    return tuple(found)


def _rules(fields: Fields, section: Section) -> Iterator[tuple[Condition, Fields]]:
    """Conditions with what follows from them; `else` is the condition that always holds."""
    members = fields.items("rules")
    for index, (path, value) in enumerate(members):
        rule = Fields.read(value, path, fields.findings, section)
        if rule is None or not isinstance(value, dict):
            continue
        if "else" in value:
            if index < len(members) - 1:
                rule.invalid("else", "must stand in the last rule: rules after it are never reached")
            then = _otherwise(rule)
            if then is not None:
                yield True, then
            continue
        if "when" not in rule.written:
            rule.missing("when")
        then = _then(rule)
        if then is not None:
            yield rule.condition("when"), then


def _otherwise(rule: Fields) -> Fields | None:
    """`else: {then: …}`; older playbooks have the action in `else` itself, or beside it."""
    if "when" in rule.written:
        rule.invalid("when", "and 'else' exclude each other")
    inside = rule.below("else")
    if inside is not None and "then" in inside.written:
        return inside.below("then")
    if inside is not None and inside.written:
        return inside
    return _then(rule) if "else" not in rule.written or inside is not None else None


def _then(rule: Fields) -> Fields | None:
    if "then" not in rule.written:
        rule.missing("then")
    return rule.below("then")


def _read_action(fields: Fields) -> Action | None:
    do = fields.text("do")
    if do is None:
        if "do" not in fields.written and not fields.section.keys["do"].required:
            fields.missing("do")
        return None
    if do == Do.JUMP and "to" not in fields.written:
        fields.missing("to", why=" for a jump")
    backoff, delay, attempts = fields.text("backoff"), fields.number("delay"), fields.whole("attempts")
    if delay is None:
        delay = 0.0 if backoff is None else _DEFAULT_DELAY
    return Action(
        do=Do(do),
        attempts=3 if attempts is None else attempts,
        delay_seconds=delay,
        backoff=backoff,
        to=fields.text("to"),
        set=read_set(fields),
    )
