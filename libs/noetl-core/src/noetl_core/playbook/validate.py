"""Turn the text of a playbook into a checked model, or into the list of everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from noetl_core.errors import PlaybookInvalid, Problem
from noetl_core.playbook.context_names import warn_if_shadowing
from noetl_core.playbook.fields import Fields
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.graph import build_graph
from noetl_core.playbook.keychains import read_keychain
from noetl_core.playbook.model import Playbook, Profile
from noetl_core.playbook.repeatable import check_repeatable
from noetl_core.playbook.source import MAX_PROBLEMS, read_source
from noetl_core.playbook.stages import check_stages
from noetl_core.playbook.steps import Workflow, read_workflow
from noetl_core.playbook.streaming import check_ways_of_chunks
from noetl_core.playbook.support import REGISTERED, RELEASE
from noetl_core.playbook.timeouts import read_timeout
from noetl_core.playbook.vocabulary import API_VERSION, DOCUMENT_KIND, OLDER_API_VERSIONS, ROOT
from noetl_core.playbook.workbook import check_calls, read_workbook


def parse_playbook(
    document: str | bytes, *, supported: Container[str] = RELEASE
) -> tuple[Playbook, tuple[Problem, ...]]:
    """The playbook and the warnings about it; one that cannot run is refused with every problem that it has.

    `supported` has the features and tool kinds that the runtime can execute, see `playbook.support`.
    """
    source = read_source(document)
    findings = Findings(supported=supported)
    root = Fields.read(source.value, (), findings, ROOT)
    playbook = None if root is None else _read_playbook(root)
    problems = [*source.problems, *findings.errors(source.text)]
    if problems or playbook is None:
        problems.sort(key=lambda problem: (problem.line or 0, problem.column or 0))
        raise PlaybookInvalid(problems[:MAX_PROBLEMS])
    return playbook, tuple(findings.warnings(source.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """What the executor section says about the workflow."""

    profile: Profile = Profile.AUTO
    entry_step: str | None = None
    final_step: str | None = None
    no_next_is_error: bool = False
    timeout_seconds: float | None = None
    timeout_template: str | None = None


def _read_playbook(root: Fields) -> Playbook | None:
    _check_head(root)
    metadata = root.below("metadata")
    workload = root.map("workload")
    for variable in workload:
        warn_if_shadowing("variable", variable, ("workload", variable), root.findings)
    keychain = read_keychain(root)
    workbook = read_workbook(root)
    workflow = read_workflow(root)
    settings = _read_executor(root, workflow)
    _check_mentions(workflow, root.findings)
    check_calls(workbook, ((tool, path) for _, tool, path in workflow.tools), root.findings)
    check_stages(workflow, workbook, root.findings)
    check_repeatable(workflow.steps, workflow.paths, root.findings)
    if root.findings.supported is not REGISTERED:  # what was accepted before there was this rule can still be read
        check_ways_of_chunks(workflow.steps, workflow.paths, root.findings)
    name = None if metadata is None else metadata.text("name")
    if root.findings.has_errors or metadata is None or name is None:
        return None
    playbook = Playbook(
        name=name,
        path=metadata.text("path") or name,
        metadata=metadata.values,
        workload=workload,
        profile=settings.profile,
        entry_step=settings.entry_step or next(iter(workflow.steps)),
        final_step=settings.final_step,
        no_next_is_error=settings.no_next_is_error,
        timeout_seconds=settings.timeout_seconds,
        timeout_template=settings.timeout_template,
        keychain=keychain,
        workbook=workbook.tasks,
        steps=workflow.steps,
    )
    _warn_about_unreachable(playbook, workflow, root.findings)
    return playbook


def _check_head(root: Fields) -> None:
    version, kind = root.text("apiVersion"), root.text("kind")
    if version in OLDER_API_VERSIONS:
        root.older("apiVersion", f"{version} is read as {API_VERSION}", suggestion=f"write {API_VERSION}")
    elif version not in {None, API_VERSION}:
        message = f"apiVersion {version!r} is not known"
        root.findings.error("api_version", message, ("apiVersion",), suggestion=f"write {API_VERSION}")
    if kind not in {None, DOCUMENT_KIND}:
        message = f"a {kind!r} is not a playbook"
        root.findings.error("kind", message, ("kind",), suggestion=f"write {DOCUMENT_KIND}")


def _read_executor(root: Fields, workflow: Workflow) -> _Settings:
    executor = root.below("executor")
    if executor is None:
        return _Settings()
    profile = Profile(executor.text("profile") or Profile.AUTO)
    spec = executor.below("spec")
    if spec is None:
        return _Settings(profile=profile)
    entry_step, final_step = spec.text("entry_step"), spec.text("final_step")
    for key, name in (("entry_step", entry_step), ("final_step", final_step)):
        if name is not None:
            workflow.mentions.append((name, (*spec.path, key)))
    if final_step is not None and final_step == (entry_step or next(iter(workflow.steps), None)):
        spec.invalid("final_step", "must not be the step where the workflow starts")
    timeout_seconds, timeout_template = read_timeout(spec)
    return _Settings(
        profile=profile,
        entry_step=entry_step,
        final_step=final_step,
        no_next_is_error=spec.flag("no_next_is_error") or False,
        timeout_seconds=timeout_seconds,
        timeout_template=timeout_template,
    )


def _check_mentions(workflow: Workflow, findings: Findings) -> None:
    for name, path in workflow.mentions:
        if name not in workflow.steps:
            suggestion = findings.did_you_mean(name, workflow.steps)
            findings.error("unknown_step", f"there is no step {name!r}", path, suggestion=suggestion)


def _warn_about_unreachable(playbook: Playbook, workflow: Workflow, findings: Findings) -> None:
    for name in build_graph(playbook).unreachable:
        message = f"no way from {playbook.entry_step!r} leads to the step {name!r}"
        findings.warn("unreachable_step", message, workflow.paths[name])
