"""A stack's state as lines for people: what changed, and how things stand."""

from collections.abc import Callable, Mapping

from noetl_cli.dev.state import ComponentState, Phase, StackState, Status

Out = Callable[[str], None]

_WORTH_TELLING = frozenset({Status.READY, Status.DONE, Status.RESTARTING, Status.FAILED, Status.STOPPED})


class Progress:
    """Tells each change once; given to a supervisor as a listener, or fed with states read from its file."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._told: dict[str, tuple[Status, int]] = {}
        self._is_ready = False

    def __call__(self, state: StackState) -> None:
        for name, component in state.components.items():
            now = (component.status, component.restarts)
            if component.status in _WORTH_TELLING and self._told.get(name) != now:
                self._out(f"  {name:<18} {describe(component)}")
            self._told[name] = now
        if state.phase is Phase.READY and not self._is_ready:
            self._is_ready = True
            self._out("ready")


def describe(component: ComponentState) -> str:
    """One component in half a line."""
    match component.status:
        case Status.READY | Status.DONE:
            seconds = f" in {component.start_seconds:.2f} s" if component.start_seconds is not None else ""
            again = f", restarted {component.restarts} times" if component.restarts else ""
            return f"{component.status}{seconds}{again}{_ports(component.ports)}"
        case Status.RESTARTING | Status.FAILED if component.error:
            return f"{component.status}: {component.error.splitlines()[0]}"
        case _:
            return component.status.value


def status_lines(state: StackState | None) -> list[str]:
    """The whole stack as a table."""
    if state is None or state.phase is Phase.STOPPED:
        return ["not running"]
    lines = [f"{state.phase} (supervisor {state.supervisor.pid})"]
    if state.error:
        lines.append(f"  {state.error}")
    for name, component in state.components.items():
        pid = str(component.process.pid) if component.process is not None else "-"
        lines.append(f"  {name:<18} {pid:>8}  {describe(component)}")
    return lines


def _ports(ports: Mapping[str, int]) -> str:
    return "".join(f"  {name} 127.0.0.1:{port}" for name, port in ports.items())
