"""What a supervisor tells the world about its stack, as a file that is whole whenever it is read."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from noetl_core.errors import Corrupt

from noetl_cli.dev.files import write_atomically
from noetl_cli.dev.processes import ProcessIdentity


class Phase(StrEnum):
    """Where the stack as a whole stands."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    """Never written: the supervisor is gone without having said so."""


class Status(StrEnum):
    """Where one component stands."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    DONE = "done"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


SATISFIED = frozenset({Status.READY, Status.DONE})
"""What lets dependents start."""
RUNNING_PHASES = frozenset({Phase.STARTING, Phase.READY, Phase.STOPPING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentState:
    """One component, as last reported."""

    name: str
    status: Status = Status.WAITING
    process: ProcessIdentity | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    start_seconds: float | None = None
    """How long the last start took until it was ready."""
    error: str | None = None
    """Why it last failed or ended unasked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """The whole stack, as last reported."""

    phase: Phase
    supervisor: ProcessIdentity
    components: Mapping[str, ComponentState]
    error: str | None = None

    def with_component(self, name: str, **changes: Any) -> "StackState":
        """The state after a change of one component."""
        changed = replace(self.components[name], **changes)
        return replace(self, components={**self.components, name: changed})

    @property
    def failed(self) -> ComponentState | None:
        """The component that failed, if one did."""
        return next((each for each in self.components.values() if each.status is Status.FAILED), None)

    def write(self, file: Path) -> None:
        write_atomically(file, json.dumps(self.to_json(), indent=2) + "\n")

    def to_json(self) -> dict[str, Any]:
        """A document for files and for `-o json`."""
        document = asdict(self)
        document["components"] = list(document["components"].values())
        return document

    @classmethod
    def read(cls, file: Path) -> "StackState | None":
        """None when no supervisor has ever run here."""
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as exc:
            raise Corrupt(f"{file} is not readable: {exc}") from exc
        try:
            components = [_component(each) for each in document["components"]]
            return cls(
                phase=Phase(document["phase"]),
                supervisor=_identity(document["supervisor"]),
                components={each.name: each for each in components},
                error=document["error"],
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise Corrupt(f"{file} is not a state of this release: {exc!r}") from exc

    def observed(self) -> "StackState":
        """The report corrected by what is really alive: a killed supervisor cannot report its own end."""
        if self.phase not in RUNNING_PHASES or self.supervisor.is_alive():
            return self
        components = {
            name: replace(each, status=Status.LOST) if each.process and not each.process.is_alive() else each
            for name, each in self.components.items()
        }
        return replace(self, phase=Phase.LOST, components=components, error="the supervisor was killed")


def _component(document: Mapping[str, Any]) -> ComponentState:
    process = document["process"]
    return ComponentState(
        name=document["name"],
        status=Status(document["status"]),
        process=_identity(process) if process is not None else None,
        ports=dict(document["ports"]),
        restarts=int(document["restarts"]),
        start_seconds=document["start_seconds"],
        error=document["error"],
    )


def _identity(document: Mapping[str, Any]) -> ProcessIdentity:
    return ProcessIdentity(pid=int(document["pid"]), started=str(document["started"]))
