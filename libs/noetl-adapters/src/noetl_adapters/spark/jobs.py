"""Spark for one command: a session that is started when it is first wanted, and what is told when a job failed."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from noetl_core.errors import AlreadyExists, Corrupt, NoetlError, Unavailable
from noetl_core.ports.spark import SparkSettings

from noetl_adapters.spark.failures import describe
from noetl_adapters.spark.java import find_java
from noetl_adapters.spark.session import start_session

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import SparkSession

TRIES: Final = 3
"""Of a task, before the whole fails."""
_END_SECONDS: Final = 10.0
_OURS = re.compile(r"noetl_core\.errors\.(\w+): (.*)")
_KEPT: Final[Mapping[str, type[NoetlError]]] = {
    "Unavailable": Unavailable,
    "DeadlinePassed": Unavailable,
    "Overloaded": Unavailable,
    "Corrupt": Corrupt,
    "AlreadyExists": AlreadyExists,
}


def job_settings(*, master: str = "", jobs: int = 0, memory: str = "1g") -> SparkSettings:
    """A session with as many tasks at once as there are processors, each tried again when it is lost."""
    threads = jobs or os.cpu_count() or 2
    return SparkSettings(master=master or f"local[{threads},{TRIES}]", memory=memory)


def why_not_here(environment: Mapping[str, str]) -> str | None:
    """Why no session can be started on this machine; None if one can."""
    if find_spec("pyspark") is None:
        return "Spark is not installed here"
    try:
        find_java(environment)
    except Unavailable as exc:
        return exc.message
    return None


class SparkJobs:
    """Nothing runs until the session is asked for; it is gone with everything that it wrote at the end."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._stack = ExitStack()
        self._session: SparkSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def session(self) -> SparkSession:
        """The one session; takes seconds when it is first asked for, and raises `Unavailable` where there is none."""
        if self._session is None:
            scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="noetl-jobs-"))
            before = dict(os.environ)
            try:
                self._session = start_session(self._settings, Path(scratch))
            except ImportError as exc:
                raise Unavailable(
                    "Spark is not installed here: install pyspark, or name another engine with --engine"
                ) from exc
            finally:
                changed = [name for name, value in os.environ.items() if before.get(name) != value]
                self._stack.callback(_put_back, before, changed)
            self._stack.callback(_end, self._session)
        return self._session


def _end(session: SparkSession) -> None:
    """With its JVM, which would make its directories again for the next session of this process."""
    from pyspark import SparkContext  # noqa: PLC0415 - only where Spark runs

    gateway: Any = SparkContext._gateway
    jvm: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    session.stop()
    if jvm is None:  # whoever else started it ends it
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    if jvm.stdin is not None:
        jvm.stdin.close()  # which it takes for the end of this process
    try:
        jvm.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()


def _put_back(before: Mapping[str, str], changed: Iterable[str]) -> None:
    """Variables of a session name its directory, which the next one must not be led to."""
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            os.environ.pop(name, None)


@contextmanager
def told_plainly(failed: type[NoetlError]) -> Iterator[None]:
    """What a task said, without the way that it took through two languages; `failed` where it said nothing of ours."""
    try:
        yield
    except NoetlError:
        raise
    except Exception as exc:
        raise _failure(exc, failed) from exc


def _failure(exc: Exception, failed: type[NoetlError]) -> NoetlError:
    told = _OURS.findall(str(exc))
    if told:
        name, message = told[-1]
        return _KEPT.get(name, failed)(f"a task failed: {message.strip()}")
    return failed(f"the Spark job failed: {describe(exc, None).message}")
