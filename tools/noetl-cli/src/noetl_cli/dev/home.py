"""The data directory of a stack: what lies where, and which directory it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from noetl_cli.dev.component_process import end_recorded
from noetl_cli.dev.lock import DirectoryLock

HOME_VARIABLE = "NOETL_HOME"
SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackHome:
    """Paths below one data directory; every file of a stack is named here or by its component."""

    root: Path

    @classmethod
    def locate(cls, env: Mapping[str, str], *, working_directory: Path) -> "StackHome":
        """`NOETL_HOME`, else the nearest `.noetl` on the way up in which a stack was started, else `.noetl` here."""
        chosen = env.get(HOME_VARIABLE)
        if chosen:
            return cls(root=(working_directory / chosen).resolve())
        here = working_directory.resolve()
        homes = [cls(root=directory / ".noetl") for directory in (here, *here.parents)]
        return next((home for home in homes if home.state_file.exists()), homes[0])

    @property
    def state_file(self) -> Path:
        return self.root / "state.json"

    @property
    def ports_file(self) -> Path:
        return self.root / "ports.json"

    @property
    def run_directory(self) -> Path:
        return self.root / "run"

    @property
    def log_directory(self) -> Path:
        return self.root / "logs"

    def log_file(self, name: str) -> Path:
        return self.log_directory / f"{name}.log"

    def create(self) -> None:
        """Make the directories. Others may pass through the root, since a server may run as another user."""
        self.root.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.run_directory.mkdir(mode=0o700, exist_ok=True)
        self.log_directory.mkdir(mode=0o700, exist_ok=True)

    def lock(self) -> DirectoryLock:
        """The lock that a supervisor holds for as long as it runs."""
        return DirectoryLock(self.root / "supervisor.lock")

    def end_orphans(self) -> tuple[str, ...]:
        """End what an earlier supervisor left running, and name it; the caller holds the lock."""
        records = sorted(self.run_directory.glob("*.json"))
        return tuple(record.stem for record in records if end_recorded(record) is not None)
