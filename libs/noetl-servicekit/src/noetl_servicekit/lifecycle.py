"""From the command line to the exit code: how a process starts, stops when told to, and fails loudly."""

import argparse
import asyncio
import importlib.metadata
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NoReturn

from noetl_core.errors import NoetlError

from noetl_servicekit.env import SettingsInvalid
from noetl_servicekit.event_loop import run_on_fast_loop
from noetl_servicekit.logging import configure_logging, get_logger
from noetl_servicekit.memory import collect_rarely
from noetl_servicekit.process_settings import ProcessSettings
from noetl_servicekit.service_group import ServiceGroup
from noetl_servicekit.tracing import start_tracing

logger = get_logger()

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_SETTINGS: Final = 2

ServiceMain = Callable[[ServiceGroup], Awaitable[None]]


def run_service(
    name: str,
    main: ServiceMain,
    *,
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Runs the service until a signal or a failure ends it; returns the exit code for `sys.exit`.

    `main` starts the parts and returns; what it started goes on until SIGTERM or SIGINT. A second signal,
    or parts that do not stop within NOETL_STOP_SECONDS, end the process at once.
    """
    arguments = _parse(name, description, add_arguments, argv)
    try:
        settings = ProcessSettings.from_env(name, os.environ if environ is None else environ)
    except SettingsInvalid as exc:
        configure_logging(service=name, instance=name)
        return _report(exc)
    configure_logging(
        service=name,
        instance=settings.instance,
        level=settings.log_level,
        log_format=settings.log_format,
    )
    collect_rarely()
    return run_on_fast_loop(_run(main, settings, arguments))


def _parse(
    name: str,
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None] | None,
    argv: Sequence[str] | None,
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"noetl-{name}",
        description=description,
        epilog="Settings are environment variables named NOETL_…; the service's README lists them.",
    )
    version = importlib.metadata.version("noetl-servicekit")
    parser.add_argument("--version", action="version", version=f"noetl-{name} {version}")
    if add_arguments is not None:
        add_arguments(parser)
    return parser.parse_args(argv)


async def _run(main: ServiceMain, settings: ProcessSettings, arguments: argparse.Namespace) -> int:
    deadline = _Deadline(settings.stop_seconds)
    group = ServiceGroup(settings, arguments=arguments, when_stopping=deadline.start)
    _stop_on_signals(group)
    tracing = start_tracing(
        service=settings.service,
        instance=settings.instance,
        topology=settings.topology,
        otlp_endpoint=settings.otlp_endpoint,
    )
    group.on_stop(lambda: asyncio.to_thread(tracing.close))
    logger.info("service.starting", pid=os.getpid())
    try:
        await _start(main, group)
        await group.stopping.wait()
        return await _stop(group)
    finally:
        deadline.cancel()


async def _start(main: ServiceMain, group: ServiceGroup) -> None:
    """Start the parts, unless the process is told to stop in the middle of it."""
    try:
        async with asyncio.timeout(None) as limit:
            interrupter = asyncio.create_task(_interrupt(limit, group.stopping), name="interrupter")
            try:
                await main(group)
            finally:
                interrupter.cancel()
    except Exception as exc:
        if not limit.expired():
            group.fail(exc)


async def _interrupt(limit: asyncio.Timeout, stopping: asyncio.Event) -> None:
    await stopping.wait()
    limit.reschedule(asyncio.get_running_loop().time())


async def _stop(group: ServiceGroup) -> int:
    began_at = time.monotonic()
    code = EXIT_OK if group.failure is None else _report(group.failure)
    try:
        await group.close()
    except Exception as exc:
        logger.error("service.stop_failed", error=type(exc).__qualname__, exc_info=exc)
        code = code or EXIT_FAILED
    if code == EXIT_OK and group.failure is not None:  # it failed only while it was stopping
        code = _report(group.failure)
    logger.info("service.stopped", exit_code=code, seconds=round(time.monotonic() - began_at, 3))
    return code


def _report(failure: BaseException) -> int:
    if isinstance(failure, SettingsInvalid):
        logger.error("settings.invalid", problems=list(failure.problems))
        return EXIT_SETTINGS
    if isinstance(failure, NoetlError):
        logger.error("service.failed", code=failure.code, reason=failure.message)
    else:
        logger.error("service.failed", code="internal", reason=str(failure), exc_info=failure)
    return EXIT_FAILED


def _stop_on_signals(group: ServiceGroup) -> None:
    loop = asyncio.get_running_loop()
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        if len(received) > 1:
            logger.warning("service.killed", signal=number.name)
            _exit_now(128 + number.value)
        group.stop(number.name)

    for handled in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(handled, on_signal, handled)


class _Deadline:
    """Ends the process when stopping takes too long; on a thread, since the event loop may be what is stuck."""

    def __init__(self, stop_seconds: float) -> None:
        self._stop_seconds = stop_seconds
        self._timer = threading.Timer(stop_seconds, self._give_up)
        self._timer.daemon = True

    def start(self) -> None:
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()

    def _give_up(self) -> None:
        logger.error("service.stop_timed_out", stop_seconds=self._stop_seconds)
        _exit_now(EXIT_FAILED)


def _exit_now(code: int) -> NoReturn:
    """Past everything that could still hold the process: threads, executors, exit handlers."""
    sys.stderr.flush()
    os._exit(code)
