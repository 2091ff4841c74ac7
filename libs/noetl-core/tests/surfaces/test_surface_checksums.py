from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from noetl_core.fold import empty
from noetl_core.surfaces.checksums import EMPTY, SurfaceChecksum, checksum_document, surface_checksum, total_checksum
from noetl_core.surfaces.shapes import Surface
from noetl_core.surfaces.surface_fold import SurfaceFold
from noetl_testkit.histories import EXECUTION, History, two_steps


def test_a_checksum_is_what_the_documentation_says() -> None:
    rows: dict[str, Any] = {"b": {"n": 1}, "a": {"z": [], "é": "x"}, "\U0001f600": {}, "\uffee": {}}
    lines = '{"z":[],"é":"x"}\n{"n":1}\n{}\n{}\n'

    assert surface_checksum(rows) == hashlib.sha256(lines.encode()).hexdigest()
    assert surface_checksum({}) == EMPTY == hashlib.sha256(b"").hexdigest()
    each = {str(surface): EMPTY for surface in Surface}
    spelt = json.dumps(each, sort_keys=True, separators=(",", ":"))
    assert total_checksum(each) == hashlib.sha256(spelt.encode()).hexdigest()


def test_rows_that_come_out_of_order_are_refused() -> None:
    checksum = SurfaceChecksum()
    checksum.add("b", {})

    for late in ("b", "a"):
        with pytest.raises(ValueError, match="late"):
            checksum.add(late, {})
    with pytest.raises(ValueError, match="a total is over"):
        total_checksum({"execution": EMPTY})


def test_a_document_tells_by_which_rules_it_was_made() -> None:
    folding = SurfaceFold(empty(EXECUTION))
    folding.add_all(two_steps(History()).recorded)

    document = checksum_document(folding.changed(), execution_id=EXECUTION, stream_version=18, upcasters="abc")

    assert document["upcasters"] == "abc"
    assert document["rows"] == {
        "execution": 1,
        "stages": 0,
        "frames": 0,
        "commands": 2,
        "business_objects": 0,
        "loops": 0,
    }
    assert document["checksum"] == total_checksum(document["surfaces"])  # type: ignore[arg-type]
