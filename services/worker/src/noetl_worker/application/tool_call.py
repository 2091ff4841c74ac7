"""The port between the worker's use cases and its tools: a call goes in, an outcome comes out."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Protocol

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.deadlines.timeouts import rendered_seconds
from noetl_core.ids import ExecutionId
from noetl_core.playbook.expressions import MAX_CONFIG_CHARACTERS, is_plain, render

from noetl_worker.application.light_values import light_value
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.sinks import ChunkSink
from noetl_worker.application.task_names import TaskNames


@light_value(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of one tool: its config as the playbook has it, and the names that its templates may use."""

    tenant_id: str
    organization_id: str
    execution_id: ExecutionId
    step: str
    task: str = ""
    kind: str
    input: Mapping[str, JsonValue] = field(default_factory=dict)
    """Templates of the tool's inputs, merged with those of its step."""
    config: Mapping[str, JsonValue] = field(default_factory=dict)
    """Templates of what else the kind has: `code`, `libs`, `result` and so on."""
    auth: JsonValue = None
    """Which credentials the call needs: a name, `{type or source, key}`, a map of aliases, or templates of these."""
    names: Mapping[str, object] = field(default_factory=dict)
    keychain: Mapping[str, JsonObject | None] = field(default_factory=dict, repr=False)
    """Entries of the keychain that the configuration names; apart from `names`, which may be stored and shown."""
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """Results of earlier steps as events tell them, by step: where they are, not what they are."""
    now: str | None = None
    """What `now()` gives in this call."""
    timeout_seconds: float | None = None
    timeout_template: str | None = None
    """Where the seconds depend on the call."""
    attempt: int = 1
    chunks: ChunkSink | None = None
    """Where the rows of a streaming call go, instead of into its result."""
    rendering: list[float] = field(default_factory=list, repr=False, compare=False)
    """Seconds that each rendering has taken; of the call and of what tools make of it together."""
    stopwatch: Callable[[], float] = field(default=time.perf_counter, repr=False, compare=False)

    def timed(self) -> ToolCall:
        """The call with its seconds known; raises `TemplateFailed`."""
        if self.timeout_template is None:
            return self
        return replace(self, timeout_seconds=rendered_seconds(self.timeout_template, self.names, now=self.now))

    def render(self, value: JsonValue) -> JsonValue:
        """A part of the config with its templates evaluated; raises `TemplateFailed`."""
        if is_plain(value):
            return value
        path = next((key for key, written in self.config.items() if written is value), "")
        return self._rendered(value, path)

    def configured(self, key: str) -> JsonValue:
        """What the config has under a key, with its templates evaluated; raises `TemplateFailed`."""
        written = self.config.get(key)
        return written if is_plain(written) else self._rendered(written, key)

    @property
    def has_keychain(self) -> bool:
        """Whether templates of the configuration may have seen secrets."""
        return bool(self.keychain) or "keychain" in self.names

    @property
    def all_names(self) -> Mapping[str, object]:
        """As `names`, for who goes through all of them."""
        return self.names.all() if isinstance(self.names, TaskNames) else self.names

    @property
    def visible(self) -> Mapping[str, object]:
        """All that templates of the configuration see. An entry that could not be opened is undefined."""
        if not self.keychain:
            return self.names
        opened = {name: fields for name, fields in self.keychain.items() if fields is not None}
        others = {name: value for name, value in self.all_names.items() if name not in self.keychain}
        return {**others, **opened, "keychain": opened}

    def rendered_input(self) -> dict[str, JsonValue]:
        """The inputs of the call; raises `TemplateFailed`."""
        return {name: self._rendered(value, f"input.{name}") for name, value in self.input.items()}

    def _rendered(self, value: JsonValue, path: str) -> JsonValue:
        began = self.stopwatch()
        names = self.visible if self.keychain else self.names
        try:
            return render(value, names, now=self.now, path=path, chance=random.random, max_text=MAX_CONFIG_CHARACTERS)
        finally:
            self.rendering.append(self.stopwatch() - began)


class Tool(Protocol):
    """Something that a step can call."""

    async def run(self, call: ToolCall) -> Outcome:
        """The outcome, for better or worse; cancellation ends at once what was started.

        Of exceptions only `TemplateFailed` may come out, and only before the call had any effect.
        """
        ...
