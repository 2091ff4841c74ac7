"""Whether a process can do its work: named checks, and loops that must show that they are alive."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check, as `/health/ready` shows it."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """Ready means that every check is."""

    ready: bool
    checks: tuple[CheckResult, ...]


class Condition:
    """A check that somebody sets: a connection that is up or down, a start that is over."""

    def __init__(self, name: str) -> None:
        self._result = CheckResult(name=name, ok=False, detail="starting")

    def up(self, detail: str = "") -> None:
        self._result = CheckResult(name=self._result.name, ok=True, detail=detail)

    def down(self, reason: str) -> None:
        self._result = CheckResult(name=self._result.name, ok=False, detail=reason)

    def result(self) -> CheckResult:
        return self._result


class _Watchdog:
    def __init__(self, name: str, max_silence_seconds: float, clock: Callable[[], float]) -> None:
        self._name = name
        self._max_silence_seconds = max_silence_seconds
        self._clock = clock
        self._last_beat: float | None = None

    def beat(self) -> None:
        self._last_beat = self._clock()

    def result(self) -> CheckResult:
        if self._last_beat is None:
            return CheckResult(name=self._name, ok=False, detail="starting")
        silence = self._clock() - self._last_beat
        if silence > self._max_silence_seconds:
            detail = f"silent for {silence:.1f} s, {self._max_silence_seconds:g} s are allowed"
            return CheckResult(name=self._name, ok=False, detail=detail)
        return CheckResult(name=self._name, ok=True, detail="")


class Health:
    """Judged at the moment somebody asks, so there is no state to go stale."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._checks: dict[str, Callable[[], CheckResult]] = {}
        self.draining = False

    def condition(self, name: str) -> Condition:
        """A check that is down until it is set up."""
        condition = Condition(name)
        self._add(name, condition.result)
        return condition

    def check(self, name: str, problem: Callable[[], str | None]) -> None:
        """A check that is asked each time: it answers None, or what is wrong. It must not wait."""

        def result() -> CheckResult:
            reason = problem()
            return CheckResult(name=name, ok=reason is None, detail=reason or "")

        self._add(name, result)

    def watch(self, name: str, max_silence_seconds: float) -> Callable[[], None]:
        """For a loop: it calls what it gets in every round, and is unhealthy when it has not for too long."""
        watchdog = _Watchdog(name, max_silence_seconds, self._clock)
        self._add(name, watchdog.result)
        return watchdog.beat

    def forget(self, name: str) -> None:
        """The thing is gone on purpose: a lease given back, a loop that has ended."""
        self._checks.pop(name, None)

    def drain(self) -> None:
        """From here on the process is not ready, so that nobody sends it anything new."""
        self.draining = True

    def report(self) -> HealthReport:
        checks = [check() for check in list(self._checks.values())]
        if self.draining:
            checks.append(CheckResult(name="draining", ok=False, detail="the process is stopping"))
        return HealthReport(ready=all(check.ok for check in checks), checks=tuple(checks))

    def _add(self, name: str, check: Callable[[], CheckResult]) -> None:
        if name in self._checks:
            raise ValueError(f"there is already a check named {name!r}")
        self._checks[name] = check
