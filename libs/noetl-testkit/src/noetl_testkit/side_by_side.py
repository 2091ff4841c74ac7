"""Tests on several workers of pytest-xdist: what shares servers stays together, what measures time is alone.

Whole stacks are heavy, so one worker runs all tests of them, one after the other, beside the tests of the others. Only
those that start a stack to wait for leases and outages to end run beside it, which leaves the processors to the rest.
Everything else is given out by file, what waits for servers before what only computes, and long files first.
A test that is marked `alone` waits until no other one runs, and holds up the next ones.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from noetl_cli.dev.ports import PORTS_VARIABLE
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_STACKS: Final = ("tests/conformance/", "tests/e2e/")
WAITING: Final = tuple(
    f"tests/e2e/test_{name}.py" for name in ("outages", "default_leases", "replicas_survive", "stack_lifecycle")
)
"""They have stacks of their own, which hardly compute anything: the first two sleep for most of their time."""
_LONG: Final = ("tests/integration/", "libs/noetl-adapters/tests/spark/", "tools/", "tests/simulation/")
_TURNS: Final = (*WAITING, *_LONG, "")
_FIRST_PORT, _PORTS_OF_EACH, _PARTS = 15_000, 2_000, 8
_INPUT: Final = "noetl_room"


class Room:
    """The tests of all workers are in it, or one that is alone; who waits to be alone is not overtaken."""

    def __init__(self, directory: Path) -> None:
        self._closing = ExitStack()
        self._door, self._inside = (
            self._closing.enter_context((directory / name).open("a")) for name in ("door", "inside")
        )

    @contextmanager
    def entered(self, *, alone: bool) -> Iterator[None]:
        """Wait for those inside if need be, and stay until the end; the kernel leaves for those who are killed."""
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._inside, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._inside, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the files."""
        self._closing.close()


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # the library has no types
    """Gives out scopes in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """What a test shares a worker with."""
    is_one_of_all = nodeid.startswith(_STACKS) and not nodeid.startswith(WAITING)
    return "stacks" if is_one_of_all else nodeid.partition("::")[0]


def turn_of(nodeid: str) -> int:
    """The longest piece of work is begun first, then what waits a lot; what only computes fills the rest."""
    if scope_of(nodeid) == "stacks":
        return 0
    return next(turn for turn, prefix in enumerate(_TURNS, start=1) if nodeid.startswith(prefix))


class _Run:
    """What the run that gives out the tests has: a place where its workers meet."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="noetl-room-"))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        node.workerinput[_INPUT] = str(self._directory)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduling:
        return Scheduling(config, log)

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


class _Worker:
    """What every worker does."""

    def __init__(self, room: Room) -> None:
        self._room = room

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: turn_of(item.nodeid))

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the timeout: to wait for others is no failure
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with self._room.entered(alone=item.get_closest_marker("alone") is not None):
            return (yield)

    def pytest_unconfigure(self) -> None:
        self._room.close()


def pytest_configure(config: pytest.Config) -> None:
    """Nothing changes for a run without workers."""
    worker_input = getattr(config, "workerinput", None)
    if worker_input is not None:
        os.environ[PORTS_VARIABLE] = ports_of(worker_input["workerid"])
        config.pluginmanager.register(_Worker(Room(Path(worker_input[_INPUT]))))
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(_Run())


def ports_of(worker: str) -> str:
    """Its own, since a port that one has chosen is free for the others until a server listens there."""
    first = _FIRST_PORT + int(worker.removeprefix("gw")) % _PARTS * _PORTS_OF_EACH
    return f"{first}-{first + _PORTS_OF_EACH - 1}"
