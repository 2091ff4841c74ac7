"""Which database a credential stands for, in every way that one can be written."""

import pytest
from noetl_core.canonical import JsonValue
from noetl_worker.application.credentials import Credential
from noetl_worker.tools.call_failed import CallFailed
from noetl_worker.tools.postgres_target import PostgresTarget, postgres_target

EXPECTED = PostgresTarget(host="db", port=6000, user="ada", password="p w", database="shop")


def target(**data: JsonValue) -> PostgresTarget:
    return postgres_target(Credential(name="c", type="postgres", data=data))


@pytest.mark.parametrize(
    "data",
    [
        {"db_host": "db", "db_port": 6000, "db_user": "ada", "db_password": "p w", "db_name": "shop"},
        {"host": "db", "port": "6000", "user": "ada", "password": "p w", "dbname": "shop"},
        {"host": "db", "port": 6000, "username": "ada", "password": "p w", "database": "shop"},
        {"dsn": "postgresql://ada:p%20w@db:6000/shop"},
        {"dsn": "host=db port=6000 user=ada password='p w' dbname=shop"},
        {"dsn": "postgresql://nobody@nowhere/shop", "host": "db", "port": 6000, "user": "ada", "password": "p w"},
        {"dsn": "postgresql:///shop?host=db&port=6000&user=ada&password=p%20w"},
    ],
)
def test_a_credential_can_be_written_in_many_ways(data: dict[str, JsonValue]) -> None:
    assert target(**data) == EXPECTED


def test_what_is_not_said_is_as_postgresql_has_it() -> None:
    assert target(host="db", user="ada") == PostgresTarget(
        host="db", port=5432, user="ada", password="", database="ada", sslmode="prefer"
    )


def test_settings_of_an_address_are_settings_of_the_session() -> None:
    found = target(dsn="postgresql://ada@db/shop?sslmode=require&role=reader")

    assert (found.sslmode, found.settings) == ("require", (("role", "reader"),))
    assert target(host="db", user="ada", ssl=True).sslmode == "require"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"host": "db"},
        {"host": "db", "user": "ada", "port": "many"},
        {"host": "db", "user": "ada", "port": 70000},
        {"host": "db", "user": "ada", "sslmode": "perhaps"},
        {"dsn": "host=db user"},
        {"dsn": "postgresql://ada@db:many/shop"},
        {"dsn": "postgresql://ada@one:1,two:2/shop"},
    ],
)
def test_others_do_not_fit_and_their_values_are_not_repeated(data: dict[str, JsonValue]) -> None:
    with pytest.raises(CallFailed) as refusal:
        target(**data)

    assert refusal.value.outcome.error is not None
    assert refusal.value.outcome.error.code == "CREDENTIAL_UNFIT"
    assert "ada" not in refusal.value.outcome.error.message


def test_a_target_does_not_show_its_password() -> None:
    assert "p w" not in repr(EXPECTED)
