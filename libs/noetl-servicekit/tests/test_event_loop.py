import asyncio
import sys

import pytest
from noetl_servicekit.event_loop import run_on_fast_loop


async def _loop_module() -> str:
    await asyncio.sleep(0)
    return type(asyncio.get_running_loop()).__module__


def test_a_process_runs_on_libuv_where_it_is_installed() -> None:
    pytest.importorskip("uvloop")

    assert run_on_fast_loop(_loop_module()).startswith("uvloop")


def test_without_it_the_standard_loop_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)  # as if it could not be imported

    assert run_on_fast_loop(_loop_module()).startswith("asyncio")


def test_what_the_work_raises_is_raised() -> None:
    async def fail() -> None:
        raise LookupError("nothing here")

    with pytest.raises(LookupError, match="nothing here"):
        run_on_fast_loop(fail())
