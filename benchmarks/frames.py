"""Rows in frames that call a web server and PostgreSQL: on Spark, in the worker, and by a bare script."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from benchmarks.bare_calls import run_bare
from benchmarks.executions import Execution, put_database, run_playbook
from benchmarks.figures import Figure, Goal, median, processor_figures
from benchmarks.stack import Stack
from benchmarks.web import items_server

_ROUNDS = 3
_ROWS_A_SECOND = 1_000
"""A first guess, for how many rows are enough: a sample that ends too soon is mostly its beginning and its end."""
_FRAMES_AT_ONCE, _ROWS_AT_ONCE = 4, 2
"""As many calls as a worker has connections to one database."""
_SAVE = "INSERT INTO public.bench_rows (run, id, body) VALUES ($1, $2, $3)"
_DOCUMENT = """
workload: {rows: 1, web: "", run: ""}
workflow:
- step: enrich
  loop:
    in: "{{ range(rows) | list }}"
    iterator: n
    spec:
      mode: parallel
      max_in_flight: FRAMES
      engine: ENGINE
      frame: {max_rows: 50, max_seconds: 600, row_concurrency: ROWS}
  tool:
  - name: fetch
    kind: http
    url: "{{ web }}/items/{{ iter.n }}"
  - name: save
    kind: postgres
    auth: bench_db
    command: >-
      INSERT INTO public.bench_rows (run, id, body) VALUES ('{{ run }}', {{ iter.n }}, $j${{ fetch.data | tojson }}$j$)
"""
_WAITING = """
workload: {rows: 1, web: ""}
workflow:
- step: wait
  loop:
    in: "{{ range(rows) | list }}"
    iterator: n
    spec: {mode: parallel, max_in_flight: FRAMES, engine: ENGINE, frame: {max_rows: 20, max_seconds: 600}}
  tool: {kind: http, url: "{{ web }}/items/{{ iter.n }}?ms=50"}
"""
_QUERY = """
workflow:
- {step: count, tool: {kind: spark, sql: SELECT sum(id) AS n FROM range(1000)}}
"""
_BARE, _BARE_HTTPX = "bare aiohttp", "bare httpx"
_GROUP = "50-row frames: an HTTP call and an INSERT for each row"
_WAITING_GROUP = "Frames whose rows wait for 50 ms, 8 in flight"


@dataclass(slots=True)
class _Taken:
    """What a way to make the calls took, round by round."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)
    """Of the last round: by which part of the stack."""


async def measure_frames(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """Turn by turn, after one turn of each that warms up."""
    rows = max(round(seconds * _ROWS_A_SECOND / 50) * 50, 200)
    await put_database(stack, "bench_db")
    await _make_table(stack)
    taken = {way: _Taken() for way in (_BARE, _BARE_HTTPX, "inline", "spark")}
    numbers = itertools.count()
    with items_server() as web:
        for turn, way in itertools.product(range(_ROUNDS + 1), taken):
            say(f"frames: {way}, {rows} rows, {'to warm up' if not turn else f'{turn} of {_ROUNDS}'} …")
            used = await _calls(stack, way, rows=rows, web=web, run=f"{way}-{next(numbers)}")
            if turn:
                taken[way].seconds.append(used[0])
                taken[way].processor.append(sum(used[1].values()))
                taken[way].parts = used[1]
    figures = []
    for way, one in taken.items():
        figures += [
            Figure(group=_GROUP, name=f"{way}: rows", value=rows / median(one.seconds), unit="/s", samples=_ROUNDS),
            Figure(
                group=_GROUP,
                name=f"{way}: processor time per row (client, or the whole stack)",
                value=median(one.processor) / rows * 1000,
                unit="ms",
            ),
        ]
    group = f"{_GROUP}, inline"
    return [
        *figures,
        *processor_figures(group, "row", taken["inline"].parts, rows),
        _times(f"inline as a multiple of {_BARE}, its own client", taken["inline"], taken[_BARE], bound=1.25),
        _times(f"inline as a multiple of {_BARE_HTTPX}", taken["inline"], taken[_BARE_HTTPX], bound=1.25),
        _times("spark as a multiple of inline", taken["spark"], taken["inline"], bound=1.3),
    ]


def _times(name: str, ours: _Taken, theirs: _Taken, *, bound: float) -> Figure:
    ratios = [one / other for one, other in zip(ours.seconds, theirs.seconds, strict=True)]
    goal = Goal(bound=bound, at_least=False)
    return Figure(group=_GROUP, name=name, value=median(ratios), unit="times", goal=goal, samples=len(ratios))


async def _calls(stack: Stack, way: str, *, rows: int, web: str, run: str) -> tuple[float, dict[str, float]]:
    await stack.settle()
    if way in (_BARE, _BARE_HTTPX):
        job = {
            "client": way.removeprefix("bare "),
            "rows": rows,
            "web": web,
            "run": run,
            "ms": 0,
            "save": _SAVE,
            "dsn": stack.addresses.owner_dsn,
        }
        told = await run_bare({**job, "at_once": _FRAMES_AT_ONCE * _ROWS_AT_ONCE})
        used = told["seconds"], {"script": told["processor"]}
    else:
        before = stack.processor_seconds()
        ran = await _run(stack, f"frames_{way}", _DOCUMENT, way, {"rows": rows, "web": web, "run": run})
        used = ran.stage_seconds, stack.processor_seconds_since(before)
    connection = await asyncpg.connect(stack.addresses.owner_dsn)
    try:
        saved = await connection.fetchval("SELECT count(*) FROM public.bench_rows WHERE run = $1", run)
    finally:
        await connection.close()
    if saved != rows:
        raise RuntimeError(f"{way} saved {saved} rows of {rows}")
    return used


async def measure_waiting(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """Rows that wait cost no processor: slots hold many of them, and a query does not wait for them to end."""
    rows = max(round(seconds), 4) * 160
    figures: list[Figure] = []
    with items_server() as web:
        await run_playbook(stack, "small_query", _QUERY, {})
        for engine in ("inline", "spark"):
            await _run(stack, f"waiting_{engine}", _WAITING, engine, {"rows": 160, "web": web})
            say(f"waiting: {rows} rows, {engine} …")
            running = asyncio.create_task(
                _run(stack, f"waiting_{engine}", _WAITING, engine, {"rows": rows, "web": web})
            )
            if engine == "spark":
                await asyncio.sleep(min(2.0, rows / 160 / 4))
                query = await run_playbook(stack, "small_query", _QUERY, {})
                is_busy = not running.done()
            ran = await running
            goal = Goal(bound=1.3, at_least=False)
            each = ran.stage_seconds / (rows / 160)
            figures.append(Figure(group=_WAITING_GROUP, name=f"{engine}: 160 rows", value=each, unit="s", goal=goal))
    name = "a small Spark query meanwhile, execute to terminal" + ("" if is_busy else " (slots were free already)")
    goal = Goal(bound=2.0, at_least=False)
    return [*figures, Figure(group=_WAITING_GROUP, name=name, value=query.seconds, unit="s", goal=goal)]


async def _make_table(stack: Stack) -> None:
    connection = await asyncpg.connect(stack.addresses.owner_dsn)
    try:
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS public.bench_rows (run text, id integer, body text, PRIMARY KEY (run, id))"
        )
    finally:
        await connection.close()


async def _run(stack: Stack, name: str, document: str, engine: str, payload: dict[str, Any]) -> Execution:
    shaped = document.replace("ENGINE", engine).replace("ROWS", str(_ROWS_AT_ONCE))
    frames = str(8 if document is _WAITING else _FRAMES_AT_ONCE)
    return await run_playbook(stack, name, shaped.replace("FRAMES", frames), payload)
