"""The `noetl` command: which commands there are, loaded only when they are used."""

import importlib
from collections.abc import Mapping
from typing import Final, cast

import click

from noetl_cli.exits import MEANINGS

_SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "Run playbooks and look at them": {
        "run": "noetl_cli.commands.run:run",
        "execute": "noetl_cli.commands.execute:execute",
        "status": "noetl_cli.commands.executions:status",
        "events": "noetl_cli.commands.events:events",
        "result": "noetl_cli.commands.result:result",
        "logs": "noetl_cli.commands.logs:logs",
        "trace": "noetl_cli.commands.trace:trace",
        "payload": "noetl_cli.commands.payload:payload",
        "replay": "noetl_cli.replay.commands:replay",
        "verify": "noetl_cli.verify.commands:verify",
        "why": "noetl_cli.commands.why:why",
        "cancel": "noetl_cli.commands.executions:cancel",
        "pause": "noetl_cli.commands.steering:pause",
        "resume": "noetl_cli.commands.steering:resume",
        "finalize": "noetl_cli.commands.steering:finalize",
        "redrive": "noetl_cli.commands.steering:redrive",
        "frames": "noetl_cli.commands.frames:frames",
        "list": "noetl_cli.commands.executions:list_executions",
        "chaos": "noetl_cli.chaos.command:chaos",
    },
    "Write and register playbooks": {
        "register": "noetl_cli.commands.register:register",
        "playbook": "noetl_cli.commands.playbook:playbook",
        "catalog": "noetl_cli.commands.catalog:catalog",
        "credential": "noetl_cli.commands.credential:credential",
    },
    "Run NoETL itself": {
        "workers": "noetl_cli.commands.why:workers",
        "shards": "noetl_cli.commands.shards:shards",
        "lake": "noetl_cli.lake.commands:lake",
        "dev": "noetl_cli.dev.commands:dev",
        "db": "noetl_cli.db:db",
        "token": "noetl_cli.commands.token:token",
        "deploy": "noetl_cli.deploy.commands:deploy",
    },
}
_COMMANDS: Final = {name: place for section in _SECTIONS.values() for name, place in section.items()}


class Application(click.Group):
    """Imports a command when it is called: most need a part of the program, and a prompt should answer at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        return cast(click.Command, getattr(importlib.import_module(module), attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in _COMMANDS)
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                rows = []
                for name in names:
                    command = self.get_command(ctx, name)
                    summary = command.get_short_help_str(limit=formatter.width - width - 6) if command else ""
                    rows.append((name.ljust(width), summary))
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), meaning) for code, meaning in MEANINGS.items()])
        with formatter.section("Which server"):
            formatter.write_text(
                "--address or NOETL_API_ADDRESS names the gRPC address of api, with a token from --token, NOETL_TOKEN "
                "or NOETL_TOKEN_FILE. Without an address, the commands use the stack that `noetl dev up` started in "
                "NOETL_HOME, else in the nearest .noetl directory."
            )


@click.group(cls=Application, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="noetl-cli", prog_name="noetl")
def app() -> None:
    """Run data workflows as playbooks, and see everything they did.

    \b
    Start:
      noetl dev up                                 # the whole of NoETL on this machine
      noetl run examples/playbooks/hello_world.yaml
      noetl events 271828182845904523 --follow
    """
