"""`noetl chaos`, as people type it."""

import asyncio
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from noetl_core.errors import InvalidInput
from noetl_core.playbook.validate import parse_playbook

from noetl_cli.chaos.campaign import Plan, campaign
from noetl_cli.chaos.effects import Effects, effects_server
from noetl_cli.chaos.own_stack import own_stack
from noetl_cli.chaos.report import Campaign, campaign_lines
from noetl_cli.commands.arguments import naming_the_file
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.stack import REPLICATED
from noetl_cli.exits import ExitCode
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.sources import SOURCE_FILE, STDIN, read_playbook, read_source, shown_name
from noetl_cli.variables import merge_settings, read_payload

SERVICES: Final = ("api", *REPLICATED)
SERVERS: Final = ("nats", "postgres")
SETTINGS: Final = {
    "NOETL_COMMAND_LEASE_SECONDS": "3",
    "NOETL_HEARTBEAT_SECONDS": "1",
    "NOETL_HEAD_POLL_SECONDS": "1",
    "NOETL_REHINT_SECONDS": "1",
    "NOETL_REAPER_INTERVAL_SECONDS": "1",
}
"""Short, so that what is lost is noticed soon; --setting goes over them."""


@click.command()
@click.argument("file", type=SOURCE_FILE, metavar="PLAYBOOK")
@click.option(
    "--service",
    "services",
    multiple=True,
    type=click.Choice([*SERVICES, *SERVERS]),
    help="Kill only this; may be given several times [default: all six services; nats and postgres if named].",
)
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Try only N kills, drawn by chance.")
@click.option(
    "--seed", type=click.IntRange(min=0), help="With --sample: draw the same kills again [default: a new one]."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a variable; the value is JSON if it is that, else text; dots nest. May be given several times.",
)
@click.option("--payload", type=SOURCE_FILE, help="Variables from a JSON file, or - for stdin; --set goes over them.")
@click.option(
    "--also", "others", multiple=True, type=SOURCE_FILE, help="Register this playbook too: one that is called."
)
@click.option(
    "--effects",
    "effects_variable",
    metavar="VARIABLE",
    help="Count effects: set this variable to the address of a server that takes every HTTP call and counts it.",
)
@click.option(
    "--timeout", "timeout_seconds", default=120.0, show_default=True, type=click.FloatRange(min=1.0),
    help="Seconds that one run may take.",
)  # fmt: skip
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory of the stack, which may have credentials and playbooks; kept [default: a new one, removed].",
)
@click.option(
    "--setting", "stack_settings", multiple=True, metavar="NAME=VALUE", help="A setting of every service of the stack."
)
@output_option
def chaos(
    *,
    file: str,
    services: tuple[str, ...],
    sample: int | None,
    seed: int | None,
    settings: tuple[str, ...],
    payload: str | None,
    others: tuple[str, ...],
    effects_variable: str | None,
    timeout_seconds: float,
    home: Path | None,
    stack_settings: tuple[str, ...],
    output: Output,
) -> None:
    """Run PLAYBOOK while services are killed, and tell whether it comes to the same.

    Starts a stack of its own on this machine, runs the playbook twice undisturbed, and then once for each kill: every
    service, at every boundary between events, is ended with kill -9 as soon as the log has come there, and started
    again. Compared are the events of every aggregate and the final state, without ids, times, heartbeats, checkpoints
    and abandoned attempts; that every event is published once; that projections equal the log; and effects. Calls that
    a killed worker had begun are made again: they are listed with the idempotency key that both attempts carry.

    The playbook runs for real, many times: point it at things that may be written to again and again. With --effects
    its HTTP calls can be sent to a counter instead.

    Exits with 0 if all runs came to the same, 1 if not, 2 if the playbook is broken, 5 if the stack does not start or
    an undisturbed run takes too long, 130 after Ctrl-C, with a summary of what was tried.

    \b
    Examples:
      noetl chaos examples/playbooks/two_steps.yaml --set who=Ada
      noetl chaos examples/chaos/charge.yaml --effects shop_url --service worker
      noetl chaos load.yaml --sample 20 --seed 7 -o json | jq '.results[] | select(.same | not)'
      noetl chaos parent.yaml --also child.yaml --service planner --service worker
    """
    if seed is not None and sample is None:
        raise click.UsageError("--seed goes with --sample")
    if [file, payload, *others].count(STDIN) > 1:
        raise click.UsageError("only one document can come from stdin")
    variables = read_payload(read_source(payload), source=shown_name(payload)) if payload is not None else {}
    over = _stack_settings(stack_settings)
    out = partial(click.echo, err=output is Output.JSON)
    with naming_the_file(file), _home(home) as own, effects_server() as effects:
        given = merge_settings(variables, settings)
        plan = Plan(
            playbook=read_playbook(file),
            others=[read_playbook(one) for one in others],
            payload={**given, effects_variable: effects.url} if effects_variable else given,
            services=services or SERVICES,
            sample=sample,
            seed=seed if seed is not None else random.SystemRandom().randrange(2**31),
            timeout_seconds=timeout_seconds,
        )
        for content in (plan.playbook, *plan.others):
            parse_playbook(content, supported=_Everything())  # said before a stack is started; api knows the rest
        done, interrupted = _run(plan, own, effects, over, out)
    if output is Output.JSON:
        echo_json(done.to_json())
    else:
        for line in campaign_lines(done):
            click.echo(line)
    if interrupted:
        sys.exit(ExitCode.INTERRUPTED)
    sys.exit(ExitCode.OK if done.is_same else ExitCode.FAILED)


def _run(
    plan: Plan, home: StackHome, effects: Effects, settings: dict[str, str], out: Callable[[str], None]
) -> tuple[Campaign, bool]:
    with own_stack(home, {**SETTINGS, **settings}, out=out) as stack:
        return asyncio.run(_until_signal(campaign(plan, home=home, stack=stack, effects=effects, out=out)))


async def _until_signal(work: Coroutine[Any, Any, Campaign]) -> tuple[Campaign, bool]:
    """Ctrl-C and SIGTERM end the run under way; what was tried before is still told."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        return await task, stopped.is_set()
    except asyncio.CancelledError:  # before the first kill: there is nothing to tell
        raise KeyboardInterrupt from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


class _Everything:
    """Which kinds of tools there are is for the stack to say."""

    def __contains__(self, _: object) -> bool:
        return True


@contextmanager
def _home(chosen: Path | None) -> Iterator[StackHome]:
    if chosen is not None:
        yield StackHome(root=chosen.resolve())
        return
    with tempfile.TemporaryDirectory(prefix="noetl-chaos-", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o711)  # servers may run as another user
        yield StackHome(root=Path(directory).resolve() / "stack")


def _stack_settings(given: tuple[str, ...]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for one in given:
        name, separator, value = one.partition("=")
        if not separator or not name.isidentifier():
            raise InvalidInput(f"--setting takes NAME=VALUE, such as NOETL_LOG_LEVEL=debug, not {one!r}")
        settings[name] = value
    return settings
