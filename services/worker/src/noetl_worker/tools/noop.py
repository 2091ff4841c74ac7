"""A tool that does nothing: it gives the result it is told to give."""

from noetl_worker.application.outcome import Outcome
from noetl_worker.application.tool_call import ToolCall


class NoopTool:
    """`result`, rendered; without one, `{status: noop}`."""

    async def run(self, call: ToolCall) -> Outcome:
        """Always ok."""
        if "result" not in call.config:
            return Outcome(data={"status": "noop"})
        return Outcome(data=call.render(call.config["result"]))
