from pathlib import Path

import pytest
from noetl_cli.dev.component import Component, Part, Task, check_stack, dependents_of
from noetl_cli.dev.errors import DirectoryInUse, StackInvalid
from noetl_cli.dev.keeper import RestartPolicy
from noetl_cli.dev.lock import DirectoryLock
from noetl_cli.dev.processes import ProcessIdentity


def component(name: str, *depends_on: str) -> Component:
    return Component(name=name, argv=("/bin/true",), depends_on=depends_on)


def test_a_stack_knows_who_waits_for_whom() -> None:
    parts: list[Part] = [
        component("postgres"),
        Task(name="migrate", run=lambda: None, depends_on=("postgres",)),
        component("api", "migrate", "postgres"),
    ]

    check_stack(parts)

    assert dependents_of("postgres", parts) == ("migrate", "api")
    assert dependents_of("api", parts) == ()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([component("api"), component("api")], "more than one component is called 'api'"),
        ([component("api", "nats")], "'api' depends on 'nats', which is not in the stack"),
        ([component("api", "worker"), component("worker", "api")], "components wait for each other"),
        ([Component(name="api", argv=())], "'api' has no command"),
    ],
)
def test_parts_that_are_no_stack_are_refused_with_the_reason(parts: list[Part], reason: str) -> None:
    with pytest.raises(StackInvalid, match=reason):
        check_stack(parts)


def test_a_crashing_component_is_restarted_slower_and_slower_but_never_given_up() -> None:
    policy = RestartPolicy(first_seconds=0.5, longest_seconds=10.0)

    delays = [policy.delay(crashes) for crashes in range(1, 8)]

    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert policy.delay(100_000) == 10.0


def test_a_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path / "lock"), DirectoryLock(tmp_path / "lock")
    assert second.holder() is None

    first.acquire()

    with pytest.raises(DirectoryInUse) as refusal:
        second.acquire()
    assert refusal.value.pid == ProcessIdentity.current().pid
    assert second.holder() == ProcessIdentity.current()

    first.release()
    assert second.holder() is None
    second.acquire()
    second.release()
