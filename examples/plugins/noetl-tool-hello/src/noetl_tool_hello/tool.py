"""A tool of kind `hello`: greets whom its `name` says."""

from noetl_worker.tools.plugin import ErrorKind, Outcome, ToolCall, ToolEnvironment


class HelloTool:
    """Its own factory: a class is called with the environment, and gives the tool."""

    def __init__(self, environment: ToolEnvironment) -> None:
        self._word = environment.settings.get("word", "Hello")  # NOETL_TOOL_HELLO_WORD

    async def run(self, call: ToolCall) -> Outcome:
        """`{greeting}`."""
        name = call.render(call.config.get("name"))
        if not isinstance(name, str) or not name:
            return Outcome.failed(kind=ErrorKind.SCHEMA, code="HELLO_NOBODY", message="a hello step needs `name`")
        return Outcome(data={"greeting": f"{self._word}, {name}!"})
