"""Objects that Kubernetes itself does not know: KEDA's against its models, others against what is used of them.

KEDA's models accept fields that they do not know, which an API server prunes silently; those are found by comparing
the names with those of the models.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CRD_KINDS = frozenset({"ScaledObject", "ServiceMonitor", "PrometheusRule"})

_KEDA = """
import json, sys
from cloudcoil.models.keda.v1alpha1 import ScaledObject

problems = []
for document in json.load(sys.stdin):
    try:
        spec = ScaledObject.model_validate(document).spec
    except ValueError as exc:
        problems.append(str(exc).replace(chr(10), "; "))
        continue
    parts = [("spec", document["spec"], spec)]
    parts += [(f"spec.triggers[{n}]", given, spec.triggers[n]) for n, given in enumerate(document["spec"]["triggers"])]
    for path, given, model in parts:
        known = {field.alias or name for name, field in type(model).model_fields.items()}
        problems += [f"{path}.{key} is not a field of KEDA" for key in given if key not in known]
print(json.dumps(problems))
"""
_TRIGGERS: Mapping[str, frozenset[str]] = {
    "prometheus": frozenset({"serverAddress", "query", "threshold"}),
    "nats-jetstream": frozenset({"natsServerMonitoringEndpoint", "account", "stream", "consumer", "lagThreshold"}),
}


def problems_of_crds(documents: Sequence[Mapping[str, Any]], tools: Path) -> list[str]:
    """What the servers of these objects would refuse, or ignore."""
    scaled = [document for document in documents if document["kind"] == "ScaledObject"]
    problems = _keda(scaled, tools) if scaled else []
    for document in documents:
        name = f"{document['kind']} {document['metadata']['name']}"
        check = {"ScaledObject": _triggers, "ServiceMonitor": _service_monitor, "PrometheusRule": _prometheus_rule}
        problems += [f"{name}: {problem}" for problem in check[document["kind"]](document["spec"])]
    return problems


def _keda(documents: Sequence[Mapping[str, Any]], tools: Path) -> list[str]:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [str(tools / "venv" / "bin" / "python"), "-c", _KEDA],
        input=json.dumps(documents),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return [f"KEDA's models failed: {done.stderr.strip()[-500:]}"]
    return list(json.loads(done.stdout))


def _triggers(spec: Mapping[str, Any]) -> list[str]:
    """Metadata of triggers is free text to the CRD, and an error of KEDA at run time."""
    problems = []
    for trigger in spec["triggers"]:
        missing = _TRIGGERS.get(trigger["type"], frozenset()) - set(trigger["metadata"])
        problems += [f"trigger {trigger['type']} lacks {key}" for key in sorted(missing)]
    if spec.get("minReplicaCount", 0) > spec.get("maxReplicaCount", 100):
        problems.append("minReplicaCount exceeds maxReplicaCount")
    return problems


def _service_monitor(spec: Mapping[str, Any]) -> list[str]:
    known = {"selector", "endpoints"}
    problems = [f"spec.{key} is not used here" for key in set(spec) - known]
    if not spec.get("selector") or not spec.get("endpoints"):
        problems.append("selects nothing")
    return problems


def _prometheus_rule(spec: Mapping[str, Any]) -> list[str]:
    groups = spec.get("groups")
    if not groups or any(not group.get("name") or not group.get("rules") for group in groups):
        return ["has no groups with rules"]
    return []
