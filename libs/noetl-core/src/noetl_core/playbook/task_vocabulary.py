"""The words that every tool knows: input and output, rules, pages, limits, streams, the loop of a task."""

from __future__ import annotations

from noetl_core.playbook.sections import Key, Section, Templates
from noetl_core.playbook.shapes import (
    Anything,
    Below,
    Choice,
    Either,
    Flag,
    Items,
    Map,
    Name,
    Number,
    Shape,
    Template,
    Text,
    When,
)
from noetl_core.playbook.support import Feature
from noetl_core.playbook.task_model import Do, OutputScope, PageBy

SECONDS = Number(what="a number of seconds", above=0)
SECONDS_OR_TEMPLATE = Number(what="a number of seconds", above=0, or_template=True)
STORES = ("auto", "memory", "kv", "disk", "s3", "gcs", "azure")
"""Where results may be put; `auto` leaves it to the runtime."""

OLDER_STORES = {"object": "disk"}

MAX_IN_FLIGHT = 10_000


def positive_count(*, maximum: int | None = None) -> Number:
    """A whole number from 1, or the template of one."""
    return Number(what="a whole number", is_whole=True, minimum=1, maximum=maximum, or_template=True)


def rendered(shape: Shape, says: str, *, required: bool = False, is_older: bool = False) -> Key:
    """A key whose value is rendered before the call."""
    return Key(shape=shape, says=says, required=required, is_older=is_older, templates=Templates.RENDERED)


IN_FLIGHT = rendered(positive_count(maximum=MAX_IN_FLIGHT), "how many items run at once")
SET = Key(
    shape=Map(),
    says="assignments: ctx.x (or x) for the execution, iter.x for this item, step.x for this activation",
    templates=Templates.RENDERED,
    feature=Feature.SET,
    asks_nothing_if_empty=True,
)
AUTH = Key(
    shape=Either(Text(), Map()),
    templates=Templates.RENDERED,
    feature=Feature.CREDENTIALS,
    says="the name of a credential, {type, key}, or a map of aliases to names",
)
INPUT = rendered(Map(), "named values for the tool")
OLDER_INPUT = rendered(Map(), "another word for `input`", is_older=True)

SELECTED = Section(
    name="selected",
    title="a selected part",
    keys={
        "path": Key(shape=Text(), required=True, says="where it stands in the result"),
        "as": Key(shape=Name(), says="the name under which it can be read"),
    },
)
STORE = Section(
    name="store",
    title="`store`",
    keys={"kind": Key(shape=Choice(words=STORES, older=tuple(OLDER_STORES)), says="where the result is put")},
)
_SELECT = Items(Either(Below(SELECTED), Text()))
OUTPUT = Section(
    name="output",
    title="`output`",
    keys={
        "select": Key(shape=_SELECT, says="parts that can be read without loading the result"),
        "output_select": Key(shape=_SELECT, is_older=True, says="another word for `select`"),
        "store": Key(shape=Below(STORE)),
        "inline_max_bytes": Key(
            shape=Number(what="a whole number", is_whole=True, minimum=0),
            says="up to this size templates see plain data",
        ),
        "scope": Key(shape=Choice(words=tuple(OutputScope)), says="how long the result is kept"),
    },
)
OUTPUT_KEYS = {
    "output": Key(
        shape=Below(OUTPUT), feature=Feature.OUTPUT, asks_nothing_if_empty=True, says="how the result is kept"
    ),
    "output_select": Key(
        shape=_SELECT,
        feature=Feature.OUTPUT,
        asks_nothing_if_empty=True,
        is_older=True,
        says="another word for `output.select`",
    ),
}

_ACTION_KEYS = {
    "do": Key(shape=Choice(words=tuple(Do)), says="what becomes of the call"),
    "attempts": Key(
        shape=Number(what="a whole number", is_whole=True, minimum=1),
        says="retry: all runs, the first one included (3)",
    ),
    "delay": Key(shape=Number(what="a number of seconds", minimum=0), says="retry: seconds before the next run"),
    "backoff": Key(shape=Text(), says="retry: linear, exponential, or any word for the same delay each time"),
    "to": Key(shape=Text(), says="jump: the label of a task, or `previous`"),
    "set": SET,
}
ACTION = Section(
    name="action",
    title="`then` of a rule",
    keys=_ACTION_KEYS | {"do": Key(shape=Choice(words=tuple(Do)), required=True, says="what becomes of the call")},
)
ELSE = Section(
    name="else",
    title="`else` of a rule",
    keys={"then": Key(shape=Below(ACTION)), **_ACTION_KEYS},
)
RULE = Section(
    name="rule",
    title="a rule",
    keys={
        "when": Key(shape=When(), says="the rule applies if this holds"),
        "then": Key(shape=Below(ACTION)),
        "else": Key(shape=Below(ELSE), says="applies if no rule before it did"),
    },
)
PAGINATE = Section(
    name="paginate",
    title="`paginate`",
    is_strict=True,
    missing_code="tool_config",
    keys={
        "by": Key(shape=Choice(words=tuple(PageBy)), required=True, says="how the next page is asked for"),
        "param": rendered(Text(), "the parameter that says which page"),
        "items": rendered(Text(), "where the items stand in the body"),
        "next": rendered(Text(), "where the URL or cursor of the next page stands in the body"),
        "start": rendered(
            Number(what="a whole number", is_whole=True, minimum=0, or_template=True), "the first offset or page"
        ),
        "size": rendered(positive_count(), "items of a full page"),
        "size_param": rendered(Text(), "the parameter that says how many items"),
        "stop_when": Key(shape=When(), says="the last page is one for which this holds"),
        "max_pages": rendered(positive_count(), "more pages are an error (1000)"),
    },
)
_POSITIVE = Number(above=0, or_template=True)
RATE_LIMIT = Section(
    name="rate_limit",
    title="`rate_limit`",
    is_strict=True,
    keys={
        "rate": Key(shape=_POSITIVE, required=True, says="calls per `per_seconds`", templates=Templates.RENDERED),
        "per_seconds": rendered(SECONDS_OR_TEMPLATE, "the time for `rate` calls (1)"),
        "burst": rendered(_POSITIVE, "calls that may be made at once (`rate`)"),
        "key": rendered(Text(), "calls with the same key share the limit"),
    },
)
STREAM = Section(
    name="stream",
    title="`stream`",
    is_strict=True,
    keys={"chunk_rows": rendered(positive_count(), "rows of a chunk (1000)")},
)
TOOL_POLICY = Section(
    name="tool_policy",
    title="a tool's policy",
    keys={
        "rules": Key(
            shape=Items(Below(RULE)),
            feature=Feature.RULES,
            asks_nothing_if_empty=True,
            says="the first rule that matches says what becomes of the call",
        ),
        "paginate": Key(shape=Below(PAGINATE), feature=Feature.PAGINATE, says="http: ask for all pages"),
        "rate_limit": Key(shape=Below(RATE_LIMIT), feature=Feature.RATE_LIMIT, says="how often calls may be made"),
    },
)
TOOL_SPEC = Section(
    name="tool_spec",
    title="a tool's spec",
    keys={
        "timeout": rendered(SECONDS_OR_TEMPLATE, "seconds after which the call is stopped"),
        "policy": Key(shape=Below(TOOL_POLICY)),
        "stream": Key(shape=Below(STREAM), feature=Feature.STREAM, says="deliver rows in chunks"),
    },
)

TASK_LOOP_SPEC = Section(
    name="task_loop_spec",
    title="the spec of a task's loop",
    keys={
        "mode": Key(shape=Choice(words=("sequential", "parallel"))),
        "max_in_flight": IN_FLIGHT,
    },
)
IN = rendered(Anything(), "the list to go through, or the template of one")
ITERATOR = Key(shape=Name(is_identifier=True), says="the name of the item (item)")
TASK_LOOP = Section(
    name="task_loop",
    title="a task's loop",
    exactly_one=("in",),
    exactly_one_code="loop_source",
    keys={"in": IN, "iterator": ITERATOR, "spec": Key(shape=Below(TASK_LOOP_SPEC))},
)

COMMON_KEYS = {
    "kind": Key(shape=Name(), required=True, says="which tool it is"),
    "name": Key(shape=Name(), says="the label by which later tasks know it"),
    "input": INPUT,
    "args": OLDER_INPUT,
    "auth": AUTH,
    "set": SET,
    **OUTPUT_KEYS,
    "spec": Key(shape=Below(TOOL_SPEC)),
    "timeout": rendered(SECONDS_OR_TEMPLATE, "seconds after which the call is stopped"),
    "loop": Key(shape=Below(TASK_LOOP), feature=Feature.TASK_LOOP, says="pipelines: run the task for each item"),
}
FLAG = Flag(or_template=True)
MAP = Either(Map(), Template())
