import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import asyncpg
import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.migrate import migrate
from noetl_adapters.postgres.pool import PATIENT, open_pool
from noetl_adapters.postgres.projections import PostgresProjections
from noetl_adapters.postgres.snapshots import PostgresSnapshots
from noetl_adapters.postgres.surface_tables import KEYS, TABLES
from noetl_core.errors import Corrupt, InvalidInput, Unavailable
from noetl_core.ports.event_log import Scope
from noetl_core.surfaces.shapes import Surface, check_row, key_of
from noetl_core.upcasting.releases import UPCASTERS
from noetl_testkit.backends import PostgresBackend, TemplateDatabase, fresh_database, template_database
from noetl_testkit.compliance.projections import (
    OTHER_REGISTRY,
    SCOPE,
    ProjectionStoreCompliance,
    projected,
    running,
)
from noetl_testkit.compliance.snapshots import SnapshotStoreCompliance
from noetl_testkit.histories import EXECUTION, History, choices, initialized, two_steps
from noetl_testkit.telling_histories import telling_history

AS_PROJECTOR = "?role=noetl_projector"
"""Every test works with the grants that the service has."""


@pytest.fixture(scope="module")
def template(postgres_server: PostgresBackend) -> Iterator[TemplateDatabase]:
    async def prepare(dsn: str) -> None:
        await migrate(dsn, shard_count=64)

    with template_database(postgres_server, prepare) as template:
        yield template


@pytest.fixture
def dsn(postgres_server: PostgresBackend, template: TemplateDatabase) -> Iterator[str]:
    with fresh_database(postgres_server, template) as dsn:
        yield dsn


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(dsn + AS_PROJECTOR, min_size=1, max_size=3, application_name="test")
    yield pool
    await pool.close()


@pytest.fixture
def projections(pool: ConnectionPool) -> PostgresProjections:
    return PostgresProjections(pool)


class TestPostgresProjections(ProjectionStoreCompliance):
    @pytest.fixture
    def store(self, projections: PostgresProjections) -> PostgresProjections:
        return projections


class TestPostgresSnapshots(SnapshotStoreCompliance):
    @pytest.fixture
    def store(self, pool: ConnectionPool) -> PostgresSnapshots:
        return PostgresSnapshots(pool)


async def test_a_row_that_the_database_cannot_hold_refuses_the_batch_and_leaves_nothing(
    projections: PostgresProjections,
) -> None:
    good = projected(two_steps(History()))
    bad = projected(History(EXECUTION + 1).add(initialized("zero \u0000")))

    with pytest.raises(InvalidInput):
        await projections.write([good, bad])

    assert await projections.versions([EXECUTION, EXECUTION + 1]) == {}


async def test_nobody_waits_for_what_is_written_together_and_takes_long(
    projections: PostgresProjections, dsn: str
) -> None:
    history, other = two_steps(History()), two_steps(History(EXECUTION + 1))
    await projections.write([projected(history, through=9, upcasters=OTHER_REGISTRY), projected(other, through=9)])
    await projections.write_barriers([EXECUTION])
    patient = await open_pool(dsn + AS_PROJECTOR, min_size=0, max_size=1, application_name="test", settings=PATIENT)

    async with patient, PostgresProjections(patient).together() as aside:
        await aside.write([projected(history, through=4, replaces=9)])
        async with asyncio.timeout(2.5):  # locks are waited for longer
            await projections.write_barriers([EXECUTION, EXECUTION + 1])
            await projections.write([projected(other, after=9)])
            seen = await projections.versions([EXECUTION, EXECUTION + 1])
        await aside.write([projected(history, after=4)])

    assert seen == {EXECUTION: 9, EXECUTION + 1: 18}
    assert await projections.versions([EXECUTION]) == {EXECUTION: 18}


async def test_a_state_of_another_form_is_no_state_and_its_row_still_counts(
    projections: PostgresProjections, dsn: str
) -> None:
    await projections.write([projected(two_steps(History()))])
    admin = await asyncpg.connect(dsn)
    await admin.execute("""UPDATE noetl.execution SET state = '{"format": 0}'""")
    await admin.close()

    (stored,) = (await projections.load([EXECUTION])).values()

    assert (stored.state, stored.stream_version) == (None, 18)


async def test_a_registry_counts_only_with_the_version_that_it_was_written_with(
    projections: PostgresProjections, dsn: str
) -> None:
    """A release that does not know the columns moves a row and leaves them; or has written it before there were any."""
    for number in range(3):
        await projections.write([projected(two_steps(History(EXECUTION + number)), through=9)])
    admin = await asyncpg.connect(dsn)
    await admin.execute("UPDATE noetl.execution SET stream_version = 10 WHERE execution_id = $1", EXECUTION)
    await admin.execute(
        "UPDATE noetl.execution SET upcasters = NULL, upcasters_version = NULL WHERE execution_id = $1", EXECUTION + 1
    )
    await admin.close()

    stored = await projections.load([EXECUTION, EXECUTION + 1, EXECUTION + 2])
    view = await projections.find_execution(SCOPE, EXECUTION)
    page = await projections.list_rows(SCOPE, [EXECUTION, EXECUTION + 1, EXECUTION + 2], limit=1)
    moved = await projections.write([projected(two_steps(History(EXECUTION + one)), after=9) for one in range(3)])

    assert {key: one.upcasters for key, one in stored.items()} == {
        EXECUTION: "",
        EXECUTION + 1: "",
        EXECUTION + 2: UPCASTERS.digest,
    }
    assert view is not None
    assert view.upcasters == ""
    assert page.upcasters == {EXECUTION + 2: UPCASTERS.digest}
    assert set(moved.refused) == {EXECUTION, EXECUTION + 1}


@pytest.mark.parametrize("column", ["tenant_id", "organization_id"])
@pytest.mark.parametrize("surface", TABLES)
async def test_a_row_of_another_owner_than_its_execution_says_so(
    projections: PostgresProjections, dsn: str, surface: Surface, column: str
) -> None:
    history = telling_history(choices(1))
    await projections.write([projected(history)])
    before = await projections.list_rows(SCOPE, [EXECUTION], limit=10_000)
    (victim, *_) = (row for row in before.rows if row.surface is surface)
    admin = await asyncpg.connect(dsn)
    await admin.execute(
        f"UPDATE noetl.{TABLES[surface]} SET {column} = 'rival' WHERE {KEYS[surface]} = $1",  # noqa: S608 - names of ours
        victim.key,
    )
    await admin.close()

    after = await projections.list_rows(None, [EXECUTION], limit=10_000)

    assert set(before.rows) - set(after.rows) == {victim}
    (told,) = set(after.rows) - set(before.rows)
    assert (told.surface, told.key) == (victim.surface, victim.key)
    owner = {"tenant_id": "default", "organization_id": "default", column: "rival"}
    assert told.row() == {**victim.row(), **owner}
    with pytest.raises(Corrupt, match=r"is stored for .*rival"):
        check_row(surface, told.row())


@pytest.mark.parametrize(
    ("surface", "column", "value"),
    [
        (Surface.EXECUTION, "error", '{"a":1,"a":2}'),
        (Surface.EXECUTION, "start_time", "infinity"),
        (Surface.STAGES, "total", "9007199254740993"),
        (Surface.STAGES, "frame_policy", "1e400"),
        (Surface.COMMANDS, "issued_at", "infinity"),
        (Surface.BUSINESS_OBJECTS, "attributes", "1e400"),
    ],
)
async def test_a_row_that_cannot_be_read_says_so_and_hides_no_other(
    projections: PostgresProjections, dsn: str, surface: Surface, column: str, value: str
) -> None:
    history = telling_history(choices(1))
    await projections.write([projected(history)])
    before = await projections.list_rows(SCOPE, [EXECUTION], limit=10_000)
    (victim, *_) = (row for row in before.rows if row.surface is surface)
    table, key = TABLES.get(surface, "execution"), KEYS.get(surface, "execution_id::text")
    admin = await asyncpg.connect(dsn)
    changed = await admin.execute(
        f"UPDATE noetl.{table} SET {column} = '{value}' WHERE {key} = $1",  # noqa: S608 - names and values of ours
        victim.key,
    )
    await admin.close()

    after = await projections.list_rows(SCOPE, [EXECUTION], limit=10_000)

    assert changed == "UPDATE 1"
    assert set(before.rows) - set(after.rows) == {victim}
    (told,) = set(after.rows) - set(before.rows)
    assert (told.surface, told.key, key_of(surface, told.row())) == (surface, victim.key, victim.key)
    with pytest.raises(Corrupt, match=f"the row {victim.key} of {surface} cannot be read: "):
        check_row(surface, told.row())


@pytest.mark.parametrize(
    ("value", "year"), [("infinity", 9999), ("20000-01-01", 9999), ("-infinity", 1), ("0044-03-15 BC", 1)]
)
async def test_a_deadline_that_no_calendar_has_is_told_as_another_one(
    projections: PostgresProjections, dsn: str, value: str, year: int
) -> None:
    await projections.write([projected(two_steps(History()))])
    admin = await asyncpg.connect(dsn)
    await admin.execute(f"UPDATE noetl.execution SET next_deadline = '{value}'")  # noqa: S608 - values of ours
    await admin.close()

    page = await projections.list_rows(SCOPE, [EXECUTION], limit=1)

    told = page.columns[EXECUTION].next_deadline
    assert told is not None
    assert (told.year, told.utcoffset()) == (year, timedelta(0))


@pytest.mark.parametrize("surface", TABLES)
async def test_rows_of_an_execution_that_has_none_of_its_own_are_listed(
    projections: PostgresProjections, dsn: str, surface: Surface
) -> None:
    history = telling_history(choices(1))
    await projections.write([projected(history)])
    admin = await asyncpg.connect(dsn)
    for table in {"execution", *TABLES.values()} - {TABLES[surface]}:
        await admin.execute(f"DELETE FROM noetl.{table}")  # noqa: S608 - names of ours
    await admin.execute(f"UPDATE noetl.{TABLES[surface]} SET tenant_id = 'rival'")  # noqa: S608 - names of ours
    await admin.close()

    everybody, rivals = [
        await projections.list_live(scope, after=0, limit=1)
        for scope in (None, Scope(tenant_id="rival", organization_id="default"))
    ]

    assert [(one.execution_id, one.tenant_id) for one in everybody.executions] == [(EXECUTION, "rival")]
    assert rivals == everybody
    assert (await projections.list_live(SCOPE, after=0, limit=1)).executions == ()


async def test_a_server_that_went_away_is_unavailable_and_not_a_defect(
    projections: PostgresProjections, pool: ConnectionPool
) -> None:
    await pool.close()

    with pytest.raises(Unavailable):
        await projections.find_execution(SCOPE, EXECUTION)


async def test_looking_for_silent_commands_reads_only_those(projections: PostgresProjections, dsn: str) -> None:
    """Most commands are closed or alive; a table scan would grow with the history."""
    await projections.write([projected(running(History(EXECUTION + number))[0]) for number in range(20)])
    admin = await asyncpg.connect(dsn)
    await admin.execute("ANALYZE noetl.command")
    await admin.execute("SET enable_seqscan = off")
    plan = await admin.fetch(
        "EXPLAIN SELECT 1 FROM noetl.command WHERE lease_until < now() "
        "ORDER BY lease_until, execution_id, command_id LIMIT 100"
    )
    await admin.close()

    assert "command_lease_idx" in "\n".join(row[0] for row in plan)


async def test_the_projector_s_role_reads_and_writes_nothing_else(pool: ConnectionPool) -> None:
    for table in ("event", "stream", "outbox", "catalog", "execution_shard"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await pool.fetch(f"SELECT * FROM noetl.{table}")  # noqa: S608
    for table in ("execution", "command", "projection_checkpoint"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await pool.execute(f"DELETE FROM noetl.{table}")  # noqa: S608
