import base64
import hashlib
import hmac
from pathlib import Path

import asyncpg
import pytest
from noetl_cli.__main__ import run
from noetl_cli.db import PASSWORD_VARIABLES, migrate_database, scram_verifier, set_role_passwords
from noetl_core.errors import InvalidInput
from noetl_testkit.backends import PostgresBackend, fresh_database

# RFC 7677, section 3
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
AUTH_MESSAGE = (
    b"n=user,r=rOprNGfwEbeRWgbNEkqO,"
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
)
CLIENT_PROOF = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
SERVER_SIGNATURE = base64.b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_verifier_lets_a_server_check_the_example_of_the_standard() -> None:
    prefix, salted, keys = scram_verifier("pencil", salt=SALT).split("$")
    stored_key, server_key = (base64.b64decode(part) for part in keys.split(":"))

    client_signature = hmac.digest(stored_key, AUTH_MESSAGE, "sha256")
    client_key = bytes(left ^ right for left, right in zip(CLIENT_PROOF, client_signature, strict=True))

    assert (prefix, salted) == ("SCRAM-SHA-256", "4096:W22ZaJ0SNY7soEsUEjb6gQ==")
    assert hashlib.sha256(client_key).digest() == stored_key
    assert hmac.digest(server_key, AUTH_MESSAGE, "sha256") == SERVER_SIGNATURE


@pytest.mark.parametrize("password", ["", "päßwort", "two\nlines"])
def test_a_password_that_would_have_to_be_normalized_is_refused(password: str) -> None:
    with pytest.raises(InvalidInput, match="printable ASCII"):
        scram_verifier(password)


async def test_services_log_in_with_the_passwords_that_were_set(postgres_server: PostgresBackend) -> None:
    with fresh_database(postgres_server) as dsn:
        await migrate_database(dsn, shard_count=8)
        await set_role_passwords(dsn, {role: f"secret-of-{role}" for role in PASSWORD_VARIABLES})

        for role in PASSWORD_VARIABLES:
            connection = await asyncpg.connect(dsn, user=role, password=f"secret-of-{role}")
            assert await connection.fetchval("SELECT current_user") == role
            await connection.close()
            with pytest.raises(asyncpg.InvalidPasswordError):
                await asyncpg.connect(dsn, user=role, password="a guess")


def test_the_commands_prepare_a_database_from_nothing(
    postgres_server: PostgresBackend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    with fresh_database(postgres_server) as dsn:
        monkeypatch.setenv("NOETL_POSTGRES_DSN", dsn)
        assert run(["db", "roles"]) == 2
        assert "NOETL_API_PASSWORD is not set" in capsys.readouterr().err
        for variable in PASSWORD_VARIABLES.values():
            monkeypatch.setenv(variable, "secret")

        assert run(["db", "migrate", "--shard-count", "8"]) == 0
        assert "applied 0001" in capsys.readouterr().out
        assert run(["db", "migrate", "--shard-count", "8"]) == 0
        assert "nothing to do" in capsys.readouterr().out
        assert run(["db", "migrate", "--shard-count", "16"]) == 1
        assert "cannot be changed" in capsys.readouterr().err
        assert run(["db", "roles"]) == 0

        passwords = tmp_path / "passwords.json"
        passwords.write_text('{"noetl_api": "only one"}')
        assert run(["db", "roles", "--passwords-file", str(passwords)]) == 2
        assert "must have exactly the roles" in capsys.readouterr().err
