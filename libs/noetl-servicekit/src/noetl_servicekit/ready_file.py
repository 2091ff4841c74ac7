"""How a supervisor learns the ports that a process was given: a file that appears whole, once it serves."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from noetl_servicekit.env import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyFile:
    """Written by rename, so that a reader sees all of it or nothing."""

    path: Path

    def write(self, *, service: str, instance: str, addresses: Mapping[str, Address]) -> None:
        document = {
            "service": service,
            "instance": instance,
            "pid": os.getpid(),
            "addresses": {name: str(address) for name, address in addresses.items()},
            "ports": {name: address.port for name, address in addresses.items()},
        }
        unfinished = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
        unfinished.replace(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
