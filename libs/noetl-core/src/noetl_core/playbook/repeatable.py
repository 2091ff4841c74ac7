"""Refuse in control expressions what would not give the same value twice: the planner's decisions are repeated."""

from __future__ import annotations

from collections.abc import Mapping

from jinja2 import TemplateSyntaxError, nodes

from noetl_core.playbook.control import control_texts
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.model import Step
from noetl_core.playbook.source import Path
from noetl_core.playbook.syntax import descendants, parse_condition

_SHOWN_CHARACTERS = 100


def check_repeatable(steps: Mapping[str, Step], paths: Mapping[str, Path], findings: Findings) -> None:
    """§6.6: there is no `random` in what the planner evaluates; in what workers render there is."""
    for name, step in steps.items():
        for key, text in control_texts(step):
            if "random" in text and _uses_chance(text):
                message = f"`random` cannot be used in a control expression: {text.strip()[:_SHOWN_CHARACTERS]}"
                suggestion = "choose in a task, and read its result"
                findings.error("template_syntax", message, (*paths[name], key), suggestion=suggestion)


def _uses_chance(text: str) -> bool:
    try:
        tree = parse_condition(text)
    except TemplateSyntaxError:
        return False  # reported where it was read, or no template at all
    return any(isinstance(node, nodes.Filter) and node.name == "random" for node in descendants(tree))
