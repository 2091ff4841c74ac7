"""What this release can run of the language: the one table in which a feature is switched on."""

from __future__ import annotations

from collections.abc import Collection, Container
from enum import StrEnum
from typing import Final

from noetl_core.playbook.task_model import ToolKind


class Feature(StrEnum):
    """A part of the language that a playbook may ask for."""

    PIPELINES = "pipelines"
    RULES = "rules"
    PAGINATE = "paginate"
    RATE_LIMIT = "rate_limit"
    STREAM = "stream"
    SET = "set"
    OUTPUT = "output"
    ADMIT = "admit"
    LOOP_SEQUENTIAL = "loop.sequential"
    LOOP_PARALLEL = "loop.parallel"
    LOOP_FANOUT = "loop.fanout"
    FANOUT_FRAME = "fanout.frame"
    FANOUT_KEY = "fanout.key"
    LOOP_CURSOR = "loop.cursor"
    LOOP_FRAME = "loop.frame"
    FRAME_BISECT = "frame.bisect"
    LOOP_SPARK = "loop.spark"
    TASK_LOOP = "task.loop"
    REDUCE = "reduce"
    ARCS_ON_PARTIAL = "arcs.on_partial"
    STEP_TIMEOUT = "step.timeout"
    EXECUTOR_TIMEOUT = "executor.timeout"
    TIMEOUT_TEMPLATE = "timeout.template"
    KEYCHAIN = "keychain"
    CREDENTIALS = "credentials"
    WORKBOOK = "workbook"
    SCRIPT = "script"
    SCRIPT_JOB = "script.job"
    CODE_B64_TEMPLATE = "code_b64.template"


TITLES: Final[dict[Feature, str]] = {
    Feature.PIPELINES: "a pipeline (a list of tools)",
    Feature.RULES: "`rules` of a policy",
    Feature.PAGINATE: "`paginate`",
    Feature.RATE_LIMIT: "`rate_limit`",
    Feature.STREAM: "`stream`",
    Feature.SET: "`set`",
    Feature.OUTPUT: "`output`",
    Feature.ADMIT: "`admit` (admission)",
    Feature.LOOP_SEQUENTIAL: "`loop`",
    Feature.LOOP_PARALLEL: "a parallel `loop`",
    Feature.LOOP_FANOUT: "a `loop` with fan-out",
    Feature.FANOUT_FRAME: "`frame` of a fan-out",
    Feature.FANOUT_KEY: "`key` of a fan-out",
    Feature.LOOP_CURSOR: "a `loop` over a cursor",
    Feature.LOOP_FRAME: "`frame` of a loop",
    Feature.FRAME_BISECT: "`on_failure: bisect` of a frame",
    Feature.LOOP_SPARK: "`engine: spark` of a loop",
    Feature.TASK_LOOP: "`loop` of a task",
    Feature.REDUCE: "`reduce`",
    Feature.ARCS_ON_PARTIAL: "`on` of an arc",
    Feature.STEP_TIMEOUT: "a timeout of the step",
    Feature.EXECUTOR_TIMEOUT: "a timeout of the execution",
    Feature.TIMEOUT_TEMPLATE: "a template as timeout",
    Feature.KEYCHAIN: "the keychain",
    Feature.CREDENTIALS: "`auth`",
    Feature.WORKBOOK: "the workbook",
    Feature.SCRIPT: "`script`",
    Feature.SCRIPT_JOB: "a script as a Kubernetes Job (which only a plug-in can run)",
    Feature.CODE_B64_TEMPLATE: "a template in `code_b64`",
}
"""How each is called where it is refused."""


def tool(kind: str) -> str:
    """The feature that a tool kind is; a plug-in adds its own kinds to what is supported by this name."""
    return f"tool.{kind}"


PLUGIN_KINDS: Final = frozenset(
    {
        ToolKind.AGENT,
        ToolKind.CONTAINER,
        ToolKind.DUCKLAKE,
        ToolKind.SCRIPT,
        ToolKind.SNOWFLAKE,
        ToolKind.SUBSCRIPTION,
    }
)
"""Kinds that need something which not every installation has; a plug-in can provide them."""

RELEASE: Final[frozenset[str]] = frozenset(
    {
        Feature.ADMIT,
        Feature.ARCS_ON_PARTIAL,
        Feature.CODE_B64_TEMPLATE,
        Feature.CREDENTIALS,
        Feature.EXECUTOR_TIMEOUT,
        Feature.FANOUT_FRAME,
        Feature.FANOUT_KEY,
        Feature.FRAME_BISECT,
        Feature.KEYCHAIN,
        Feature.LOOP_CURSOR,
        Feature.LOOP_FANOUT,
        Feature.LOOP_FRAME,
        Feature.LOOP_PARALLEL,
        Feature.LOOP_SEQUENTIAL,
        Feature.LOOP_SPARK,
        Feature.OUTPUT,
        Feature.PAGINATE,
        Feature.PIPELINES,
        Feature.RATE_LIMIT,
        Feature.REDUCE,
        Feature.RULES,
        Feature.SCRIPT,
        Feature.SET,
        Feature.STREAM,
        Feature.STEP_TIMEOUT,
        Feature.TIMEOUT_TEMPLATE,
        Feature.TASK_LOOP,
        Feature.WORKBOOK,
        tool(ToolKind.ARTIFACT),
        tool(ToolKind.DUCKDB),
        tool(ToolKind.HTTP),
        tool(ToolKind.NATS),
        tool(ToolKind.NOOP),
        tool(ToolKind.PLAYBOOK),
        tool(ToolKind.POSTGRES),
        tool(ToolKind.PYTHON),
        tool(ToolKind.SCRIPT),
        tool(ToolKind.SHELL),
        tool(ToolKind.SPARK),
        tool(ToolKind.TRANSFER),
        tool(ToolKind.WORKBOOK),
    }
)
"""What this release runs. Whoever makes a feature work adds it here, and playbooks that ask for it are accepted."""


def release_with(plugin_kinds: Collection[str]) -> frozenset[str]:
    """What an installation runs whose workers have plug-ins for these kinds, which may take over known ones."""
    jobs = {Feature.SCRIPT_JOB} if ToolKind.SCRIPT in plugin_kinds else set()
    return RELEASE | {tool(kind) for kind in plugin_kinds} | jobs


EVERYTHING: Final[frozenset[str]] = frozenset({*Feature, *(tool(kind) for kind in ToolKind)})
"""The whole language."""


class _Anything(Container[str]):
    """Contains every feature, those of unknown plug-ins too."""

    def __contains__(self, feature: object) -> bool:
        return True


REGISTERED: Final[Container[str]] = _Anything()
"""For a playbook that was accepted before: who accepted it knew which plug-ins there are."""
