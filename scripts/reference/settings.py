"""Settings of every service, from their READMEs; each variable that the code reads must be in one of them."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.reference.markdown import page

ROOT = Path(__file__).parents[2]
INTRODUCTION = """
Services read settings from their environment once, when they start; all bad ones are refused together, none is
repaired. A variable that ends in `_FILE` names a file with the value. On one machine, `settings.env` in the data
directory goes over what `noetl dev up` sets.
"""
_VARIABLE = re.compile(r"NOETL_[A-Z0-9_]+")
_READ = re.compile(r'env\.\w+\(\s*"(NOETL_[A-Z0-9_]+)"')


def settings_page() -> str:
    """Service by service."""
    kit = ROOT / "libs" / "noetl-servicekit"
    parts = [_part("Every service", kit / "README.md")]
    for folder in sorted((ROOT / "services").iterdir()):
        parts.append(_part(folder.name, folder / "README.md"))
    return page("Settings", INTRODUCTION, *parts)


def undocumented() -> list[str]:
    """Variables that a service reads and its README, or that of all services, does not name."""
    common = set(_VARIABLE.findall((ROOT / "libs" / "noetl-servicekit" / "README.md").read_text("utf-8")))
    missing = []
    for folder in sorted((ROOT / "services").iterdir()):
        named = common | set(_VARIABLE.findall((folder / "README.md").read_text("utf-8")))
        for source in sorted((folder / "src").rglob("*.py")):
            missing += [
                f"{folder.name}: {name}" for name in _READ.findall(source.read_text("utf-8")) if name not in named
            ]
    return missing


def _part(title: str, readme: Path) -> str:
    rows = [line for line in readme.read_text("utf-8").splitlines() if line.startswith("| `NOETL_")]
    two = [row for row in rows if row.count("|") == 3]
    three = [row for row in rows if row not in two]
    # Links of a README are relative to it.
    text = [f"## {title}"]
    if three:
        text.append("\n".join(["| variable | default | meaning |", "|---|---|---|", *three]))
    if two:
        text.append("\n".join(["| variable | meaning |", "|---|---|", *two]))
    return re.sub(r"\]\((?!http)[^)]*\)", "]", "\n\n".join(text)).replace("[ADR", "ADR")
