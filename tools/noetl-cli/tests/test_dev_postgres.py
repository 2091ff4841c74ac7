import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from noetl_cli.dev.account import Account, switched_account, unprivileged_account
from noetl_cli.dev.errors import DirectoryInUse, ServerMissing, StartFailed
from noetl_cli.dev.ports import free_port, is_free
from noetl_cli.dev.postgres import EmbeddedPostgres, PostgresCluster, postgres_binary
from noetl_cli.dev.processes import ProcessIdentity
from noetl_cli.dev.sql import accepts_connections, execute, fetch_value, postgres_dsn
from noetl_core.errors import NotAuthenticated
from noetl_testkit.eventually import eventually

OWNER = """
import os, signal, sys
from pathlib import Path
from noetl_cli.dev.postgres import EmbeddedPostgres, PostgresCluster
server = EmbeddedPostgres(PostgresCluster(directory=Path(sys.argv[1]), port=int(sys.argv[2]), durable=False))
server.start()
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def accounts() -> list[Account]:
    """As we are, or as root in each of the ways in which root can give itself up."""
    usual = unprivileged_account(postgres_binary("postgres"))
    return [usual, switched_account()] if os.geteuid() == 0 else [usual]


def cluster(directory: Path, *, durable: bool = False, account: Account | None = None) -> PostgresCluster:
    return PostgresCluster(directory=directory, port=free_port(), durable=durable, account=account)


@contextmanager
def _reachable_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="noetl-reachable-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(cluster(tmp_path_factory.mktemp("postgres"), durable=True)) as server:
        yield server


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "on"),
        ("data_checksums", "on"),
        ("server_encoding", "UTF8"),
        ("lc_collate", None),
        ("listen_addresses", "127.0.0.1"),
        ("unix_socket_directories", ""),
        ("password_encryption", "scram-sha-256"),
        ("timezone", "UTC"),
        ("max_connections", "100"),
    ],
)
def test_the_server_runs_with_the_settings_that_are_promised(
    server: EmbeddedPostgres, setting: str, value: str | None
) -> None:
    if value is None:
        query = "SELECT datcollate || ',' || datctype FROM pg_database WHERE datname = 'postgres'"
        assert fetch_value(server.dsn(), query) == "C,C"
    else:
        assert fetch_value(server.dsn(), "SELECT current_setting($1)", setting) == value


def test_it_is_postgresql_18(server: EmbeddedPostgres) -> None:
    assert fetch_value(server.dsn(), "SHOW server_version").startswith("18.")


def test_only_the_password_in_the_private_file_opens_the_door(server: EmbeddedPostgres) -> None:
    wrong = postgres_dsn(user="postgres", password="guess", port=server.cluster.port, database="postgres")

    with pytest.raises(NotAuthenticated):
        accepts_connections(wrong)
    assert (server.directory / "superuser.password").stat().st_mode & 0o777 == 0o600


def test_a_directory_in_use_is_refused_and_the_user_named(server: EmbeddedPostgres) -> None:
    second = EmbeddedPostgres(PostgresCluster(directory=server.directory, port=free_port()))

    with pytest.raises(DirectoryInUse) as refusal:
        second.start()

    assert refusal.value.pid == os.getpid()
    assert server.cluster.is_ready()


def test_acknowledged_rows_survive_a_killed_server_on_the_same_port(server: EmbeddedPostgres) -> None:
    execute(server.dsn(), "CREATE TABLE kept (n int)", "INSERT INTO kept SELECT generate_series(1, 1000)")
    port = server.cluster.port

    server.kill()
    assert not server.cluster.is_ready()
    assert is_free(port)
    server.start()

    assert fetch_value(server.dsn(), "SELECT count(*) FROM kept") == 1000
    assert server.cluster.port == port


async def test_it_can_be_restarted_from_a_coroutine_or_a_thread_and_outlives_both(
    server: EmbeddedPostgres,
) -> None:
    server.restart()  # blocks the loop, but works

    thread = threading.Thread(target=server.restart)
    thread.start()
    thread.join()

    assert server.cluster.is_ready()
    assert accepts_connections(server.dsn())


def test_stopping_twice_is_harmless_and_a_started_server_is_left_alone(server: EmbeddedPostgres) -> None:
    server.stop()
    server.stop()
    assert server.pid is None

    server.start()
    pid = server.pid
    server.start()
    assert server.pid == pid


@pytest.mark.parametrize("account", accounts(), ids=lambda account: account.kind)
def test_a_cluster_that_was_cut_off_while_it_was_made_is_made_anew(account: Account) -> None:
    # not tmp_path: its parents are private, and the account may be another user's
    with _reachable_directory() as directory:
        unfinished = directory / "data.unfinished-1"
        unfinished.mkdir()
        (unfinished / "PG_VERSION").write_text("18\n")
        (directory / "password.unfinished-1").write_text("x")

        with EmbeddedPostgres(cluster(directory, account=account)) as server:
            assert fetch_value(server.dsn(), "SELECT 1") == 1

        assert not list(directory.glob("*.unfinished-*"))
        expected = account.uid if account.kind == "switch" else os.geteuid()
        assert (directory / "data").stat().st_uid == expected


def test_a_lock_file_that_names_a_stranger_does_not_keep_the_server_from_starting(tmp_path: Path) -> None:
    server = EmbeddedPostgres(cluster(tmp_path))
    server.cluster.prepare()
    stranger = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"])
    try:
        lock_file = tmp_path / "data" / "postmaster.pid"
        lock_file.write_text(f"{stranger.pid}\n{tmp_path / 'data'}\n1700000000\n5432\n\n127.0.0.1\n")

        with server:
            assert fetch_value(server.dsn(), "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_server_whose_owner_was_killed_ends_and_its_directory_can_be_used_again(tmp_path: Path) -> None:
    port = free_port()
    owner = subprocess.run(
        [sys.executable, "-c", OWNER, str(tmp_path), str(port)], capture_output=True, text=True, check=False
    )
    assert owner.returncode == -signal.SIGKILL, owner.stderr
    orphan = int(owner.stdout)

    with EmbeddedPostgres(PostgresCluster(directory=tmp_path, port=port, durable=False)) as server:
        assert server.pid != orphan
        assert fetch_value(server.dsn(), "SELECT 1") == 1
    eventually(lambda: ProcessIdentity.of(orphan) is None)


def test_data_of_another_major_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("16\n")

    with pytest.raises(StartFailed, match="was made by PostgreSQL 16"):
        EmbeddedPostgres(cluster(tmp_path)).start()

    assert (tmp_path / "data" / "PG_VERSION").read_text() == "16\n"


def test_a_start_that_fails_says_why_with_the_end_of_the_log(tmp_path: Path) -> None:
    broken = PostgresCluster(directory=tmp_path, port=free_port(), durable=False, settings={"no_such_setting": "1"})

    with pytest.raises(StartFailed, match="exited with code 1") as failure:
        EmbeddedPostgres(broken).start()

    assert "no_such_setting" in "".join(failure.value.__notes__)


def test_another_user_who_cannot_reach_the_data_is_told_which_directory_bars_the_way(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    stranger = Account(kind="switch", uid=os.geteuid() + 12345, gid=os.getegid())

    with pytest.raises(ServerMissing, match="cannot enter"):
        stranger.check_reach(private / "postgres" / "data")
