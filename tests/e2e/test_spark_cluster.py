"""The same playbook where Spark runs in the worker and where it is a cluster of two: only the master differs."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from typing import Any

import pytest
from noetl_core.locator import parse
from noetl_testkit.conformance import Came, Case, run_all
from noetl_testkit.local_stack import LocalStack, local_stack
from noetl_testkit.spark_cluster import standalone_cluster

ROWS = 60
RUNS = 6
# Each row tells which JVM its task belongs to: the nearest one above the process that runs it.
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: spark_anywhere, path: tests/spark_anywhere}
workflow:
- step: work
  loop:
    in: "{{ range(60) | list }}"
    iterator: n
    spec: {mode: parallel, max_in_flight: 6, engine: spark, frame: {max_rows: 5}}
  tool:
    kind: python
    input: {n: "{{ iter.n }}"}
    code: |
      import os, pathlib, time
      time.sleep(0.1)
      pid = os.getpid()
      while pid > 1 and pathlib.Path(f"/proc/{pid}/comm").read_text().strip() != "java":
          pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
      result = {"n": n, "parity": n % 2, "place": pid}
  next: {arcs: [{step: total}]}
- step: total
  reduce: {from: work, by: parity, partitions: 2}
  tool: {kind: spark, sql: "SELECT parity, count(*) AS rows, sum(n) AS n FROM partitions GROUP BY parity"}
  next: {arcs: [{step: report}]}
- {step: report, tool: {kind: noop, result: "{{ total.rows | sort(attribute='parity') | list }}"}}
"""


def ran_on(stack: LocalStack) -> Came:
    case = Case(name="spark_anywhere", rule="", document=PLAYBOOK, expect={})
    outcomes = asyncio.run(run_all([case], stack.endpoint, stack.home.root / "payloads"))
    came = outcomes["spark_anywhere"]
    assert isinstance(came, Came), repr(came)
    assert came.state is not None
    assert (came.state.execution.status.value, came.state.execution.error) == ("COMPLETED", None)
    return came


def places(came: Came) -> Counter[int]:
    """How many rows ran in which JVM."""
    results: list[dict[str, Any]] = came.results["work"]["results"]
    assert [row["n"] for row in results] == list(range(ROWS))
    return Counter(row["place"] for row in results)


def nodes(came: Came) -> set[str]:
    """Where the workers were that claimed frames, as far as they said so."""
    claims = [one.envelope.meta for one in came.events if one.envelope.event_type == "frame.dispatched"]
    said = [parse(str(claim["worker_locator"])) for claim in claims if claim.get("worker_locator")]
    return {values[0] for locator in said for key, values in locator.pairs() if key == "node"}


@pytest.mark.timeout(1500)  # five JVMs, on a machine that may be busy
def test_frames_and_queries_give_the_same_on_a_cluster_whose_workers_both_do_their_part(stack: LocalStack) -> None:
    here = ran_on(stack)
    assert len(places(here)) == 1, "the JVM of the worker's own session"

    with standalone_cluster(workers=2, cores=2, memory="1g") as master:
        settings = {
            "NOETL_SPARK_MASTER": master,
            "NOETL_SPARK_START_SECONDS": "400",
            "NOETL_SPARK_MEMORY": "1g",
            # The first task waits for the executors of both workers, which may come late.
            "NOETL_SPARK_PROPERTIES": json.dumps(
                {
                    "spark.cores.max": "4",
                    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
                    "spark.executor.extraJavaOptions": os.environ["SPARK_DAEMON_JAVA_OPTS"],  # they live for seconds
                }
            ),
        }
        with local_stack(settings) as elsewhere:
            # Even so, chance may deal all tasks of a run out to one of them.
            there = ran_on(elsewhere)
            for _ in range(RUNS):
                if len(places(there)) == 2:
                    break
                there = ran_on(elsewhere)

    expected = [{"parity": 0, "rows": 30, "n": 870}, {"parity": 1, "rows": 30, "n": 900}]
    assert here.results["report"] == there.results["report"] == expected
    assert len(places(there)) == 2, "an executor on each of the two workers"
    assert nodes(here) == set(), "nobody told the worker where it is"
    assert nodes(there) == {"spark-0", "spark-1"}, "executors say where they are"
    for came in (here, there):
        told = Counter(event.envelope.event_type for event in came.events if event.envelope.node_name == "work")
        assert told["frame.committed"] == ROWS // 5
        assert (told["stage.opened"], told["stage.closed"]) == (1, 1)
