"""The one exception inside tools: it carries the outcome in which the call ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from noetl_core.canonical import JsonValue
from noetl_core.errors import InvalidInput, NoetlError, NotFound
from noetl_core.playbook.expressions import TemplateFailed

from noetl_worker.application.known_secrets import KnownSecrets
from noetl_worker.application.outcome import ErrorKind, Outcome

TOOL_CONFIG = "TOOL_CONFIG"
"""Code of a call whose configuration, as rendered, makes no sense."""


class CallFailed(Exception):
    """Raised where it is known how the call ends, caught where the tool returns."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error.message if outcome.error else "")
        self.outcome = outcome


def failed(kind: ErrorKind, code: str, message: str, *, retryable: bool | None = None) -> CallFailed:
    """To be raised: an outcome that has nothing but an error."""
    return CallFailed(Outcome.failed(kind=kind, code=code, message=message, retryable=retryable))


def misconfigured(message: str) -> CallFailed:
    """To be raised: what the playbook says cannot be done."""
    return failed(ErrorKind.SCHEMA, TOOL_CONFIG, message)


def credential_failed(error: NoetlError) -> CallFailed:
    """To be raised: a credential is not there, cannot be fetched, or is not described in a way that has a meaning."""
    if isinstance(error, NotFound):
        return failed(ErrorKind.AUTH, error.code, error.message)
    if isinstance(error, TemplateFailed):
        raise error
    if isinstance(error, InvalidInput):
        return failed(ErrorKind.AUTH, error.code, error.message)
    return failed(ErrorKind.CONNECTION, "CREDENTIALS_UNAVAILABLE", error.message, retryable=error.retryable)


def without_secrets(outcome: Outcome, secrets: KnownSecrets) -> Outcome:
    """The outcome with a message, facts and output that give nothing away."""
    printed = outcome.printed
    if printed is not None:
        shown = replace(printed, stdout=secrets.hide(printed.stdout), stderr=secrets.hide(printed.stderr))
        outcome = replace(outcome, printed=shown)
    if outcome.py is not None:
        outcome = replace(outcome, py=_hidden(outcome.py, secrets))
    if outcome.error is None:
        return outcome
    hidden = replace(outcome, error=replace(outcome.error, message=secrets.hide(outcome.error.message)))
    if outcome.pg is None:
        return hidden
    return replace(hidden, pg=_hidden(outcome.pg, secrets))


def _hidden(facts: Mapping[str, JsonValue], secrets: KnownSecrets) -> Mapping[str, JsonValue]:
    return {name: secrets.hide(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
