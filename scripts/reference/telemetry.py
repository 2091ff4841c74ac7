"""Metrics, log events and spans, from the registry that the source is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from scripts.reference.markdown import code, codes, page, table

ROOT = Path(__file__).parents[2]
INTRODUCTION = """
What processes tell about themselves. Metrics are on `/metrics` of each process' ops port, logs are JSON lines on
stderr, spans go to the collector that `OTEL_EXPORTER_OTLP_ENDPOINT` names. The registry is in
[telemetry](../../telemetry).
"""


def telemetry_page() -> str:
    """Three tables."""
    metrics = [
        (code(one["name"]), one["type"], codes(one["labels"]), ", ".join(one["services"]), one["help"])
        for one in _read("metrics")
    ]
    logs = [
        (code(one["event"]), one["level"], codes(one["fields"]), ", ".join(one["services"]), one["help"])
        for one in _read("logs")
    ]
    spans = [
        (code(one["span"]), one["kind"], codes(one["attributes"]), ", ".join(one["services"]), one["help"])
        for one in _read("spans")
    ]
    return page(
        "Telemetry",
        INTRODUCTION,
        "## Metrics\n\n" + table(("metric", "type", "labels", "services", "means"), metrics),
        "## Log events\n\n" + table(("event", "level", "fields", "services", "means"), logs),
        "## Spans\n\n" + table(("span", "kind", "attributes", "services", "means"), spans),
    )


def _read(name: str) -> list[dict[str, Any]]:
    document = yaml.safe_load((ROOT / "telemetry" / f"{name}.yaml").read_text("utf-8"))
    found: list[dict[str, Any]] = document[{"logs": "events"}.get(name, name)]
    return found
