"""What a kubelet makes of rendered manifests: the variables of a container, and what is mounted into it.

Pods have addresses and Secrets of their cluster; here they share one machine. Those who use it say which addresses of
this machine stand for those of the manifests; nothing else is changed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SERVICES = ("api", "outbox-publisher", "planner", "projector", "reaper", "worker")
"""In an order in which each finds those that it looks for at its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A directory for what a pod mounts, filled."""

    path: str
    place: Path
    secret: bool


@dataclass(kw_only=True)
class Node:
    """Stands for the cluster: Secrets, names of services, and a directory for what pods mount."""

    directory: Path
    documents: list[dict[str, Any]]
    addresses: dict[str, str] = field(default_factory=dict)
    """host:port of this machine, by host:port of the manifests."""
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for document in self.documents:
            if document["kind"] == "Secret":
                self.secrets[document["metadata"]["name"]] = dict(document["stringData"])

    def find(self, kind: str, name: str) -> dict[str, Any]:
        (found,) = (one for one in self.documents if one["kind"] == kind and one["metadata"]["name"] == name)
        return found

    def workload(self, service: str) -> dict[str, Any]:
        """The specification of a service's pods."""
        kind = "StatefulSet" if service in ("planner", "projector") else "Deployment"
        spec: dict[str, Any] = self.find(kind, f"noetl-{service}")["spec"]["template"]["spec"]
        return spec

    def job(self, name: str) -> dict[str, Any]:
        """The specification of a job's pod."""
        spec: dict[str, Any] = self.find("Job", name)["spec"]["template"]["spec"]
        return spec

    def variables(self, pod: str, container: Mapping[str, Any]) -> dict[str, str]:
        """The variables of a container, as a kubelet would make them, with addresses of this machine."""
        values: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            values |= self.secrets[source["secretRef"]["name"]]
        for variable in container.get("env", ()):
            values[variable["name"]] = self._value(pod, variable, values)
        return {name: self.here(value) for name, value in values.items()}

    def volumes(self, pod: str, spec: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[Volume]:
        """What a container mounts: Secrets are written to files, everything else is empty."""
        sources = {volume["name"]: volume for volume in spec.get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            place = self.directory / pod / mount["name"]
            place.mkdir(parents=True, exist_ok=True)
            secret = sources[mount["name"]].get("secret")
            for key, value in self.secrets[secret["secretName"]].items() if secret else ():
                (place / key).write_text(value, encoding="utf-8")
            yield Volume(path=mount["mountPath"], place=place, secret=secret is not None)

    def here(self, text: str) -> str:
        """With this machine's addresses in place of those of the cluster."""
        for name, address in self.addresses.items():
            text = text.replace(name, address)
        return text

    def _value(self, pod: str, variable: Mapping[str, Any], values: Mapping[str, str]) -> str:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            return {"metadata.name": pod, "metadata.namespace": "noetl", "spec.nodeName": "node-1"}[
                source["fieldRef"]["fieldPath"]
            ]
        if "secretKeyRef" in source:
            return self.secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        return re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], variable["value"])
