"""Where the frames of a stage run: on Spark executors, or in the process of a worker. Pure."""

from __future__ import annotations

from typing import Final

from noetl_core.playbook.loop_model import Engine
from noetl_core.playbook.model import Playbook, ToolKind

DEFAULT: Final = "default"
"""Nothing is written: on Spark where a session is kept warm, else in the worker; what frames do there is the same."""


def engine_of(playbook: Playbook, step: str) -> str:
    """What `stage.opened` says; a spark task is called from the worker, so frames of its pipeline stay there."""
    stage = playbook.steps[step]
    asked = stage.loop or stage.reduce
    written = asked.engine if asked is not None else None
    if written is Engine.INLINE or _calls_spark(playbook, step):
        return Engine.INLINE.value
    return DEFAULT if written is None else written.value


def _calls_spark(playbook: Playbook, step: str) -> bool:
    kinds = {task.tool.kind for task in playbook.steps[step].tasks}
    if ToolKind.WORKBOOK in kinds:
        kinds |= {task.tool.kind for task in playbook.workbook.values()}
    return ToolKind.SPARK in kinds
