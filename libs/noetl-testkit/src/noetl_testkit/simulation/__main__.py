"""`make simulate SEEDS=1..2000`: run seeds, show progress, and of the first one that fails a shrunk trace."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice

from noetl_testkit.simulation.shrink import fewer_collections, report, shrink
from noetl_testkit.simulation.verdict import judge
from noetl_testkit.simulation.world import script_of

CHUNK = 25


def seeds_of(text: str) -> range:
    """`1..2000` from one to the other, `2000` so many from 0, `17..17` one."""
    first, dots, last = text.partition("..")
    try:
        chosen = range(int(first), int(last) + 1) if dots else range(int(first))
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a count nor a range such as 1..2000") from exc
    if not chosen:
        raise argparse.ArgumentTypeError(f"{text!r} has no seeds in it")
    return chosen


def failing(seeds: Sequence[int]) -> list[int]:
    """Those of some seeds that fail."""
    with fewer_collections():
        return [seed for seed in seeds if judge(script_of(seed)).problems]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every seed passes."""
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("seeds", type=seeds_of, help="a count, or a range such as 1..2000")
    parser.add_argument("--jobs", type=int, default=2, help="processes; 0: this one")
    parser.add_argument("--all", action="store_true", help="go on after the first seed that fails")
    asked = parser.parse_args(arguments)
    failed = list[int]()
    with _pool(asked.jobs) as results:
        began, done = time.monotonic(), 0
        for chunk, found in zip(_chunks(asked.seeds), results(_chunks(asked.seeds)), strict=True):
            done += len(chunk)
            failed += found
            seconds = time.monotonic() - began
            sys.stdout.write(f"\r{done}/{len(asked.seeds)} seeds, {len(failed)} failed, {seconds:.0f} s")
            sys.stdout.flush()
            if failed and not asked.all:
                break
    sys.stdout.write("\n")
    if not failed:
        return 0
    sys.stdout.write(f"failed: {' '.join(map(str, failed))}\n")
    sys.stdout.write(report(shrink(judge(script_of(failed[0])))) + "\n")
    return 1


@contextmanager
def _pool(jobs: int) -> Iterator[Callable[[Iterator[list[int]]], Iterator[list[int]]]]:
    """What maps pieces of work to what fails in them: here, or in processes that are left when we are."""
    if jobs == 0:
        yield lambda pieces: map(failing, pieces)
        return
    pool = ProcessPoolExecutor(jobs)
    try:
        yield lambda pieces: pool.map(failing, pieces)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _chunks(seeds: range) -> Iterator[list[int]]:
    rest = iter(seeds)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


if __name__ == "__main__":
    sys.exit(main())
