"""How commands reach the stack of this machine: a private file that its definition writes."""

import json
from dataclasses import asdict, dataclass, field

from noetl_core.errors import Corrupt

from noetl_cli.dev.down import status
from noetl_cli.dev.files import write_atomically
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.state import Phase

_FILE = "client.json"
_SERVING = frozenset({Phase.STARTING, Phase.READY})


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEndpoint:
    """Where api listens, a token that may run playbooks, and where payloads are kept."""

    address: str
    http_url: str
    token: str = field(repr=False)
    payload_url: str

    def write(self, home: StackHome) -> None:
        """Only its owner may read it, since it holds the token."""
        write_atomically(home.root / _FILE, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, home: StackHome) -> "LocalEndpoint | None":
        """What the last definition of the stack wrote, whether or not it runs; None if there never was one."""
        file = home.root / _FILE
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as exc:
            raise Corrupt(f"{file} is not readable: {exc}") from exc

    @classmethod
    def of_running_stack(cls, home: StackHome) -> "LocalEndpoint | None":
        """The endpoint, unless nothing runs there."""
        state = status(home)
        return cls.read(home) if state is not None and state.phase in _SERVING else None
