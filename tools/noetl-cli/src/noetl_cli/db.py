"""`noetl db`: bring a database to this release, give the services' roles their passwords, tell of a restore."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import asyncpg
import click
from noetl_adapters.postgres.migrate import migrate as apply_migrations
from noetl_adapters.postgres.pool import translated
from noetl_core.errors import InvalidInput, NoetlError, NotAuthenticated, NotFound, NotPermitted, Rejected
from noetl_servicekit.env import Env

from noetl_cli.output import Output, echo_json, output_option

PASSWORD_VARIABLES: Final[Mapping[str, str]] = {
    "noetl_api": "NOETL_API_PASSWORD",
    "noetl_publisher": "NOETL_PUBLISHER_PASSWORD",
    "noetl_projector": "NOETL_PROJECTOR_PASSWORD",
}
"""Every role that the migrations make, and where its password may be given."""

_SCRAM_ITERATIONS = 4096
_DSN_OPTION = click.option(
    "--dsn",
    required=True,
    envvar="NOETL_POSTGRES_DSN",
    show_envvar=True,
    metavar="DSN",
    help="The owner's address of the database: postgresql://user:password@host/database.",
)


@click.group()
def db() -> None:
    """Prepare the database of an installation."""


@db.command()
@_DSN_OPTION
@click.option(
    "--shard-count",
    type=click.IntRange(1, 4096),
    default=64,
    show_default=True,
    envvar="NOETL_SHARD_COUNT",
    show_envvar=True,
    help="Fixed for the life of the installation.",
)
@output_option
def migrate(*, dsn: str, shard_count: int, output: Output) -> None:
    """Bring the database to the schema of this release; safe to repeat, and from several places at once.

    \b
    Example:
      noetl db migrate --dsn postgresql://owner:secret@db.example/noetl
    """
    applied = asyncio.run(migrate_database(dsn, shard_count=shard_count))
    if output is Output.JSON:
        echo_json({"applied": list(applied), "shard_count": shard_count})
    else:
        click.echo(f"applied {', '.join(applied)}" if applied else "nothing to do: the schema is up to date")


@db.command()
@_DSN_OPTION
@click.option(
    "--passwords-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='A JSON object: {"noetl_api": "…", …}.',
)
@output_option
def roles(*, dsn: str, passwords_file: Path | None, output: Output) -> None:
    """Set the passwords with which the services log in.

    They come from --passwords-file, else from NOETL_API_PASSWORD, NOETL_PUBLISHER_PASSWORD and
    NOETL_PROJECTOR_PASSWORD, or the files that these names with _FILE at their end point to. The server
    is sent SCRAM verifiers, never the passwords.

    \b
    Example:
      noetl db roles --dsn postgresql://owner:secret@db.example/noetl --passwords-file passwords.json
    """
    passwords = _passwords_from_file(passwords_file) if passwords_file else _passwords_from_env(os.environ)
    asyncio.run(set_role_passwords(dsn, passwords))
    if output is Output.JSON:
        echo_json({"roles": sorted(passwords)})
    else:
        click.echo(f"passwords set: {', '.join(sorted(passwords))}")


@db.command()
@_DSN_OPTION
@output_option
def restored(*, dsn: str, output: Output) -> None:
    """Tell that the database was put back to an earlier state, before the services start again.

    Messages on the bus may tell of events that the restored log has lost; from now on they are dropped. Recovery to a
    point in time, a restore into another cluster and the promotion of a standby are noticed without this; a volume that
    was put back from a snapshot is not.

    \b
    Example:
      noetl db restored --dsn postgresql://owner:secret@db.example/noetl
    """
    log_branch = asyncio.run(mark_restored(dsn))
    if output is Output.JSON:
        echo_json({"log_branch": log_branch})
    else:
        click.echo(f"from now on this is the log {log_branch}; messages of others are dropped")


async def migrate_database(dsn: str, *, shard_count: int) -> tuple[str, ...]:
    """Apply what is missing; returns what was applied."""
    try:
        return await apply_migrations(dsn, shard_count=shard_count)
    except asyncpg.PostgresError as exc:
        raise _explained(exc) from exc


async def mark_restored(dsn: str) -> str:
    """Begin another branch of the log; returns its name."""
    try:
        async with translated():
            connection = await asyncpg.connect(dsn, server_settings={"application_name": "noetl-db"})
            try:
                await connection.execute("UPDATE noetl.installation SET restores = restores + 1")
                return str(await connection.fetchval("SELECT noetl.log_branch()"))
            finally:
                await connection.close()
    except asyncpg.PostgresError as exc:
        raise _explained(exc) from exc


async def set_role_passwords(dsn: str, passwords: Mapping[str, str]) -> None:
    """All of them or none."""
    verifiers = {role: scram_verifier(password) for role, password in passwords.items()}
    try:
        async with translated():
            connection = await asyncpg.connect(dsn, server_settings={"application_name": "noetl-db"})
            try:
                async with connection.transaction():
                    for role, verifier in verifiers.items():
                        # No parameters in this statement; a role's name and a verifier need no escaping.
                        await connection.execute(f"ALTER ROLE {role} PASSWORD '{verifier}'")
            finally:
                await connection.close()
    except asyncpg.PostgresError as exc:
        raise _explained(exc) from exc


def scram_verifier(password: str, *, salt: bytes | None = None) -> str:
    """What PostgreSQL keeps of a password; made here, the password itself never reaches a server or its logs."""
    if not password or not password.isascii() or not password.isprintable():
        raise InvalidInput("a role's password must be printable ASCII")  # others would have to be normalized first
    salt = salt or secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _SCRAM_ITERATIONS)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${_SCRAM_ITERATIONS}:{encoded[0]}${encoded[1]}:{encoded[2]}"


def _passwords_from_file(file: Path) -> Mapping[str, str]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as exc:
        raise InvalidInput(f"{file} is not JSON: {exc}") from exc
    if not isinstance(document, dict) or document.keys() != PASSWORD_VARIABLES.keys():
        raise InvalidInput(f"{file} must have exactly the roles {', '.join(PASSWORD_VARIABLES)}")
    if not all(isinstance(password, str) for password in document.values()):
        raise InvalidInput(f"every password in {file} must be text")
    return document


def _passwords_from_env(values: Mapping[str, str]) -> Mapping[str, str]:
    env = Env(values)
    passwords = {role: env.secret(variable) for role, variable in PASSWORD_VARIABLES.items()}
    env.check()
    return passwords


def _explained(exc: asyncpg.PostgresError) -> NoetlError:
    match exc:
        case asyncpg.InvalidAuthorizationSpecificationError():
            return NotAuthenticated(f"the database refuses the login: {exc}")
        case asyncpg.InsufficientPrivilegeError():
            return NotPermitted(f"the database refuses: {exc}; use the owner's address")
        case asyncpg.InvalidCatalogNameError():
            return NotFound("database", str(exc))
        case asyncpg.UndefinedObjectError():
            return NotFound("role", f"{exc}; run noetl db migrate first")
        case _:
            return Rejected(f"the database refuses: {exc}")
