"""Runs a function in tasks that last: each is a job of its own, so that one that dies takes no other along."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.ports.spark import SparkTasks
from pyspark import InheritableThread, SparkContext, TaskContext
from pyspark.sql import SparkSession

from noetl_adapters.spark.failures import describe
from noetl_adapters.spark.lasting_tasks import LastingTasks
from noetl_adapters.spark.seats import Seats, Taken

APART: Final = {"NOETL_SPARK_TASKS": "1"}
"""In the environment of their Python processes: Spark reuses a process only where the environment is the same.

So functions of queries, which users write, never run in a process that holds connections and tokens of slots.
"""


def run_tasks(
    spark: SparkSession,
    tasks: SparkTasks,
    seats: Seats,
    lasting: LastingTasks,
    *,
    is_wanted: Callable[[], bool] = lambda: True,
    began: Callable[[], None] = lambda: None,
) -> JsonValue:
    """What each task gave, or `{"error": …}` for one that died; the pool and the job group are those of the thread."""
    context = _with_processes_apart(spark.sparkContext)
    with seats.taken(len(tasks.shares), user=tasks.execution_id, is_wanted=is_wanted) as taken:
        parts = [list(tasks.shares[number :: taken.count]) for number in range(taken.count)]
        answers: list[JsonObject] = [{} for _ in parts]
        threads = [
            InheritableThread(
                target=_run_part,
                args=(context, tasks, part, answer),
                kwargs={"taken": taken, "lasting": lasting},
                daemon=True,
            )
            for part, answer in zip(parts, answers, strict=True)
        ]
        for thread in threads:
            thread.start()
        if threads:
            began()
        for thread in threads:
            thread.join()
    return list(answers)


class Part:
    """What a task is given, pickled with it: the function by its name, since the package is installed everywhere."""

    def __init__(self, function: str, common: JsonObject) -> None:
        self._function = function
        self._common = common

    def __call__(self, shares: Iterable[list[JsonValue]]) -> Iterator[JsonObject]:
        """In an executor's Python process."""
        context = TaskContext.get()
        module, _, name = self._function.partition(":")
        for share in shares:
            if context is None or context.attemptNumber() > 0:
                yield {
                    "error": "the task was lost",
                    "code": "SPARK_TASK_LOST",
                }  # nothing is tried again here: what it held has leases
            else:
                yield getattr(importlib.import_module(module), name)(self._common, share, str(context.taskAttemptId()))


def _run_part(
    context: SparkContext,
    tasks: SparkTasks,
    part: list[JsonValue],
    answer: JsonObject,
    *,
    taken: Taken,
    lasting: LastingTasks,
) -> None:
    try:
        with lasting.task(tasks.call_id, part) as tag:
            context.addJobTag(tag)
            (given,) = context.parallelize([part], 1).mapPartitions(Part(tasks.function, tasks.common)).collect()
        answer.update(given)
    except Exception as exc:  # a process that was killed, an executor that is gone, a job that was cancelled
        failure = describe(exc, None)
        answer.update(error=failure.message[:500], code=failure.code)
    finally:
        taken.give_back(comes_again=bool(answer.get("left")))


def _with_processes_apart(context: SparkContext) -> SparkContext:
    """The same context but for the environment of Python processes."""
    apart: Any = object.__new__(SparkContext)
    apart.__dict__.update(context.__dict__)
    apart.environment = {**context.environment, **APART}
    return apart  # type: ignore[no-any-return]  # made without calling it
