"""Writes docs/reference from the code: `python -m scripts.reference_pages`, with --check to compare only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reference.api import api_page
from scripts.reference.cli import cli_page
from scripts.reference.errors import errors_page
from scripts.reference.events import events_page
from scripts.reference.language import language_page, tools_page
from scripts.reference.settings import settings_page, undocumented
from scripts.reference.telemetry import telemetry_page

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "language.md": language_page,
    "tools.md": tools_page,
    "errors.md": errors_page,
    "api.md": api_page,
    "cli.md": cli_page,
    "events.md": events_page,
    "settings.md": settings_page,
    "telemetry.md": telemetry_page,
}


def main(arguments: list[str]) -> int:
    """Exit code 1 if a page is stale, or a setting is nowhere explained."""
    missing = undocumented()
    for name in missing:
        sys.stderr.write(f"not in the README of its service: {name}\n")
    stale = []
    for name, make in PAGES.items():
        file, text = FOLDER / name, make()
        if not file.exists() or file.read_text("utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                file.write_text(text, "utf-8")
    if "--check" in arguments and stale:
        sys.stderr.write(f"stale: {', '.join(stale)}; run make docs\n")
        return 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
