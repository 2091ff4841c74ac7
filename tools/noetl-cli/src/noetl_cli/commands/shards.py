"""`noetl shards`: which replica of planner and projector looks after which executions, and which reaper is at work."""

import asyncio
from collections.abc import Iterator, Sequence

import click
from noetl_core.ports.leases import ShardLease

from noetl_cli.connection import FindServer, connected, takes_server
from noetl_cli.output import Output, echo_json, output_option
from noetl_cli.shown.durations import clock_text, time_text
from noetl_cli.shown.tables import table_lines


@click.command()
@click.option(
    "--role", default="", type=click.Choice(["planner", "projector", "reaper", ""]), help="Only those of one role."
)
@output_option
@takes_server
def shards(*, role: str, output: Output, find_server: FindServer) -> None:
    """Show who owns which shard, and which nobody owns; for administrators.

    Every execution belongs to one shard, and every shard to one planner and one projector at a time. A shard that
    nobody owns for longer than a lease means that its executions stand still: look at the service's replicas. Of
    reapers one is at work, which has the only shard of that role; the others wait for its lease to end.

    \b
    Examples:
      noetl shards
      noetl shards --role planner -o json | jq '.unowned'
    """

    async def ask() -> Sequence[ShardLease]:
        async with connected(find_server()) as clients:
            return await clients.shards.list_shards(role)

    leases = asyncio.run(ask())
    if output is Output.JSON:
        unowned = sum(not lease.instance for lease in leases)
        echo_json({"shards": [_document(lease) for lease in leases], "unowned": unowned})
        return
    rows = [("ROLE", "OWNER", "ADDRESS", "SHARDS", "WHICH", "UNTIL"), *_rows(leases)]
    for line in table_lines(rows):
        click.echo(line)


def _rows(leases: Sequence[ShardLease]) -> Iterator[tuple[str, ...]]:
    owners: dict[tuple[str, str, str], list[ShardLease]] = {}
    for lease in leases:
        owners.setdefault((lease.role, lease.instance, lease.address), []).append(lease)
    for (role, instance, address), own in sorted(owners.items()):
        until = clock_text(min(lease.leased_until for lease in own)) if instance else "-"
        shards = ranges_text([lease.shard for lease in own])
        yield role, instance or "(nobody)", address or "-", str(len(own)), shards, until


def ranges_text(numbers: Sequence[int]) -> str:
    """Neighbours in short: 0-3,7."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _document(lease: ShardLease) -> dict[str, object]:
    return {
        "role": lease.role,
        "shard": lease.shard,
        "epoch": lease.epoch,
        "instance": lease.instance or None,
        "address": lease.address or None,
        "leased_until": time_text(lease.leased_until) if lease.instance else None,
    }
