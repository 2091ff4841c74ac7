"""What a pipeline does with tasks that stream: opens their streams, and brings rows back for tasks that read them."""

from __future__ import annotations

from dataclasses import replace

from noetl_core.playbook.model import Task, Tool
from noetl_servicekit.chunk_rows import LoadRows, is_streamed, reads_rows

from noetl_worker.application.chunk_stream import ChunkNotTold, ChunkStream, TellChunks
from noetl_worker.application.known_secrets import secrets_in_names
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.pipeline_run import PipelineRun
from noetl_worker.application.policy import number_of
from noetl_worker.application.rows_by_reference import only_for_spark
from noetl_worker.application.step_names import texts_of_task
from noetl_worker.application.tool_call import Tool as CallableTool
from noetl_worker.application.tool_call import ToolCall

_STREAMS = ""
"""Where streaming calls are counted among the runs of tasks, which parking keeps; no label is empty."""


class PipelineStreams:
    """Of all pipelines of a worker."""

    def __init__(self, tell: TellChunks) -> None:
        self._tell = tell
        self._rows = LoadRows(tell.payloads, tell.tables)

    async def open(self, run: PipelineRun, task: Task, tool: Tool) -> ChunkStream | None:
        """§5.5: calls that stream are counted, so that every attempt finds what earlier ones have told.

        Items of a task's loop may run at the same time, and have no order in which chunks could be counted.
        """
        if tool.stream is None or run.around is not None:
            return None
        rows = max(int(number_of(tool.stream.chunk_rows, run.names(task, 1), run.now)), 1)
        call = run.runs.get(_STREAMS, 0)
        run.runs[_STREAMS] = call + 1
        return await self._tell.open(run.command, task=task.label, call=call, chunk_rows=rows)

    async def call(self, tool: CallableTool, call: ToolCall, stream: ChunkStream) -> Outcome:
        """Make the call; its rows go out while it runs, without the secrets that it was given."""
        stream.restart(secrets_in_names(call.visible))
        try:
            return await stream.settle(await tool.run(replace(call, chunks=stream)))
        except ChunkNotTold as exc:
            return exc.outcome

    async def load(self, run: PipelineRun, task: Task) -> None:
        """Rows of earlier tasks that went out in chunks come back for a task whose templates read them."""
        scope, command = run.scope, run.command
        streamed = {label: result for label, result in scope.results.items() if is_streamed(result)}
        if not streamed:
            return
        names = frozenset({*streamed, "_prev", "output", "results"})
        for_spark = only_for_spark(run.step)
        texts = [text for text in texts_of_task(task, run.step, run.workbook) if text not in for_spark]
        if not reads_rows(texts, names):
            return
        for label, result in streamed.items():
            if label not in scope.loaded:
                scope.loaded[label] = await self._rows(
                    result, tenant_id=command.tenant_id, organization_id=command.organization_id
                )
