"""The words of the language, section by section: what is read, what is not there yet, what is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

API_VERSION = "noetl.io/v2"
OLDER_API_VERSIONS = frozenset({"noetl.io/v10"})
DOCUMENT_KIND = "Playbook"

PROFILES = ("local", "distributed", "auto")
ARC_MODES = {"exclusive": "exclusive", "inclusive": "inclusive", "all": "inclusive"}
NO_MATCH = ("complete", "quiet")

TOOL_KINDS = frozenset(
    {
        *("agent", "artifact", "container", "duckdb", "ducklake", "http", "nats", "noop", "playbook", "postgres"),
        *("python", "script", "shell", "snowflake", "spark", "subscription", "transfer", "workbook"),
    }
)
"""Every tool that the language knows, whether or not this version can run it."""

CONTEXT_NAMES = frozenset(
    {
        *("ctx", "workload", "steps", "output", "event", "error", "result", "execution_id", "catalog_id", "job"),
        *("idempotency_key", "iter", "_index", "loop_index", "loop", "_prev", "_task", "_attempt", "results"),
        *("frame", "_frame_index", "_frame_row_index", "_worker_slot_id", "__frame_id", "__frame_max_rows"),
        *("__frame_policy", "__worker_slot_id", "fanin", "partitions", "keychain"),
    }
)
"""Names that templates have from the runtime; a step or variable of the same name is hard to tell from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The keys of one kind of map."""

    title: str
    keys: frozenset[str]
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Keys of the language that this version cannot run, with the name of the feature."""
    unsupported_unless_empty: Mapping[str, str] = field(default_factory=dict)
    """The same, for keys that ask for nothing while they are empty."""
    removed: Mapping[str, str] = field(default_factory=dict)
    """Keys that the language once had, with what to write instead."""
    ignored: frozenset[str] = frozenset()
    """Keys of older versions that never changed what a playbook does."""

    def known(self) -> frozenset[str]:
        """Everything that a misspelt key may have been meant to be."""
        return self.keys | self.unsupported.keys() | self.unsupported_unless_empty.keys()


_SET = {"set": "`set`"}
_OUTPUT = {"output": "`output`", "output_select": "`output_select`"}

ROOT = Section(
    title="a playbook",
    keys=frozenset({"apiVersion", "kind", "metadata", "workload", "executor", "workflow"}),
    unsupported_unless_empty={"keychain": "the keychain", "workbook": "the workbook"},
    removed={"vars": "put default variables into `workload`"},
    ignored=frozenset({"tracing", "spec"}),
)
EXECUTOR = Section(
    title="the executor", keys=frozenset({"profile", "spec"}), ignored=frozenset({"version", "requires"})
)
EXECUTOR_SPEC = Section(
    title="the executor's spec",
    keys=frozenset({"entry_step", "final_step", "no_next_is_error"}),
    unsupported={"timeout": "a timeout of the execution"},
    ignored=frozenset({"policy"}),
)
STEP = Section(
    title="a step",
    keys=frozenset({"step", "desc", "tool", "input", "args", "next", "spec"}),
    unsupported={
        "loop": "`loop`",
        "reduce": "`reduce`",
        "when": "`when` of a step (admission)",
    },
    unsupported_unless_empty={**_SET, **_OUTPUT},
    removed={
        "case": "use conditions on the arcs of `next`",
        "type": "use `tool.kind`",
        "set_ctx": "use `set` with targets `ctx.x`",
        "set_iter": "use `set` with targets `iter.x`",
        "result": "use `output`",
    },
)
STEP_SPEC = Section(
    title="a step's spec",
    keys=frozenset({"policy"}),
    unsupported={
        "timeout": "a timeout of the step",
        "loop_mode": "`loop_mode`",
        "fanout": "`fanout`",
    },
)
STEP_POLICY = Section(
    title="a step's policy",
    keys=frozenset({"failure"}),
    unsupported_unless_empty={"admit": "`admit`"},
    ignored=frozenset({"lifecycle", "emit"}),
)
FAILURE_POLICY = Section(title="a failure policy", keys=frozenset({"mode"}))
NEXT = Section(title="`next`", keys=frozenset({"spec", "arcs"}))
NEXT_SPEC = Section(title="the spec of `next`", keys=frozenset({"mode", "on_no_match"}))
ARC = Section(
    title="an arc",
    keys=frozenset({"step", "when"}),
    unsupported={"on": "`on` of an arc"},
    unsupported_unless_empty=_SET,
    removed={"args": "give the next step an `input`"},
    ignored=frozenset({"cond"}),
)
_TOOL_KEYS = frozenset({"kind", "name", "input", "args", "spec", "timeout"})
_TOOL_UNSUPPORTED = {"auth": "`auth`", "loop": "`loop` of a task"}
PYTHON = Section(
    title="a python tool",
    keys=_TOOL_KEYS | {"code", "code_b64", "libs"},
    unsupported={**_TOOL_UNSUPPORTED, "script": "`script` of a python tool"},
    unsupported_unless_empty={**_SET, **_OUTPUT},
    ignored=frozenset({"retry"}),
)
NOOP = Section(
    title="a noop tool",
    keys=_TOOL_KEYS | {"result"},
    unsupported=_TOOL_UNSUPPORTED,
    unsupported_unless_empty={**_SET, **_OUTPUT},
    ignored=frozenset({"retry"}),
)
TOOL_SPEC = Section(
    title="a tool's spec",
    keys=frozenset({"timeout", "policy"}),
    unsupported={"stream": "`stream`"},
)
TOOL_POLICY = Section(
    title="a tool's policy",
    keys=frozenset(),
    unsupported={"paginate": "`paginate`", "rate_limit": "`rate_limit`"},
    unsupported_unless_empty={"rules": "`rules` of a policy"},
)
