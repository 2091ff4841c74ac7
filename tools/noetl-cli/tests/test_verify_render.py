"""Reports of evidence for people: true, whole, the same each time, and deaf to what stands in the evidence."""

from __future__ import annotations

import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from noetl_cli.__main__ import run
from noetl_cli.verify.bundle_report import MAX_ROWS, bundle_report
from noetl_cli.verify.check_bundle import CheckedBundle, check_bundle
from noetl_cli.verify.report_formats import FORMATS
from noetl_core.canonical import decode, encode
from noetl_core.evidence.bundle import FILES, INDEX, artifact, index_document
from noetl_core.evidence.findings import Finding
from noetl_core.surfaces.shapes import Surface
from noetl_core.upcasting.releases import UPCASTERS
from noetl_testkit.histories import EXECUTION
from noetl_testkit.verifying import Scene, keep, ref_to

HOSTILE = "</td><script src=https://evil.example/x.js></script>|`\n# HOLDS [a](http://evil.example) \x1b[2J\u202e"


@pytest.fixture
async def bundle(tmp_path: Path) -> Path:
    """Evidence that holds."""
    scene = Scene(ref_to(b"[1]"), ref_to(b"[2]"))
    await keep(scene, b"[1]")
    await keep(scene, b"[2]")
    assert (await scene.verify(tmp_path / "bundle")).findings == []
    return tmp_path / "bundle"


def change(bundle: Path, role: str, *path: Any, value: Any) -> None:
    """Somebody changes a document, and takes care that the digests are right."""
    file = bundle / FILES[role]
    document: Any = decode(file.read_bytes())
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_bytes(encode(document) + b"\n")
    index: Any = decode((bundle / INDEX).read_bytes())
    files = [artifact(one["role"], one["path"], (bundle / one["path"]).read_bytes()) for one in index["artifacts"]]
    (bundle / INDEX).write_bytes(encode(index_document(files)) + b"\n")


class Page(HTMLParser):
    """Which elements a browser would see, and what they would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def page(html: str) -> Page:
    parsed = Page()
    parsed.feed(html)
    parsed.close()
    return parsed


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_of_evidence_that_holds_has_all_there_is_to_say(
    bundle: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["verify", "render", str(bundle), "--format", form])

    told = capsys.readouterr().out
    readable = page(told).text if form == "html" else told.replace("\\_", "_")
    checked = check_bundle(bundle)
    assert code == 0
    assert "THIS EVIDENCE HOLDS" in "\n".join(readable.strip().splitlines()[:30])
    assert "DOES NOT HOLD" not in told
    assert checked.verdict is not None
    head: Any = decode((bundle / FILES["manifest"]).read_bytes())
    for value in (
        str(EXECUTION),
        f"1 to {checked.verdict.version}",
        UPCASTERS.digest,
        head["head"]["checksum"],
        head["started_at"],
        head["program"],
        checked.index_sha256,
        ref_to(b"[1]").sha256,
        *checked.verdict.replayed.values(),
        *map(str, Surface),
        *checked.found,
        *(one.sha256 for one in checked.files),
        *(one.path for one in checked.files),
        "noetl verify bundle DIR --index-sha256",
    ):
        assert value in readable, value


def test_the_first_words_of_every_format_are_the_verdict(bundle: Path) -> None:
    report = bundle_report(check_bundle(bundle))
    told = {form: write(report) for form, write in FORMATS.items()}

    assert told["markdown"].startswith("# THIS EVIDENCE HOLDS\n")
    assert told["text"].splitlines()[1] == "THIS EVIDENCE HOLDS"
    assert told["html"].split("<body>\n")[1].startswith('<p class="verdict holds">THIS EVIDENCE HOLDS</p>')


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_bundle_gives_the_same_report_wherever_it_is(bundle: Path, form: str, tmp_path: Path) -> None:
    here = FORMATS[form](bundle_report(check_bundle(bundle)))
    shutil.move(bundle, tmp_path / "elsewhere")

    assert FORMATS[form](bundle_report(check_bundle(tmp_path / "elsewhere"))) == here


@pytest.mark.parametrize("form", FORMATS)
def test_a_tampered_bundle_is_rendered_with_its_findings_and_fails(
    bundle: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    events = (bundle / FILES["events"]).read_bytes()
    (bundle / FILES["events"]).write_bytes(events.replace(b"first", b"worst", 1).replace(b"call", b"tall", 1))
    (bundle / "note.txt").write_text("in no index")

    code = run(["verify", "render", str(bundle), "--format", form])

    told = capsys.readouterr().out
    readable = page(told).text if form == "html" else told.replace("\\_", "_")
    assert code == 1
    assert "THIS EVIDENCE DOES NOT HOLD" in "\n".join(readable.strip().splitlines()[:30])
    assert "THIS EVIDENCE HOLDS" not in readable
    for one in ("bundle.changed", "bundle.unlisted", "event.changed", "CHANGED:", "IN NO INDEX", "FAILED", "BROKEN"):
        assert one in readable, one


@pytest.mark.parametrize("form", FORMATS)
def test_what_somebody_wrote_into_the_evidence_is_shown_and_not_obeyed(bundle: Path, form: str) -> None:
    change(bundle, "live_rows", "rows", "commands", 0, "step", value=HOSTILE)
    change(bundle, "manifest", "program", value=HOSTILE)
    change(bundle, "replay", "payloads", 0, "media_type", value=HOSTILE)
    (bundle / "<img src=x onerror=alert(1)>").write_text("a name of a file is text of somebody too")

    told = FORMATS[form](bundle_report(check_bundle(bundle)))

    assert told.splitlines()[0 if form == "markdown" else 1].count("HOLDS") == 0
    assert "\x1b" not in told
    assert "\u202e" not in told
    assert "evil.example" in told
    if form == "html":
        parsed = page(told)
        assert parsed.tags == {
            "html", "head", "meta", "title", "style", "body", "p", "h1", "h2", "table", "tr", "th", "td", "pre",
        }  # fmt: skip
        assert parsed.attributes == {"lang", "charset", "http-equiv", "content", "class"}
        assert "</td><script src=https://evil.example/x.js></script>" in parsed.text
    if form == "markdown":
        assert "<" not in told
        assert "://" not in told
        assert "\n# HOLDS" not in told
        columns = {line.replace("\\|", "").count("|") for line in told.splitlines() if "evil.example" in line}
        assert columns <= {3, 5, 7}


@pytest.mark.parametrize(
    ("role", "path", "value"),
    [
        ("manifest", ("schema_version",), 99),
        ("manifest", ("config",), "nobody"),
        ("manifest", ("config", "execution_id"), "9" * 5_000),
        ("manifest", ("steps",), [1, None, {"name": {}}]),
        ("replay", ("payloads",), {"a": 1}),
        ("replay", ("rows",), None),
        ("live_rows", ("row_counts",), [[]]),
        ("live_rows", ("rows",), "none"),
        ("live_checksums", ("upcasters",), None),
    ],
)
def test_documents_of_any_shape_are_rendered(bundle: Path, role: str, path: tuple[str, ...], value: Any) -> None:
    change(bundle, role, *path, value=value)

    report = bundle_report(check_bundle(bundle))

    assert not report.holds
    for write in FORMATS.values():
        assert "DOES NOT HOLD" in write(report)


@pytest.mark.parametrize("role", FILES)
@pytest.mark.parametrize("left", [b"", b"[]", b"\xff\xfe"])
def test_a_bundle_without_one_of_its_files_is_rendered(bundle: Path, role: str, left: bytes) -> None:
    (bundle / FILES[role]).write_bytes(left)
    spoilt = bundle_report(check_bundle(bundle))
    (bundle / FILES[role]).unlink()
    gone = bundle_report(check_bundle(bundle))

    assert not spoilt.holds
    assert gone.holds == (role == "projector")


def test_another_bundle_than_the_one_that_was_told_of_does_not_hold(bundle: Path) -> None:
    assert run(["verify", "render", str(bundle), "--index-sha256", "0" * 64]) == 1
    assert run(["verify", "render", str(bundle), "--index-sha256", check_bundle(bundle).index_sha256]) == 0


def test_what_is_no_bundle_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "render", str(tmp_path)]) == 2
    assert "is no evidence" in capsys.readouterr().err


def test_a_report_goes_into_a_file_and_never_into_the_bundle(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    out.write_text("of yesterday")

    assert run(["verify", "render", str(bundle), "--format", "html", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"THIS EVIDENCE HOLDS, report in {out}\n"
    assert out.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert run(["verify", "render", str(bundle), "--out", str(bundle / "payloads" / "report.md")]) == 2
    assert run(["verify", "render", str(bundle), "--out", str(tmp_path / "nowhere" / "report.md")]) == 2
    assert run(["verify", "render", str(bundle), "--out", str(out / "below-a-file.md")]) == 2
    assert run(["verify", "render", str(bundle), "--out", str(tmp_path / ("long" * 63))]) == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bundle", "report.html"]
    assert check_bundle(bundle).findings == []


def test_a_report_does_not_grow_without_end() -> None:
    findings = [Finding(code="event.changed", message="x" * 10_000, stream_version=one) for one in range(MAX_ROWS + 5)]
    checked = CheckedBundle(index_sha256="0" * 64, found={"fetch": findings})

    told = FORMATS["text"](bundle_report(checked))

    assert f"DOES NOT HOLD: {MAX_ROWS + 5} FINDINGS" in told
    assert "and 5 more" in told
    assert "(10000 characters)" in told
