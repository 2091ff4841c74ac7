"""The event loop that processes run on: libuv's where there is one, since ours spend most of their time in it."""

import asyncio
import importlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_on_fast_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`; a platform without uvloop gets the loop of the standard library."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def new_fast_loop() -> asyncio.AbstractEventLoop:
    """For whoever runs a loop by pieces, as tasks of others come and go."""
    return (_loop_factory() or asyncio.new_event_loop)()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
