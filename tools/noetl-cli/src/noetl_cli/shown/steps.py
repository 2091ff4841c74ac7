"""The steps of an execution in the order in which they were entered, as its state tells them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WAITING = "waiting"
_RUNNING = "running"
_UNENTERED = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """Where one step stands: waiting for a worker, running, done, failed or skipped."""

    step: str
    status: str
    activation: int
    attempt: int

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "step": self.step,
            "status": self.status,
            "activation": self.activation,
            "attempt": self.attempt,
        }


def step_lines(state: Mapping[str, Any]) -> tuple[StepLine, ...]:
    """From the JSON object of a state, whose maps have no order of their own."""
    latest: dict[str, Mapping[str, Any]] = {}
    entered: dict[str, int] = {}
    for command in state.get("commands", {}).values():
        name = command.get("step", "")
        entered[name] = min(entered.get(name, _UNENTERED), command.get("issued_version", 0))
        known = latest.get(name)
        if known is None or _place(command) > _place(known):
            latest[name] = command
    loops: Mapping[str, Mapping[str, Any]] = state.get("loops", {})
    for name, loop in loops.items():
        entered[name] = min(entered.get(name, _UNENTERED), loop.get("started_version") or _UNENTERED)
    looping = {name for name, loop in loops.items() if not loop.get("status")}
    lines = [
        _line(name, step, latest.get(name), is_looping=name in looping) for name, step in state.get("steps", {}).items()
    ]
    return tuple(sorted(lines, key=lambda line: entered.get(line.step, _UNENTERED)))


def _place(command: Mapping[str, Any]) -> tuple[int, int]:
    return command.get("activation", 0), command.get("attempt", 0)


def _line(name: str, step: Mapping[str, Any], command: Mapping[str, Any] | None, *, is_looping: bool) -> StepLine:
    status = str(step.get("status", ""))
    if status == "active":
        waits = command is not None and command.get("status") == "issued" and not is_looping
        status = _WAITING if waits else _RUNNING
    return StepLine(
        step=name,
        status=status,
        activation=step.get("activation", 0),
        attempt=command.get("attempt", 0) if command is not None else 0,
    )
