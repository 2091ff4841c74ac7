"""The reference is what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pages_are_fresh_and_every_setting_is_explained() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "scripts.reference_pages", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stderr
