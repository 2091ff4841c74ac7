"""Writes deploy/grafana/*.json from deploy/grafana/dashboards.yaml. Run by `make dashboards`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

DIRECTORY = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
_COLUMNS, _WIDTH, _HEIGHT = 4, 6, 8
_SOURCES = {"logs": "loki", "traces": "tempo"}


def dashboards() -> Mapping[str, str]:
    """The text of each file."""
    described = yaml.safe_load((DIRECTORY / "dashboards.yaml").read_text(encoding="utf-8"))
    return {
        f"{name}.json": json.dumps(_dashboard(name, one), indent=2, ensure_ascii=False) + "\n"
        for name, one in described.items()
    }


def expressions() -> Iterator[str]:
    """Every PromQL query of every panel."""
    described = yaml.safe_load((DIRECTORY / "dashboards.yaml").read_text(encoding="utf-8"))
    for one in described.values():
        for panels in one["rows"].values():
            for _, unit, *queries in panels:
                if unit not in _SOURCES:
                    yield from (query.rpartition(" # ")[0] for query in queries)


def _dashboard(name: str, described: Mapping[str, Any]) -> Mapping[str, Any]:
    kinds = {"prometheus"} | {
        _SOURCES[unit] for panels in described["rows"].values() for _, unit, *_ in panels if unit in _SOURCES
    }
    sources = [{"name": kind, "type": "datasource", "query": kind} for kind in sorted(kinds)]
    variables = [
        {"name": variable, "type": "textbox", "query": default, "current": {"text": default, "value": default}}
        for variable, default in described.get("variables", {}).items()
    ]
    return {
        "uid": f"noetl-{name}",
        "title": described["title"],
        "tags": ["noetl"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [*sources, *variables]},
        "panels": list(_panels(described["rows"])),
    }


def _panels(rows: Mapping[str, Sequence[Sequence[str]]]) -> Iterator[Mapping[str, Any]]:
    number, top = 0, 0
    for title, panels in rows.items():
        number += 1
        yield {"id": number, "type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}}
        top += 1
        for index, (name, unit, *queries) in enumerate(panels):
            number += 1
            wide = unit in _SOURCES
            column = 0 if wide else index % _COLUMNS
            place = {"x": column * _WIDTH, "y": top, "w": 24 if wide else _WIDTH, "h": _HEIGHT}
            yield _panel(number, name, unit, queries, place)
            if wide or column == _COLUMNS - 1 or index == len(panels) - 1:
                top += _HEIGHT


def _panel(number: int, name: str, unit: str, queries: Sequence[str], place: Mapping[str, int]) -> Mapping[str, Any]:
    kind = _SOURCES.get(unit, "prometheus")
    source = {"type": kind, "uid": f"${{{kind}}}"}
    targets = []
    for index, query in enumerate(queries):
        expression, _, legend = query.rpartition(" # ") if kind == "prometheus" else (query, "", "")
        asked = {"query": expression, "queryType": "traceql"} if kind == "tempo" else {"expr": expression}
        targets.append({"refId": chr(ord("A") + index), "datasource": source, **asked, "legendFormat": legend})
    return {
        "id": number,
        "type": unit if unit in _SOURCES else "timeseries",
        "title": name,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {} if unit in _SOURCES else {"unit": unit, "min": 0}, "overrides": []},
        "targets": targets,
    }


def main() -> None:
    """Write all files, and remove those that are no longer described."""
    made = dashboards()
    for file in DIRECTORY.glob("*.json"):
        if file.name not in made:
            file.unlink()
    for name, text in made.items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
