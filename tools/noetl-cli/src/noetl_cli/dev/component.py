"""What a stack consists of: processes that are kept running, and steps that run once on the way up."""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from noetl_cli.dev.errors import StackInvalid

READY_FILE_VARIABLE = "NOETL_READY_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A process that is kept running, and how to tell that it is ready.

    Without a `ready_check` the process writes the file named by `NOETL_READY_FILE` when it is ready: a JSON
    object, renamed into place, whose `ports` are shown to people. The environment is ours with `env` over it,
    less our own `NOETL_…` variables: what a component is configured with is written in its definition.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: Path | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    prepare: Callable[[], None] | None = None
    """Runs before every start, and must be able to follow an earlier run that was cut off anywhere."""
    ready_file: Path | None = None
    """Where the process reports its readiness; by default a file that the supervisor chooses."""
    ready_check: Callable[[], bool] | None = None
    """Answers soon, and False rather than an error while the process is still starting."""
    depends_on: tuple[str, ...] = ()
    stop_signal: int = signal.SIGTERM
    stop_seconds: float = 10.0
    ready_seconds: float = 60.0
    launch_options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A step that runs once, inside the supervisor, after what it depends on is ready."""

    name: str
    run: Callable[[], None]
    depends_on: tuple[str, ...] = ()


Part = Component | Task
StackFactory = Callable[[Path], Sequence[Part]]
"""Given the data directory, says what the stack consists of; called by the supervisor, at its start."""


def check_stack(parts: Sequence[Part]) -> None:
    """Refuse doubled names, unknown dependencies and cycles before anything is started."""
    names = [part.name for part in parts]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise StackInvalid(f"more than one component is called {doubled[0]!r}")
    for part in parts:
        for dependency in part.depends_on:
            if dependency not in names:
                raise StackInvalid(f"{part.name!r} depends on {dependency!r}, which is not in the stack")
        if isinstance(part, Component) and not part.argv:
            raise StackInvalid(f"{part.name!r} has no command")
    try:
        TopologicalSorter({part.name: part.depends_on for part in parts}).prepare()
    except CycleError as exc:
        raise StackInvalid(f"components wait for each other: {' → '.join(exc.args[1])}") from exc


def dependents_of(name: str, parts: Sequence[Part]) -> tuple[str, ...]:
    """Whatever must have stopped before this part may stop."""
    return tuple(part.name for part in parts if name in part.depends_on)
