"""Turn the text of a playbook into a checked model, or into the list of everything that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from noetl_core.errors import PlaybookInvalid, Problem
from noetl_core.playbook.fields import Fields, check_templates
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.graph import build_graph
from noetl_core.playbook.model import Playbook
from noetl_core.playbook.source import MAX_PROBLEMS, Path, read_source
from noetl_core.playbook.steps import Workflow, read_workflow
from noetl_core.playbook.vocabulary import (
    API_VERSION,
    CONTEXT_NAMES,
    DOCUMENT_KIND,
    EXECUTOR,
    EXECUTOR_SPEC,
    OLDER_API_VERSIONS,
    PROFILES,
    ROOT,
)


def parse_playbook(document: str | bytes) -> tuple[Playbook, tuple[Problem, ...]]:
    """The playbook and the warnings about it; one that cannot run is refused with every problem that it has."""
    source = read_source(document)
    findings = Findings()
    root = Fields.read(source.value, (), findings, title="a playbook")
    playbook = None if root is None else _read_playbook(root)
    problems = [*source.problems, *findings.errors(source.text)]
    if problems or playbook is None:
        problems.sort(key=lambda problem: (problem.line or 0, problem.column or 0))
        raise PlaybookInvalid(problems[:MAX_PROBLEMS])
    return playbook, tuple(findings.warnings(source.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Identity:
    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """What the executor section says about the workflow."""

    entry_step: str | None = None
    final_step: str | None = None
    no_next_is_error: bool = False


def _read_playbook(root: Fields) -> Playbook | None:
    root.check_keys(ROOT)
    _check_head(root)
    identity = _read_identity(root)
    workload = root.below("workload")
    variables = {} if workload is None else workload.values
    # Only warned about, since a variable that cannot be rendered stays as it is written.
    check_templates(variables, ("workload",), root.findings, only_warn=True)
    workflow = read_workflow(root)
    settings = _read_executor(root, workflow)
    _check_mentions(workflow, root.findings)
    if root.findings.has_errors or identity is None:
        return None
    playbook = Playbook(
        name=identity.name,
        path=identity.path,
        metadata=root.values["metadata"] or {},  # type: ignore[arg-type]  # a map, or there would be an error
        workload=variables,
        entry_step=settings.entry_step or next(iter(workflow.steps)),
        final_step=settings.final_step,
        no_next_is_error=settings.no_next_is_error,
        steps=workflow.steps,
    )
    _warn_about_names(playbook, workflow, root.findings)
    _warn_about_unreachable(playbook, workflow, root.findings)
    return playbook


def _check_head(root: Fields) -> None:
    version = root.name("apiVersion", title="a playbook")
    if version in OLDER_API_VERSIONS:
        message = f"{version} is read as {API_VERSION}"
        root.findings.warn("older_form", message, ("apiVersion",), suggestion=f"write {API_VERSION}")
    elif version not in {None, API_VERSION}:
        message = f"apiVersion {version!r} is not known"
        root.findings.error("api_version", message, ("apiVersion",), suggestion=f"write {API_VERSION}")
    kind = root.name("kind", title="a playbook")
    if kind not in {None, DOCUMENT_KIND}:
        message = f"a {kind!r} is not a playbook"
        root.findings.error("kind", message, ("kind",), suggestion=f"write {DOCUMENT_KIND}")


def _read_identity(root: Fields) -> _Identity | None:
    if root.values.get("metadata") is None:
        root.missing("metadata", "a playbook")
        return None
    metadata = root.below("metadata")
    if metadata is None:
        return None
    name = metadata.name("name", title="the metadata")
    path = metadata.name("path", title="the metadata") if "path" in metadata.values else name
    return None if name is None or path is None else _Identity(name=name, path=path)


def _read_executor(root: Fields, workflow: Workflow) -> _Settings:
    executor = root.below("executor")
    if executor is None:
        return _Settings()
    executor.check_keys(EXECUTOR)
    executor.choice("profile", PROFILES)
    spec = executor.below("spec")
    if spec is None:
        return _Settings()
    spec.check_keys(EXECUTOR_SPEC)
    entry_step, final_step = spec.text("entry_step"), spec.text("final_step")
    for key, name in (("entry_step", entry_step), ("final_step", final_step)):
        if name is not None:
            workflow.mentions.append((name, (*spec.path, key)))
    if final_step is not None and final_step == (entry_step or next(iter(workflow.steps), None)):
        spec.invalid("final_step", "must not be the step where the workflow starts")
    return _Settings(
        entry_step=entry_step,
        final_step=final_step,
        no_next_is_error=spec.flag("no_next_is_error") or False,
    )


def _check_mentions(workflow: Workflow, findings: Findings) -> None:
    for name, path in workflow.mentions:
        if name not in workflow.steps:
            suggestion = findings.did_you_mean(name, workflow.steps)
            findings.error("unknown_step", f"there is no step {name!r}", path, suggestion=suggestion)


def _warn_about_names(playbook: Playbook, workflow: Workflow, findings: Findings) -> None:
    places: list[tuple[str, str, Path]] = [
        *(("variable", name, ("workload", name)) for name in playbook.workload),
        *(("step", name, (*path, "step")) for name, path in workflow.paths.items()),
    ]
    for what, name, path in places:
        if name in CONTEXT_NAMES:
            message = f"templates have a name {name!r} of their own, besides this {what}"
            findings.warn("shadowed_name", message, path)


def _warn_about_unreachable(playbook: Playbook, workflow: Workflow, findings: Findings) -> None:
    for name in build_graph(playbook).unreachable:
        message = f"no way from {playbook.entry_step!r} leads to the step {name!r}"
        findings.warn("unreachable_step", message, workflow.paths[name])
