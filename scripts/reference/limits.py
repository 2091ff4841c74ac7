"""What the language bounds, from the constants that bound it."""

from __future__ import annotations

from noetl_core.children.state import MAX_DEPTH
from noetl_core.executions.router import MAX_ACTIVATIONS
from noetl_core.loops.collection import MAX_ITEMS
from noetl_core.playbook.expressions import MAX_CONFIG_CHARACTERS, MAX_TEXT_CHARACTERS, MAX_TURNS
from noetl_core.playbook.metering import MAX_WORK_PER_TEXT
from noetl_core.playbook.outputs import INLINE_MAX_BYTES
from noetl_core.playbook.sandbox import MAX_RANGE
from noetl_core.playbook.source import MAX_BYTES
from noetl_core.playbook.syntax import MAX_TEMPLATE_CHARACTERS
from noetl_worker.application.pipeline import MAX_TASK_RUNS

from scripts.reference.markdown import table

_TEMPLATE = "in tool config the outcome `TEMPLATE_ERROR` (transform), elsewhere `template.error`; both name the place"


def limits() -> str:
    """A section of the language's page."""
    rows = [
        ("a document", f"{MAX_BYTES:,} bytes", "refused at registration, `playbook.too_large`"),
        ("one text with templates", f"{MAX_TEMPLATE_CHARACTERS:,} characters", "refused, `playbook.template_syntax`"),
        (
            "text that one template of tool config makes (SQL, code, bodies, inputs); values that are handed on "
            "whole, as by `{{ rows }}`, are not text",
            f"{MAX_CONFIG_CHARACTERS:,} characters",
            "the outcome `TEMPLATE_ERROR` (transform), which names the place",
        ),
        ("text that any other template makes", f"{MAX_TEXT_CHARACTERS:,} characters", _TEMPLATE),
        (
            "work of one template: characters and list items",
            f"{MAX_WORK_PER_TEXT} times the text that it may make",
            _TEMPLATE,
        ),
        ("turns of the loops in one template", f"{MAX_TURNS:,}", _TEMPLATE),
        ("`range()`", f"{MAX_RANGE:,} numbers", _TEMPLATE),
        ("items of a loop over a value", f"{MAX_ITEMS:,}", "`loop.invalid_collection`"),
        ("task runs of a pipeline", f"{MAX_TASK_RUNS:,}", "`pipeline.iteration_cap`"),
        ("activations of a step", f"{MAX_ACTIVATIONS:,}", "`execution.visit_cap`"),
        ("executions above another", str(MAX_DEPTH), "`PLAYBOOK_DEPTH`"),
        (
            "results that templates see as plain data",
            f"{INLINE_MAX_BYTES:,} bytes (`inline_max_bytes`)",
            "above, a compact view; other fields load when they are read",
        ),
    ]
    return "## Limits\n\n" + table(("what", "at most", "above"), rows)
