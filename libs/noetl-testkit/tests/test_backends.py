import asyncio
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import asyncpg
import nats
import pytest
from noetl_cli.dev.ports import free_port
from noetl_cli.dev.sql import execute, fetch_value
from noetl_core.errors import Unavailable
from noetl_testkit import backends
from noetl_testkit.backends import NatsBackend, PostgresBackend, embedded_nats, fresh_database, template_database

ABANDONING = """
import os, signal
from noetl_testkit.backends import embedded_nats
with embedded_nats() as server:
    print(server.directory.parent, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_databases_copied_from_one_template_know_nothing_of_each_other(postgres_server: PostgresBackend) -> None:
    prepared = []

    def prepare(dsn: str) -> None:
        prepared.append(dsn)
        execute(dsn, "CREATE TABLE item (n int)", "INSERT INTO item VALUES (1)")

    with (
        template_database(postgres_server, prepare) as template,
        fresh_database(postgres_server, template) as first,
        fresh_database(postgres_server, template) as second,
    ):
        execute(first, "INSERT INTO item VALUES (2)")

        assert fetch_value(first, "SELECT count(*) FROM item") == 2
        assert fetch_value(second, "SELECT count(*) FROM item") == 1
    assert len(prepared) == 1


async def test_a_session_left_open_by_the_preparation_does_not_keep_a_template_from_being_copied(
    postgres_server: PostgresBackend,
) -> None:
    sessions: list[Any] = []
    loop = asyncio.get_running_loop()

    async def prepare(dsn: str) -> None:
        session = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncpg.connect(dsn), loop))
        sessions.append(session)

    preparing = template_database(postgres_server, prepare)
    template = await asyncio.to_thread(preparing.__enter__)
    try:
        with fresh_database(postgres_server, template) as dsn:
            assert fetch_value(dsn, "SELECT 1") == 1
    finally:
        preparing.__exit__(None, None, None)
        sessions[0].terminate()


def test_databases_are_gone_after_the_test_even_with_sessions_open(postgres_server: PostgresBackend) -> None:
    query = "SELECT count(*) FROM pg_database WHERE datname LIKE 'noetl\\_%'"
    before = fetch_value(postgres_server.admin_dsn, query)

    with fresh_database(postgres_server) as dsn:
        execute(dsn, "SELECT 1")

    assert fetch_value(postgres_server.admin_dsn, query) == before


async def test_the_shared_nats_server_has_jetstream(nats_server: NatsBackend) -> None:
    client = await nats.connect(nats_server.url)
    account = await client.jetstream().account_info()
    await client.close()

    assert account.limits is not None


def test_servers_named_by_the_environment_are_taken_as_they_are(postgres_server: PostgresBackend) -> None:
    with backends.postgres_server({"NOETL_TEST_POSTGRES_DSN": postgres_server.admin_dsn}) as named:
        assert named == postgres_server


@pytest.mark.parametrize("kind", ["postgres", "nats"])
def test_a_named_server_that_does_not_answer_fails_and_does_not_skip(kind: str) -> None:
    port = free_port()
    with pytest.raises(Unavailable):
        if kind == "postgres":
            with backends.postgres_server({"NOETL_TEST_POSTGRES_DSN": f"postgresql://a:b@127.0.0.1:{port}/c"}):
                pass
        else:
            with backends.nats_server({"NOETL_TEST_NATS_URL": f"nats://127.0.0.1:{port}"}):
                pass


def test_addresses_with_secrets_stay_out_of_reports(postgres_server: PostgresBackend) -> None:
    assert "://" not in repr(postgres_server)


def test_directories_of_runs_that_were_killed_are_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # others would remove it first
    monkeypatch.setattr(tempfile, "tempdir", None)
    killed = subprocess.run([sys.executable, "-c", ABANDONING], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    abandoned = Path(killed.stdout.strip())
    assert abandoned.parent == tmp_path
    assert abandoned.exists()

    with embedded_nats() as server:
        assert not abandoned.exists()
        assert server.directory.exists()
