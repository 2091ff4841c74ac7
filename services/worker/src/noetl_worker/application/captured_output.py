"""Collects what the calls of one command print; however much that is, what is kept has a fixed size."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from noetl_core.call_logs import CallLog, CallOutput
from noetl_core.canonical import encode
from noetl_core.errors import NoetlError
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import GrantedCommand
from noetl_servicekit.logging import get_logger

from noetl_worker.application.credential_names import without_credentials
from noetl_worker.application.outcome import Printed
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace

logger = get_logger()

MEDIA_TYPE = "application/json"
MAX_STREAM_CHARACTERS = 64 * 1024
"""Of one stream of one run; the first quarter and the last three are kept."""
MAX_HALF_CHARACTERS = 128 * 1024
"""Of all runs of a command: the first ones up to here, and the last ones up to here."""
MAX_HALF_RUNS = 200
"""Of many runs that print little, as many at either end."""


@dataclass(slots=True)
class CapturedOutput:
    """The first and the last runs of a command that printed anything."""

    first: list[CallOutput] = field(default_factory=list)
    last: deque[CallOutput] = field(default_factory=deque)
    left_out: int = 0
    _first_size: int = 0
    _last_size: int = 0
    _first_is_full: bool = False

    def take(self, printed: Printed | None, *, task: str, run: int) -> None:
        """One more run has ended."""
        if printed is None or not (printed.stdout or printed.stderr):
            return
        self.keep(CallOutput(task=task, run=run, stdout=shorten(printed.stdout), stderr=shorten(printed.stderr)))

    def keep(self, output: CallOutput) -> None:
        """One more run to keep, as far as there is room."""
        if not self._first_is_full:
            fits = self._first_size + output.size <= MAX_HALF_CHARACTERS and len(self.first) < MAX_HALF_RUNS
            if fits or not self.first:
                self.first.append(output)
                self._first_size += output.size
                return
            self._first_is_full = True
        self.last.append(output)
        self._last_size += output.size
        while len(self.last) > 1 and (self._last_size > MAX_HALF_CHARACTERS or len(self.last) > MAX_HALF_RUNS):
            self._last_size -= self.last.popleft().size
            self.left_out += 1

    def log_of(self, command: GrantedCommand) -> CallLog | None:
        """What is kept of all of it, if there was any."""
        if not self.first:
            return None
        return CallLog(
            step=command.step,
            activation=command.activation,
            attempt=command.attempt,
            outputs=(*self.first, *self.last),
            left_out_runs=self.left_out,
            first_runs=len(self.first),
        )


def shorten(text: str) -> str:
    """The beginning and the end of a text that is too long, with a note of what is missing; no credentials in URLs."""
    text = without_credentials(text)
    missing = len(text) - MAX_STREAM_CHARACTERS
    if missing <= 0:
        return text
    head = MAX_STREAM_CHARACTERS // 4
    return f"{text[:head]}\n… {missing} characters are left out here\n{text[head + missing :]}"


class StoreOutput:
    """Puts what was printed where payloads are kept; it is a courtesy, and never costs a command its result."""

    def __init__(self, persist: PersistBeforeEmit) -> None:
        self._persist = persist

    async def __call__(self, command: GrantedCommand, captured: CapturedOutput) -> PayloadRef | None:
        """The reference for the event that closes the command."""
        log = captured.log_of(command)
        if log is None:
            return None
        try:
            return await self._persist.put(_place(command), encode(log.to_json()), media_type=MEDIA_TYPE)
        except NoetlError as exc:
            logger.warning("worker.output_not_stored", step=command.step, code=exc.code, reason=exc.message)
            return None


def _place(command: GrantedCommand) -> ResultPlace:
    return ResultPlace(
        tenant_id=command.tenant_id,
        organization_id=command.organization_id,
        execution_id=command.key.execution_id,
        step=command.step,
    )
