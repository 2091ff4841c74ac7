"""Which tool answers to which kind, and what all calls have in common: rendering errors, attempts and time."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from noetl_core.canonical import JsonValue
from noetl_core.playbook.expressions import TemplateFailed

from noetl_worker.application.known_secrets import KnownSecrets, secrets_in_names
from noetl_worker.application.outcome import ErrorKind, Outcome, OutcomeMeta
from noetl_worker.application.tool_call import Tool, ToolCall
from noetl_worker.tools.call_failed import without_secrets


class ToolRegistry:
    """A tool itself: it passes each call on to the tool of its kind."""

    def __init__(self, tools: Mapping[str, Tool], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tools = dict(tools)
        self._clock = clock

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that this worker can run."""
        return tuple(sorted(self._tools))

    async def run(self, call: ToolCall) -> Outcome:
        """The tool's outcome, with the facts about the call."""
        started = self._clock()
        tool = self._tools.get(call.kind)
        try:
            outcome = self._unavailable(call) if tool is None else await tool.run(call.timed())
        except TemplateFailed as exc:
            outcome = Outcome.failed(kind=ErrorKind.TRANSFORM, code="TEMPLATE_ERROR", message=exc.message)
        duration_ms = round((self._clock() - started) * 1000, 3)
        # A tool knows the secrets of its credentials; those of the keychain may be in any template of any kind.
        if call.has_keychain:
            outcome = _without_keychain(outcome, secrets_in_names(call.visible))
        return outcome.with_meta(OutcomeMeta(attempt=call.attempt, duration_ms=duration_ms))

    def _unavailable(self, call: ToolCall) -> Outcome:
        """An outcome too, since rules may handle it."""
        known = ", ".join(self.kinds)
        return Outcome.failed(
            kind=ErrorKind.UNKNOWN,
            code="TOOL_UNAVAILABLE",
            message=f"this worker has no tool of kind {call.kind!r}, only {known}",
        )


def _without_keychain(outcome: Outcome, secrets: KnownSecrets) -> Outcome:
    """Neither what is said nor what is stored has a secret in it, whoever put it there."""
    if not secrets:
        return outcome
    told = without_secrets(outcome, secrets)
    data = secrets.hide_in_data(told.data, whole=True)
    return replace(told, data=data, py=_facts(told.py, secrets), http=_facts(told.http, secrets))


def _facts(facts: Mapping[str, JsonValue] | None, secrets: KnownSecrets) -> Mapping[str, JsonValue] | None:
    if facts is None:
        return None
    return {
        name: secrets.hide(fact) if isinstance(fact, str) else secrets.hide_in_data(fact, whole=True)
        for name, fact in facts.items()
    }
