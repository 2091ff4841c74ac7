"""Every loop has a watchdog: what goes on by itself is a supervised loop, or it is said here why not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (
    *ROOT.glob("services/*/src"),
    *(ROOT / f"libs/{name}/src" for name in ("noetl-adapters", "noetl-contracts", "noetl-servicekit")),
)
STARTERS = frozenset({"create_task", "ensure_future", "Thread", "start_new_thread"})

ONE_PIECE = "does one piece of work, which has an end and deadlines of its own"
AWAITED = "its starter waits for it, and hears of its failure"
PROCESS = "belongs to a child process, whose end ends it, and whose calls have deadlines"
UNSUPERVISED = {
    "noetl_adapters/nats/connection.py:start": "for benchmarks and tests; services supervise `run`",
    "noetl_adapters/payload/tiers.py:_from_store": ONE_PIECE,
    "noetl_adapters/postgres/connection_pool.py:give_back": ONE_PIECE,
    "noetl_adapters/spark/driver.py:cancel": PROCESS,
    "noetl_adapters/spark/driver.py:main": PROCESS,
    "noetl_adapters/spark/driver.py:release": PROCESS,
    "noetl_adapters/spark/driver_process.py:__init__": PROCESS,
    "noetl_adapters/spark/driver_process.py:_see_off": ONE_PIECE,
    "noetl_adapters/spark/payload_access.py:__init__": PROCESS,
    "noetl_api/application/group_commit.py:_enqueue": "health asks how long a commit has been under way",
    "noetl_api/application/notice_starts.py:__call__": ONE_PIECE,
    "noetl_api/application/query_executions.py:_row_and_head": AWAITED,
    "noetl_contracts/http2/client_channel.py:_start_connecting": ONE_PIECE,
    "noetl_contracts/http2/reaching.py:first_to_answer": AWAITED,
    "noetl_contracts/http2/response_stream.py:_begin": AWAITED,
    "noetl_outbox_publisher/entrypoints/drain_loop.py:_woken_to_stop": "ends with its loop",
    "noetl_planner/application/actor.py:_wake": "Actors say which turns do not end, and health asks them",
    "noetl_planner/application/routing_snapshots.py:offer": ONE_PIECE,
    "noetl_planner/application/wake_workers.py:__call__": ONE_PIECE,
    "noetl_planner/bootstrap.py:_start": ONE_PIECE,
    "noetl_projector/bootstrap/__init__.py:_shards_changed": ONE_PIECE,
    "noetl_projector/entrypoints/query_process.py:run": "beats for the supervised loop that it is a part of",
    "noetl_servicekit/frame_results.py:slots": AWAITED,
    "noetl_servicekit/http2/served_call.py:start": "one call, with a deadline, which ends with its caller",
    "noetl_servicekit/http_server.py:serve_http": "answers health itself: who asks it notices",
    "noetl_servicekit/lifecycle.py:_start": ONE_PIECE,
    "noetl_servicekit/loop_results.py:_slots": AWAITED,
    "noetl_servicekit/service_group.py:loop": "the supervisor",
    "noetl_worker/entrypoints/work_loop.py:keep_alive": "heartbeats under way, which end with the loop that tells them",
    "noetl_worker/application/run_frame.py:_run_rows": AWAITED,
    "noetl_worker/application/slots.py:_start": "one call, with a timeout and a lease",
    "noetl_worker/application/spark_stages.py:_begin": AWAITED,
    "noetl_worker/application/spark_stages.py:take": "one stage, whose frames have leases",
    "noetl_worker/application/task_loop.py:run": AWAITED,
    "noetl_worker/application/wait_at_planners.py:_follow": "looked after by the supervised loop `waiting`",
    "noetl_worker/bootstrap/control_thread.py:__init__": "one that hangs sends no heartbeats, and leases end",
    "noetl_worker/bootstrap/slot_process.py:_open": "on an executor: a pulse stands for health, see there",
    "noetl_worker/bootstrap/slot_process.py:_run": "the pulse itself",
    "noetl_worker/bootstrap/slot_process.py:_serve": AWAITED,
    "noetl_worker/tools/duckdb_sessions.py:_dismiss": ONE_PIECE,
    "noetl_worker/tools/postgres_sessions.py:_tidy": ONE_PIECE,
    "noetl_worker/tools/postgres_sessions.py:give_back": AWAITED,
    "noetl_worker/tools/python_pool.py:_dismiss": ONE_PIECE,
    "noetl_worker/tools/python_pool.py:_order_spares": ONE_PIECE,
    "noetl_worker/tools/python_process.py:_watch_exit": PROCESS,
    "noetl_worker/tools/shared_resources.py:_dismiss": ONE_PIECE,
    "noetl_worker/tools/shared_resources.py:_entry": ONE_PIECE,
    "noetl_worker/tools/transfer_chunks.py:two_at_a_time": AWAITED,
}


def starts(source: str) -> Iterator[str]:
    """The functions that start tasks or threads."""

    def visit(node: ast.AST, function: str) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = function or node.name
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in STARTERS:
                yield function
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(ast.parse(source), "")


def test_whatever_goes_on_by_itself_is_watched_or_says_why_not() -> None:
    found = {
        f"{file.relative_to(directory)}:{function}"
        for directory in SOURCES
        for file in directory.rglob("*.py")
        for function in starts(file.read_text())
    }

    assert found - UNSUPERVISED.keys() == set(), "have it supervised (ServiceGroup.loop or keep), or say why not"
    assert UNSUPERVISED.keys() - found == set(), "these are gone"


def test_a_loop_that_somebody_starts_by_himself_is_noticed() -> None:
    source = "class Cache:\n    def open(self):\n        self._sweeper = asyncio.create_task(self._sweep())\n"

    assert list(starts(source)) == ["open"]
