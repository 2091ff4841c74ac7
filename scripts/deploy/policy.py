"""What every pod must be, whatever the values: not root, pinned images, bounded memory, nothing of the host."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]

_TEMPLATES = ("Deployment", "StatefulSet", "DaemonSet", "Job")


def problems_of(documents: Sequence[Document]) -> list[str]:
    """All violations, each with the object and the container."""
    problems: list[str] = []
    for document in documents:
        name = f"{document['kind']} {document['metadata']['name']}"
        problems += [f"{name}: {problem}" for problem in _of_annotations(document)]
        spec = pod_spec(document)
        if spec is not None:
            problems += [f"{name}: {problem}" for problem in _of_pod(spec)]
    return problems


def pod_spec(document: Document) -> Mapping[str, Any] | None:
    """The specification of the pods that an object makes, if it makes any."""
    if document["kind"] == "Pod":
        return document["spec"]  # type: ignore[no-any-return]
    if document["kind"] in _TEMPLATES:
        return document["spec"]["template"]["spec"]  # type: ignore[no-any-return]
    return None


def _of_annotations(document: Document) -> Iterator[str]:
    """An API server refuses values that are not text; helm does not notice."""
    for kind in ("annotations", "labels"):
        for key, value in (document["metadata"].get(kind) or {}).items():
            if not isinstance(value, str):
                yield f"{kind} {key} is {value!r}, which is not text"


def _of_pod(spec: Mapping[str, Any]) -> Iterator[str]:
    context = spec.get("securityContext", {})
    if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
        yield "runs as root, or could"
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "has no seccomp profile"
    if spec.get("automountServiceAccountToken") is not False and not _drives_spark(spec):
        yield "has a token of the Kubernetes API"
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield f"uses {key}"
    for volume in spec.get("volumes", ()):
        if "hostPath" in volume:
            yield f"volume {volume['name']} is a directory of the host"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        yield from (f"container {container['name']} {problem}" for problem in _of_container(container))


def _of_container(container: Mapping[str, Any]) -> Iterator[str]:
    image = container["image"]
    tag = image.rpartition("/")[2]
    if "@sha256:" not in image and (":" not in tag or tag.endswith(":latest")):
        yield f"has the image {image}, which is not pinned"
    resources = container.get("resources", {})
    if not resources.get("limits", {}).get("memory"):
        yield "has no limit of memory"
    if not {"cpu", "memory"} <= set(resources.get("requests", {})):
        yield "does not say what it needs"
    context = container.get("securityContext", {})
    if context.get("allowPrivilegeEscalation") is not False:
        yield "may gain privileges"
    if context.get("readOnlyRootFilesystem") is not True:
        yield "can write to its image"
    if context.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "has capabilities"
    for variable in container.get("env", ()):
        value = variable.get("value")
        if value is not None and not isinstance(value, str):
            yield f"variable {variable['name']} is {value!r}, which is not text"


def _drives_spark(spec: Mapping[str, Any]) -> bool:
    """A worker whose executors are pods has to start them; no other pod needs anything of Kubernetes."""
    masters = [
        variable.get("value", "")
        for container in spec["containers"]
        for variable in container.get("env", ())
        if variable["name"] == "NOETL_SPARK_MASTER"
    ]
    return any(master.startswith("k8s://") for master in masters)
