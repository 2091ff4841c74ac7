"""The registry in `telemetry/` and the source name the same metrics, log events and spans."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SERVICES = ("api", "planner", "projector", "outbox-publisher", "reaper", "worker")
LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "error",
}
LOGGERS = {"logger", "_logger"}
METRIC_MAKERS = {"counter", "gauge", "histogram"}
BASE_UNITS = {"seconds", "bytes", "ratio"}
OTHER_UNITS = re.compile(r"_(ms|millis|milliseconds|us|micros|minutes|hours|kb|mb|kib|mib|percent)(_|$)")
DOTTED = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One place in the source that emits something."""

    name: str | None
    """None where it is not a literal."""
    where: str
    owner: str | None
    """The service whose source it is, None for a library."""
    kind: str
    """The level of an event, the type of a metric, the kind of a span."""
    help: str | None = None
    details: frozenset[str] | None = None
    """Fields, labels or attributes; None where they cannot be read off the source."""


@dataclass(slots=True)
class Uses:
    logs: list[Use] = field(default_factory=list)
    metrics: list[Use] = field(default_factory=list)
    spans: list[Use] = field(default_factory=list)


def scan(source: str, *, where: str = "snippet.py", owner: str | None = None) -> Uses:
    """What a module emits, read off its syntax tree."""
    uses = Uses()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        place = f"{where}:{node.lineno}"
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        receiver = _terminal(node.func.value) if isinstance(node.func, ast.Attribute) else None
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        name = _literal(node.args[0]) if node.args else None
        if called in LEVELS and receiver in LOGGERS:
            fields = None if None in keywords else frozenset(str(key) for key in keywords) - {"exc_info", "stack_info"}
            uses.logs.append(Use(name=name, where=place, owner=owner, kind=LEVELS[called], details=fields))
        elif called in METRIC_MAKERS and (receiver == "metrics" or (name or "").startswith("noetl_")):
            labels = node.args[2] if len(node.args) > 2 else keywords.get("labels", ast.Tuple(elts=[]))
            help_text = _literal(node.args[1]) if len(node.args) > 1 else None
            uses.metrics.append(
                Use(name=name, where=place, owner=owner, kind=called, help=help_text, details=_literals(labels))
            )
        elif called == "span" and receiver in (None, "tracing"):
            kind = keywords.get("kind")
            attributes = keywords.get("attributes", ast.Dict(keys=[], values=[]))
            uses.spans.append(
                Use(
                    name=name,
                    where=place,
                    owner=owner,
                    kind=kind.attr.lower() if isinstance(kind, ast.Attribute) else "internal",
                    details=_literals(attributes),
                )
            )
    return uses


def _terminal(node: ast.expr) -> str | None:
    """`self._logger.bind(x=1)` is about `_logger`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _terminal(node.func.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _literal(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _literals(node: ast.expr) -> frozenset[str] | None:
    if isinstance(node, ast.Dict):
        nodes: list[ast.expr | None] = [*node.keys]
    elif isinstance(node, ast.Tuple | ast.List):
        nodes = [*node.elts]
    else:
        return None
    values = [_literal(one) for one in nodes]
    return frozenset(value for value in values if value is not None) if None not in values else None


def modules() -> Iterator[tuple[Path, str | None]]:
    for path in sorted([*ROOT.glob("libs/*/src/**/*.py"), *ROOT.glob("services/*/src/**/*.py")]):
        parts = path.relative_to(ROOT).parts
        is_generated = parts[:4] == ("libs", "noetl-contracts", "src", "noetl")
        if not is_generated and parts[1] != "noetl-testkit":
            yield path, parts[1] if parts[0] == "services" else None


@pytest.fixture(scope="module")
def uses() -> Uses:
    found = Uses()
    for path, owner in modules():
        one = scan(path.read_text("utf-8"), where=str(path.relative_to(ROOT)), owner=owner)
        found.logs += one.logs
        found.metrics += one.metrics
        found.spans += one.spans
    return found


def registry(file: str, section: str, key: str) -> dict[str, dict[str, Any]]:
    document = yaml.safe_load((ROOT / "telemetry" / file).read_text("utf-8"))
    names = [entry[key] for entry in document[section]]
    assert sorted(names) == sorted(set(names)), f"{file} declares a name twice"
    return {entry[key]: entry for entry in document[section]}


@pytest.fixture(scope="module")
def metrics() -> dict[str, dict[str, Any]]:
    return registry("metrics.yaml", "metrics", "name")


@pytest.fixture(scope="module")
def events() -> dict[str, dict[str, Any]]:
    return registry("logs.yaml", "events", "event")


@pytest.fixture(scope="module")
def spans() -> dict[str, dict[str, Any]]:
    return registry("spans.yaml", "spans", "span")


def differences(uses: Iterable[Use], declared: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is emitted and not declared, declared and not emitted, or said of the wrong service."""
    problems, owners = [], dict[str, set[str | None]]()
    for use in uses:
        if use.name is None:
            problems.append(f"{use.where}: the name must be a literal, so that it can be found")
        elif use.name not in declared:
            problems.append(f"{use.where}: {use.name!r} ({use.kind}) is not declared")
        else:
            owners.setdefault(use.name, set()).add(use.owner)
    for name, entry in declared.items():
        emitting, said = owners.get(name), set(entry["services"])
        if emitting is None:
            problems.append(f"{name!r} is declared, and nothing emits it")
        elif said != {"all"} and not (emitting - {None} <= said and (None in emitting or emitting == said)):
            problems.append(f"{name!r} is declared for {sorted(said)}, and emitted by {sorted(map(str, emitting))}")
    return problems


def assert_none(problems: list[str]) -> None:
    if problems:
        pytest.fail("\n".join(["telemetry/ and the source differ:", *problems]), pytrace=False)


def test_every_log_event_is_declared_and_every_declared_one_is_logged(
    uses: Uses, events: dict[str, dict[str, Any]]
) -> None:
    # Not logged by a call: it is the name that a library's own message gets.
    logged = {name: entry for name, entry in events.items() if name != "library.message"}
    assert_none(differences(uses.logs, logged))


def test_every_metric_is_declared_and_every_declared_one_is_made(
    uses: Uses, metrics: dict[str, dict[str, Any]]
) -> None:
    made = [use for use in uses.metrics if "noetl_servicekit/metrics.py" not in use.where]
    assert_none(differences(made, metrics))


def test_every_span_is_declared_and_every_declared_one_is_made(uses: Uses, spans: dict[str, dict[str, Any]]) -> None:
    assert_none(differences(uses.spans, spans))


def test_log_events_have_the_declared_level_and_no_other_fields(uses: Uses, events: dict[str, dict[str, Any]]) -> None:
    common = set(yaml.safe_load((ROOT / "telemetry" / "logs.yaml").read_text("utf-8"))["common_fields"])
    for use in uses.logs:
        if use.name in events:
            entry = events[use.name]
            assert use.kind == entry["level"], use
            assert use.details is None or use.details <= {*entry["fields"], *common}, use


def test_metrics_have_the_declared_type_labels_and_help(uses: Uses, metrics: dict[str, dict[str, Any]]) -> None:
    for use in uses.metrics:
        if use.name in metrics:
            entry = metrics[use.name]
            assert (use.kind, use.help) == (entry["type"], entry["help"]), use
            assert use.details is None or use.details == set(entry["labels"]), use


def test_spans_have_the_declared_kind_and_no_other_attributes(uses: Uses, spans: dict[str, dict[str, Any]]) -> None:
    for use in uses.spans:
        if use.name in spans:
            entry = spans[use.name]
            assert use.kind == entry["kind"], use
            assert use.details is None or use.details <= set(entry["attributes"]), use


def test_the_registry_follows_its_own_schema(
    metrics: dict[str, dict[str, Any]], events: dict[str, dict[str, Any]], spans: dict[str, dict[str, Any]]
) -> None:
    schemas: tuple[tuple[dict[str, dict[str, Any]], set[str], set[str]], ...] = (
        (metrics, {"name", "type", "unit", "labels", "services", "help"}, set()),
        (events, {"event", "level", "fields", "services", "help"}, set()),
        (spans, {"span", "kind", "attributes", "services", "help"}, {"emitted_as"}),
    )
    for entries, required, optional in schemas:
        for name, entry in entries.items():
            assert required <= set(entry) <= required | optional, name
            assert entry["help"].endswith("."), name
            assert set(entry["services"]) == {"all"} or set(entry["services"]) <= set(SERVICES), name
            assert entry["services"], name


def test_metrics_are_named_as_prometheus_wants_them(metrics: dict[str, dict[str, Any]]) -> None:
    for name, entry in metrics.items():
        assert re.fullmatch(r"noetl(_[a-z0-9]+)+", name), name
        assert not OTHER_UNITS.search(name), f"{name}: base units only"
        assert (entry["type"] == "counter") == name.endswith("_total"), name
        assert not name.endswith(("_count", "_sum", "_bucket")), f"{name}: a histogram adds these"
        stem = name.removesuffix("_total")
        for unit in BASE_UNITS:
            assert (entry["unit"] == unit) == stem.endswith(f"_{unit}"), name
        for label in entry["labels"]:
            assert re.fullmatch(r"[a-z][a-z0-9_]*", label), name
            assert label not in {"execution_id", "event_id", "command_id", "user"}, f"{name}: {label} has no bound"


def test_events_and_spans_are_dotted_words(events: dict[str, dict[str, Any]], spans: dict[str, dict[str, Any]]) -> None:
    for name in (*events, *spans):
        assert DOTTED.fullmatch(name), name
    for name, entry in events.items():
        assert entry["level"] in {*LEVELS.values(), "any"}, name
    for name, entry in spans.items():
        assert entry["kind"] in {"internal", "server", "client", "producer", "consumer"}, name
        re.compile(entry.get("emitted_as", ""))


SNIPPET = """
logger.info("desk.opened", name=name)
self._logger.bind(a=1).exception("desk.failed", exc_info=exc, **more)
logger.warning(f"desk.{what}")
desk.info("not.a.logger")
self.things = metrics.counter("noetl_things_total", "Things.", ("kind",))
self.queue = metrics.gauge(NAME, "Items.")
with span("desk.work", kind=SpanKind.CLIENT, attributes={"noetl.shard": 7}):
    with span("desk.think"), match.span(1):
        pass
"""


def test_the_scan_sees_what_a_module_emits() -> None:
    uses = scan(SNIPPET, owner="api")

    # The tree is walked breadth first, so statements come before what stands inside of them.
    assert [(use.name, use.kind, use.details) for use in uses.logs] == [
        ("desk.opened", "info", frozenset({"name"})),
        ("desk.failed", "error", None),
        (None, "warning", frozenset()),
    ]
    assert [(use.name, use.kind, use.help, use.details) for use in uses.metrics] == [
        ("noetl_things_total", "counter", "Things.", frozenset({"kind"})),
        (None, "gauge", "Items.", frozenset()),
    ]
    assert [(use.name, use.kind, use.details) for use in uses.spans] == [
        ("desk.work", "client", frozenset({"noetl.shard"})),
        ("desk.think", "internal", frozenset()),
    ]


def test_differences_are_found_both_ways() -> None:
    entry = {"services": ["planner"]}
    declared = {"desk.opened": {"services": ["api"]}, "desk.failed": entry, "desk.closed": entry}

    assert differences(scan(SNIPPET, owner="api").logs, declared) == [
        "snippet.py:4: the name must be a literal, so that it can be found",
        "'desk.failed' is declared for ['planner'], and emitted by ['api']",
        "'desk.closed' is declared, and nothing emits it",
    ]
    assert differences(scan(SNIPPET).spans, {}) == [
        "snippet.py:8: 'desk.work' (client) is not declared",
        "snippet.py:9: 'desk.think' (internal) is not declared",
    ]
