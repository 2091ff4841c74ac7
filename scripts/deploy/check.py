"""Checks everything that is deployed, with the tools that install_tools.sh brought. Run by `make deploy-check`.

Images with hadolint; charts with helm lint, and rendered with each values file for several versions of Kubernetes:
every object against the schema of that version, or of its CRD, and against the rules of `policy.py`; network policies
against the edges of the architecture; alerts with promtool.
"""

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from scripts.deploy.crds import CRD_KINDS, problems_of_crds
from scripts.deploy.edges import problems_of_edges
from scripts.deploy.policy import problems_of

ROOT = Path(__file__).resolve().parents[2]
CHARTS = ROOT / "deploy" / "k8s" / "charts"
TOOLS = ROOT / "build" / "deploy-tools"
SERVICES = ("api", "planner", "projector", "outbox-publisher", "reaper", "worker")
KUBERNETES = ("1.25", "1.31", "1.37")
OLDEST = "1.20"
"""Rendered only: branches for old servers must not break, but their schemas are not to be had."""

Problems = list[str]
Document = dict[str, Any]


def run(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A tool's exit code and everything that it says."""
    return subprocess.run(  # noqa: S603 - our own tools
        [str(word) for word in command],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


def tool(name: str) -> Path:
    return TOOLS / "bin" / name


def values_files(chart: str) -> list[Path | None]:
    """None is the chart's own values."""
    directory = CHARTS / chart
    return [None, *sorted(directory.glob("values-*.yaml")), *sorted((directory / "ci").glob("*.yaml"))]


def render(chart: str, values: Path | None, version: str) -> str:
    """The manifests, or an error that says which values broke them."""
    chosen: Sequence[str | Path] = () if values is None else ("-f", values)
    shown = run(
        tool("helm"), "template", "release", CHARTS / chart, "--namespace", "noetl", "--kube-version", version, *chosen
    )
    if shown.returncode != 0:
        raise ValueError(shown.stdout.strip())
    return shown.stdout


def check_images() -> Problems:
    files = sorted((ROOT / "services").glob("*/Dockerfile"))
    found = run(tool("hadolint"), *files)
    return found.stdout.splitlines() if found.returncode else []


def check_lint() -> Problems:
    problems: Problems = []
    for chart in (*SERVICES, "noetl"):
        for values in values_files(chart):
            chosen: Sequence[str | Path] = () if values is None else ("-f", values)
            found = run(tool("helm"), "lint", "--strict", "--quiet", CHARTS / chart, *chosen)
            if found.returncode:
                problems.append(f"{chart} {values.name if values else ''}: {found.stdout.strip()}")
    return problems


def check_rendered() -> Problems:
    cases = [
        (chart, values, version)
        for chart in (*SERVICES, "noetl")
        for values, version in itertools.product(values_files(chart), (OLDEST, *KUBERNETES))
    ]
    problems: Problems = []
    by_version: dict[str, list[Document]] = {version: [] for version in KUBERNETES}
    custom: list[Document] = []
    with ThreadPoolExecutor(max_workers=2) as pool:
        for (chart, values, version), rendered in zip(
            cases, pool.map(lambda case: _rendered(*case), cases), strict=True
        ):
            where = f"{chart} {values.name if values else 'values.yaml'} on {version}"
            if isinstance(rendered, str):
                problems.append(f"{where}: {rendered}")
                continue
            problems += [f"{where}: {problem}" for problem in problems_of(rendered)]
            custom += [one for one in rendered if one["kind"] in CRD_KINDS]
            if version in by_version:
                by_version[version] += [one for one in rendered if one["kind"] not in CRD_KINDS]
    problems += problems_of_crds(custom, TOOLS)
    for version, documents in by_version.items():
        problems += [f"on {version}: {problem}" for problem in _schema_problems(documents, version)]
    return problems


def _rendered(chart: str, values: Path | None, version: str) -> list[Document] | str:
    """The objects, or why there are none."""
    try:
        manifests = render(chart, values, version)
    except ValueError as exc:
        return str(exc)
    return [document for document in yaml.safe_load_all(manifests) if document]


def _schema_problems(documents: Sequence[Document], version: str) -> Problems:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump_all(documents, file)
        file.flush()
        found = run(TOOLS / "venv" / "bin" / "kubernetes-validate", "-k", version, "--strict", file.name)
    # A kind that it does not know is only a warning to it; to us it is a kind that nothing checks.
    return [line for line in found.stdout.splitlines() if not line.startswith("INFO")]


def check_alerts() -> Problems:
    problems: Problems = []
    for chart in SERVICES:
        for command, file in (("check", "alerts.yaml"), ("test", "alerts_test.yaml")):
            found = run(tool("promtool"), command, "rules", file, cwd=CHARTS / chart)
            if found.returncode:
                problems.append(f"{chart}: {found.stdout.strip()}")
    return problems


def update_dependencies() -> Problems:
    for chart in (*SERVICES, "noetl"):
        found = run(tool("helm"), "dependency", "update", CHARTS / chart)
        if found.returncode:
            return [f"{chart}: {found.stdout.strip()}"]
    return []


def check_edges() -> Problems:
    """All six side by side, the worker with executors of Spark."""
    executors = CHARTS / "worker" / "ci" / "spark-executors.yaml"
    documents: list[Document] = []
    for chart in SERVICES:
        rendered = _rendered(chart, executors if chart == "worker" else None, KUBERNETES[-1])
        if isinstance(rendered, str):
            return [f"{chart}: {rendered}"]
        documents += rendered
    return problems_of_edges(documents)


CHECKS: dict[str, Callable[[], Problems]] = {
    "images (hadolint)": check_images,
    "chart dependencies": update_dependencies,
    "charts (helm lint)": check_lint,
    "rendered objects (schemas, CRDs, policy)": check_rendered,
    "network policies (the edges of the architecture)": check_edges,
    "alerts (promtool check, promtool test)": check_alerts,
}


def main() -> int:
    """Run every check, and show all problems of all of them."""
    failed = False
    for name, check in CHECKS.items():
        problems = check()
        sys.stdout.write(f"{'FAILED' if problems else 'ok':7}{name}\n")
        sys.stdout.writelines(f"         {problem}\n" for problem in problems)
        sys.stdout.flush()
        failed = failed or bool(problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
