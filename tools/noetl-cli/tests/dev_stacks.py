"""Stacks of tiny scripts, loaded by real supervisors in the tests of `noetl dev`."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from noetl_cli.dev.component import Component, Part, Task
from noetl_cli.dev.nats import NatsNode
from noetl_cli.dev.ports import remembered_ports
from noetl_cli.dev.postgres import PostgresCluster
from noetl_cli.dev.sql import execute

# Says when it starts and stops, becomes ready the way a service does, and obeys BEHAVIOUR.
SCRIPT = """
import json, os, signal, subprocess, sys
behaviour = os.environ["BEHAVIOUR"]
name = os.environ["NAME"]
def record(what):
    with open(os.environ["EVENTS"], "a") as file:
        file.write(f"{what} {name}\\n")
def stop(*_):
    record("stop")
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else stop)
print(f"{name} says hello", flush=True)
record("start")
if behaviour == "broken":
    sys.exit("the configuration makes no sense")
if behaviour == "parent":
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"])
    record(f"child {child.pid} of")
if behaviour != "silent":
    ready = os.environ["NOETL_READY_FILE"]
    with open(ready + ".new", "w") as file:
        json.dump({"ports": {"http": 8080}}, file)
    os.replace(ready + ".new", ready)
while True:
    signal.pause()
"""


def component(
    home: Path,
    name: str,
    *,
    behaviour: str = "good",
    depends_on: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    ready_seconds: float = 30.0,
    stop_seconds: float = 10.0,
) -> Component:
    return Component(
        name=name,
        argv=(sys.executable, "-I", "-S", "-c", SCRIPT),
        env={"NAME": name, "BEHAVIOUR": behaviour, "EVENTS": str(events_file(home)), **(env or {})},
        depends_on=depends_on,
        ready_seconds=ready_seconds,
        stop_seconds=stop_seconds,
    )


def events_file(home: Path) -> Path:
    return home / "events.txt"


def chain(home: Path) -> Sequence[Part]:
    """Three components and a task, one after the other."""

    def migrate() -> None:
        with events_file(home).open("a") as file:
            file.write("run migrate\n")

    return [
        component(home, "worker", depends_on=("api",)),
        component(home, "api", depends_on=("migrate", "database")),
        Task(name="migrate", run=migrate, depends_on=("database",)),
        component(home, "database"),
    ]


def with_stubborn(home: Path) -> Sequence[Part]:
    return [component(home, "stubborn", behaviour="stubborn", stop_seconds=0.3), component(home, "good")]


def with_silent(home: Path) -> Sequence[Part]:
    return [
        component(home, "good"),
        component(home, "silent", behaviour="silent", depends_on=("good",), ready_seconds=3.0),
        component(home, "late", depends_on=("silent",)),
    ]


def with_broken(home: Path) -> Sequence[Part]:
    return [component(home, "good"), component(home, "broken", behaviour="broken")]


def with_parent(home: Path) -> Sequence[Part]:
    return [component(home, "parent", behaviour="parent")]


def with_failing_task(home: Path) -> Sequence[Part]:
    def migrate() -> None:
        raise ValueError("table is already there")

    return [component(home, "good"), Task(name="migrate", run=migrate, depends_on=("good",))]


def slow(home: Path) -> Sequence[Part]:
    """Time for a second `up` to arrive while the first is at work."""
    return [Task(name="nap", run=lambda: time.sleep(0.5)), component(home, "good", depends_on=("nap",))]


def servers(home: Path) -> Sequence[Part]:
    """The real servers, and a first use of the database."""
    ports = remembered_ports(home / "ports.json", ["postgres", "nats", "monitoring"])
    cluster = PostgresCluster(directory=home / "postgres", port=ports["postgres"])
    node = NatsNode(directory=home / "nats", port=ports["nats"], monitoring_port=ports["monitoring"])

    def migrate() -> None:
        execute(cluster.dsn(), "CREATE TABLE IF NOT EXISTS kept (n int)", "INSERT INTO kept VALUES (1)")

    return [
        cluster.component(),
        node.component(),
        Task(name="migrate", run=migrate, depends_on=("postgres",)),
        component(home, "api", depends_on=("migrate", "nats")),
    ]


def undefined(home: Path) -> Sequence[Part]:
    raise LookupError(f"no definition for {home.name}")
