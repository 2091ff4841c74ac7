"""The HTTP routes and the gRPC contracts that api and the other services serve."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.http.app import make_app
from noetl_api.telemetry import ApiMetrics
from noetl_servicekit.health import Health
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.tokens import Tokens

from scripts.reference.markdown import code, page, table

ROOT = Path(__file__).parents[2]
INTRODUCTION = """
Over HTTP: `Authorization: Bearer TOKEN` with every call but `/health`; the token decides tenant, organization and
role (reader, writer, admin, service), and what belongs to others does not exist. Ids are text. Lists come in pages.
Errors are problem+json, see [errors](errors.md). A running api serves the whole description at `/api/openapi.json`,
and shows it at `/api/docs`.
"""
_SERVICE = re.compile(r"((?://[^\n]*\n)*)service (\w+) \{(.*?)\n\}", re.DOTALL)
_METHOD = re.compile(r"((?:[ ]*//[^\n]*\n)+)[ ]*rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\)")


def api_page() -> str:
    """Routes, bodies, contracts."""
    description = _description()
    return page("API", INTRODUCTION, _routes(description), _bodies(description), *_contracts())


def _description() -> dict[str, Any]:
    app = make_app(
        use_cases=cast("UseCases", None),
        tokens=cast("Tokens", None),
        health=cast("Health", None),
        metrics=ApiMetrics(MetricSet()),
    )
    return app.openapi()


def _routes(description: dict[str, Any]) -> str:
    rows = []
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            parameters = [
                one["name"]
                for one in operation.get("parameters", ())
                if one["in"] == "query" and one["name"] not in ("tenant_id", "organization_id")
            ]
            summary = (operation.get("description") or "").splitlines()[0]
            rows.append((code(f"{method.upper()} {path}"), ", ".join(parameters), _body(operation), summary))
    return "## HTTP\n\n" + table(("route", "query", "body", "does"), rows)


def _body(operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    names = re.findall(r"#/components/schemas/(\w+)", str(content))
    return ", ".join(code(name) for name in names)


def _bodies(description: dict[str, Any]) -> str:
    blocks = ["## Bodies of requests"]
    for name, schema in sorted(description["components"]["schemas"].items()):
        if not name.endswith("Body"):
            continue
        required = schema.get("required", ())
        rows = [
            (code(field) + (" (required)" if field in required else ""), str(about.get("description", "")))
            for field, about in schema["properties"].items()
        ]
        blocks.append(f"### {name}\n\n{table(('field', 'meaning'), rows)}")
    return "\n\n".join(blocks)


def _contracts() -> list[str]:
    blocks = [
        "## gRPC\n\nThe contracts are in [protos](../../protos), with every field explained; servers have reflection."
    ]
    for file in sorted((ROOT / "protos").rglob("*.proto")):
        text = file.read_text("utf-8")
        package = re.search(r"^package ([\w.]+);", text, re.MULTILINE)
        for comment, service, methods in _SERVICE.findall(text):
            rows = [
                (
                    code(f"{name}({'stream ' if sends else ''}{takes}) → {'stream ' if answers else ''}{gives}"),
                    _said(says),
                )
                for says, name, sends, takes, answers, gives in _METHOD.findall(methods)
            ]
            where = f"{package.group(1)}.{service}" if package else service
            blocks.append(f"### {where}\n\n{_said(comment)}\n\n{table(('method', 'does'), rows)}")
    return blocks


def _said(comment: str) -> str:
    return " ".join(line.strip().removeprefix("//").strip() for line in comment.strip().splitlines())
