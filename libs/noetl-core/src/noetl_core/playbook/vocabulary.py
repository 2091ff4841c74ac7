"""The words of the language, section by section, from the document down to the arcs of a step."""

from __future__ import annotations

from noetl_core.playbook.keychain_vocabulary import KEYCHAIN_ENTRY
from noetl_core.playbook.kinds import TOOL
from noetl_core.playbook.loop_vocabulary import LOOP, REDUCE, RETRIES
from noetl_core.playbook.sections import Key, Section, Templates
from noetl_core.playbook.shapes import Anything, Below, Choice, Either, Flag, Items, Map, Name, Text, When
from noetl_core.playbook.support import Feature
from noetl_core.playbook.task_vocabulary import INPUT, OLDER_INPUT, OUTPUT_KEYS, SECONDS_OR_TEMPLATE, SET

API_VERSION = "noetl.io/v2"
OLDER_API_VERSIONS = frozenset({"noetl.io/v10"})
DOCUMENT_KIND = "Playbook"

ARC_MODES = {"exclusive": "exclusive", "inclusive": "inclusive", "all": "inclusive"}

ARC = Section(
    name="arc",
    title="an arc",
    keys={
        "step": Key(shape=Name(), required=True, says="the step that it leads to"),
        "when": Key(shape=When(), says="taken if this holds; without it, always"),
        "set": SET,
        "on": Key(
            shape=Choice(words=("call.partial",)),
            feature=Feature.ARCS_ON_PARTIAL,
            says="call.partial: taken for each chunk of a stream",
        ),
    },
    removed={"args": "give the next step an `input`"},
    ignored=frozenset({"cond"}),
)
NEXT_SPEC = Section(
    name="next_spec",
    title="the spec of `next`",
    keys={
        "mode": Key(shape=Choice(words=tuple(ARC_MODES)), says="take the first arc that holds, or all of them"),
        "on_no_match": Key(shape=Choice(words=("complete", "quiet")), says="how the branch ends without an arc"),
    },
)
_ARCS = Items(Either(Below(ARC), Text()))
NEXT = Section(
    name="next",
    title="`next`",
    keys={
        "spec": Key(shape=Below(NEXT_SPEC)),
        "arcs": Key(shape=_ARCS, says="where the step leads, in this order"),
    },
)

ADMIT_ACTION = Section(
    name="admit_action",
    title="`then` of an admission rule",
    keys={"allow": Key(shape=Flag(), required=True, says="whether the step may start")},
)
ADMIT_ELSE = Section(
    name="admit_else",
    title="`else` of an admission rule",
    keys={"then": Key(shape=Below(ADMIT_ACTION)), "allow": Key(shape=Flag(), is_older=True)},
)
ADMIT_RULE = Section(
    name="admit_rule",
    title="an admission rule",
    keys={
        "when": Key(shape=When(), says="the rule decides if this holds"),
        "then": Key(shape=Below(ADMIT_ACTION)),
        "else": Key(shape=Below(ADMIT_ELSE), says="decides if no rule before it did"),
    },
)
ADMIT = Section(
    name="admit",
    title="`admit`",
    keys={"rules": Key(shape=Items(Below(ADMIT_RULE)), says="the first that matches decides; if none does, it starts")},
)
FAILURE_POLICY = Section(
    name="failure_policy",
    title="a failure policy",
    keys={
        "mode": Key(
            shape=Choice(words=("best_effort", "fail_fast")),
            says="after an unhandled failure other branches go on, or the execution ends",
        )
    },
)
STEP_POLICY = Section(
    name="step_policy",
    title="a step's policy",
    keys={
        "failure": Key(shape=Below(FAILURE_POLICY)),
        "admit": Key(
            shape=Below(ADMIT), feature=Feature.ADMIT, asks_nothing_if_empty=True, says="whether the step may start"
        ),
    },
    ignored=frozenset({"lifecycle", "emit"}),
)
FANOUT = Section(
    name="fanout",
    title="`fanout`",
    keys={"max_shard_retries": Key(shape=RETRIES, says="another word for `max_item_retries` of a loop")},
)
STEP_SPEC = Section(
    name="step_spec",
    title="a step's spec",
    keys={
        "timeout": Key(
            shape=SECONDS_OR_TEMPLATE,
            feature=Feature.STEP_TIMEOUT,
            templates=Templates.RENDERED,
            says="seconds for the whole activation",
        ),
        "policy": Key(shape=Below(STEP_POLICY)),
        "loop_mode": Key(shape=Choice(words=("sequential", "parallel", "fanout")), is_older=True),
        "fanout": Key(shape=Below(FANOUT), is_older=True),
    },
)
STEP = Section(
    name="step",
    title="a step",
    keys={
        "step": Key(shape=Name(), required=True, says="the name of the step"),
        "desc": Key(shape=Text(), says="what it is for"),
        "tool": Key(
            shape=Either(Below(TOOL), Items(Either(Below(TOOL), Map(Below(TOOL))))),
            says="what runs here: one tool, or a list of them in order",
        ),
        "input": INPUT,
        "args": OLDER_INPUT,
        "loop": Key(shape=Below(LOOP), says="run the tools for each item"),
        "reduce": Key(shape=Below(REDUCE), feature=Feature.REDUCE, says="run over the output of other steps"),
        "set": SET,
        **OUTPUT_KEYS,
        "next": Key(shape=Either(Below(NEXT), _ARCS, Name()), says="where the step leads"),
        "spec": Key(shape=Below(STEP_SPEC)),
        "when": Key(shape=When(), feature=Feature.ADMIT, is_older=True, says="another way to write `admit`"),
    },
    removed={
        "case": "use conditions on the arcs of `next`",
        "type": "use `tool.kind`",
        "set_ctx": "use `set` with targets `ctx.x`",
        "set_iter": "use `set` with targets `iter.x`",
        "result": "use `output`",
    },
)
WORKBOOK_TASK = Section(
    name="workbook_task",
    title="a task of the workbook",
    keys={
        "name": Key(shape=Name(), required=True, says="the name by which steps call it"),
        "desc": Key(shape=Text(), says="what it is for"),
        "tool": Key(shape=Below(TOOL), required=True, says="what runs"),
    },
)
EXECUTOR_SPEC = Section(
    name="executor_spec",
    title="the executor's spec",
    keys={
        "entry_step": Key(shape=Name(), says="where the workflow starts (the first step)"),
        "final_step": Key(shape=Name(), says="runs once when everything else has ended"),
        "no_next_is_error": Key(shape=Flag(), says="a step whose arcs all do not hold has failed"),
        "timeout": Key(
            shape=SECONDS_OR_TEMPLATE,
            feature=Feature.EXECUTOR_TIMEOUT,
            templates=Templates.RENDERED,
            says="seconds for the whole execution",
        ),
    },
    ignored=frozenset({"policy"}),
)
EXECUTOR = Section(
    name="executor",
    title="the executor",
    keys={
        "profile": Key(shape=Choice(words=("local", "distributed", "auto")), says="where the playbook runs"),
        "spec": Key(shape=Below(EXECUTOR_SPEC)),
    },
    ignored=frozenset({"version", "requires"}),
)
METADATA = Section(
    name="metadata",
    title="the metadata",
    other=Key(shape=Anything()),
    keys={
        "name": Key(shape=Name(), required=True, says="the name of the playbook"),
        "path": Key(shape=Name(), says="its key in the catalog (the name)"),
    },
)
ROOT = Section(
    name="playbook",
    title="a playbook",
    keys={
        "apiVersion": Key(shape=Name(), required=True, says=API_VERSION),
        "kind": Key(shape=Name(), required=True, says=DOCUMENT_KIND),
        "metadata": Key(shape=Below(METADATA), required=True),
        # Only warned about, since a variable that cannot be rendered stays as it is written.
        "workload": Key(shape=Map(), templates=Templates.OR_AS_WRITTEN, says="default variables"),
        "executor": Key(shape=Below(EXECUTOR)),
        "keychain": Key(
            shape=Items(Below(KEYCHAIN_ENTRY)),
            feature=Feature.KEYCHAIN,
            asks_nothing_if_empty=True,
            says="secrets under the names by which tools know them",
        ),
        "workbook": Key(
            shape=Items(Below(WORKBOOK_TASK)),
            feature=Feature.WORKBOOK,
            asks_nothing_if_empty=True,
            says="tasks that steps call by name",
        ),
        "workflow": Key(shape=Items(Below(STEP)), required=True, says="the steps"),
    },
    removed={"vars": "put default variables into `workload`"},
    ignored=frozenset({"tracing", "spec"}),
)
