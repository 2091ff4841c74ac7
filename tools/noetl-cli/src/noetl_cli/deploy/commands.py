"""`noetl deploy`: writes what an operator applies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import yaml
from noetl_core.errors import InvalidInput

from noetl_cli.deploy.pool import WorkerPool, read_pool, scaled_object
from noetl_cli.deploy.scaling import Moment, burst, react, simulate, steady, waves
from noetl_cli.deploy.supercluster import read_topology, warnings_of
from noetl_cli.deploy.supercluster_manifests import manifests
from noetl_cli.output import Output, echo_json, output_option

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_TRACES: Mapping[str, Callable[[], tuple[int, ...]]] = {"burst": burst, "waves": waves, "steady": steady}


@click.group()
def deploy() -> None:
    """Write objects for Kubernetes: scaling of workers, clusters of NATS."""


@deploy.command()
@click.argument("file", type=_FILE)
@output_option
def keda(*, file: Path, output: Output) -> None:
    """Write KEDA's ScaledObject for the pool of workers that FILE describes.

    The pool follows NoETL's own backlog: commands that wait or run, as planners count them.

    \b
    Example:
      noetl deploy keda deploy/keda/default.pool.yaml | kubectl apply -f -
    """
    _write([scaled_object(read_pool(file))], output)


@deploy.command()
@click.argument("file", type=_FILE)
@click.option("--cluster", "name", help="Only the objects of this cluster; they go where its servers run.")
@output_option
def nats(*, file: Path, name: str | None, output: Output) -> None:
    """Write the clusters of NATS servers that FILE describes, joined by gateways or as leaf nodes.

    Passwords come from a Secret `noetl-nats-passwords` with the keys noetl, system and cluster, the same everywhere;
    let them begin with a letter, since the server would read others as numbers.

    \b
    Example:
      noetl deploy nats deploy/nats/two-regions.yaml --cluster eu | kubectl --context eu apply -f -
    """
    topology = read_topology(file)
    chosen = [cluster for cluster in topology.clusters if name in (None, cluster.name)]
    if not chosen:
        known = ", ".join(cluster.name for cluster in topology.clusters)
        raise InvalidInput(f"{file} has no cluster {name!r}, only {known}")
    for warning in warnings_of(topology):
        click.echo(f"warning: {warning}", err=True)
    _write([one for cluster in chosen for one in manifests(topology, cluster)], output)


@deploy.command()
@click.argument("file", type=_FILE)
@click.option(
    "--trace", type=click.Choice(sorted(_TRACES)), default="burst", show_default=True, help="Work that comes."
)
@click.option("--trace-file", type=_FILE, help="Instead: arriving commands, a number a line, one line a second.")
@click.option(
    "--command-seconds", type=click.IntRange(min=1), default=10, show_default=True, help="What a command takes."
)
@click.option(
    "--start-seconds", type=click.IntRange(min=0), default=8, show_default=True, help="What a pod takes to start."
)
@output_option
def scaling(
    *, file: Path, trace: str, trace_file: Path | None, command_seconds: int, start_seconds: int, output: Output
) -> None:
    """Show how the pool that FILE describes would follow its work, before it has to.

    \b
    Examples:
      noetl deploy scaling deploy/keda/default.pool.yaml
      noetl deploy scaling deploy/keda/default.pool.yaml --trace waves
    """
    pool = read_pool(file)
    arrivals = _read_trace(trace_file) if trace_file else _TRACES[trace]()
    moments = list(simulate(pool, arrivals, command_seconds=command_seconds, start_seconds=start_seconds))
    reaction = react(moments)
    if output is Output.JSON:
        echo_json({**asdict(reaction), "moments": [asdict(moment) for moment in _told(moments)]})
        return
    _show(pool, moments)
    click.echo()
    click.echo(f"first pod ready   {_seconds(reaction.reaction_seconds)} after the first work")
    click.echo(f"largest size      {reaction.peak_replicas} pods")
    click.echo(f"changes of size   {reaction.changes}, of them {reaction.reversals} back and forth")
    click.echo(f"all work done     {_seconds(reaction.drained_second)} from the start")


def _show(pool: WorkerPool, moments: Sequence[Moment]) -> None:
    click.echo("second  backlog  pods  ready")
    for moment in _told(moments):
        bar = "#" * round(30 * moment.replicas / pool.max_replicas)
        click.echo(f"{moment.second:6}  {moment.backlog:7}  {moment.replicas:4}  {moment.ready:5}  {bar}")


def _told(moments: Sequence[Moment]) -> list[Moment]:
    """Seconds in which something changed: the size of the pool, or work that came."""
    told, last = [], None
    for moment in moments:
        seen = (moment.replicas, moment.ready)
        if seen != last or moment.arrived:
            told.append(moment)
        last = seen
    return told


def _read_trace(file: Path) -> tuple[int, ...]:
    try:
        numbers = tuple(int(line) for line in file.read_text(encoding="utf-8").split())
    except (OSError, ValueError) as exc:
        raise InvalidInput(f"{file} must hold whole numbers, one a line: {exc}") from exc
    if not numbers or min(numbers) < 0:
        raise InvalidInput(f"{file} must hold numbers of arriving commands, none of them negative")
    return numbers


def _seconds(value: int | None) -> str:
    return "never" if value is None else f"{value} s"


def _write(documents: Sequence[Mapping[str, Any]], output: Output) -> None:
    if output is Output.JSON:
        echo_json({"apiVersion": "v1", "kind": "List", "items": list(documents)})
        return
    click.echo(yaml.dump_all(documents, Dumper=_Readable, sort_keys=False, width=120), nl=False)


class _Readable(yaml.SafeDumper):
    """Texts of several lines stay several lines."""


def _as_block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _as_block)
