"""What the documents say about the repository is true."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_index_of_decisions_names_each_one_with_its_title() -> None:
    folder = ROOT / "docs" / "adr"
    listed = dict(re.findall(r"^- \[(.+?)\]\((.+?)\)$", (folder / "README.md").read_text("utf-8"), re.MULTILINE))
    titles = {path.read_text("utf-8").splitlines()[0].removeprefix("# "): path.name for path in folder.glob("0*.md")}
    assert listed == titles
    for path in folder.glob("0*.md"):
        assert "\nStatus: accepted" in path.read_text("utf-8"), path.name


def test_links_between_documents_lead_somewhere() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in tracked.stdout.split():
        document = ROOT / name
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text("utf-8")):
            assert (document.parent / target).exists(), f"{name} links to {target}"


def test_every_make_target_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
        for words in re.findall(r"`make ([a-z ]+)`", (ROOT / name).read_text("utf-8")):
            assert set(words.split()) <= targets, f"{name} speaks of make {words}"


def test_no_committed_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = subprocess.run(
        [
            "git",
            "grep",
            "-nE",
            r"pypi\.org|pythonhosted|registry\.npmjs|/(work|root|home)/[a-z.]",
            "--",
            ":!tests/repo",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
