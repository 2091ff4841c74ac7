from __future__ import annotations

import pytest
from noetl_api.application.scopes import acting_scope, named_scope, visible_scope
from noetl_core.errors import InvalidInput, NotPermitted
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller, Role

ACME = Scope(tenant_id="acme", organization_id="ops")
RIVAL = Scope(tenant_id="rival", organization_id="ops")
ADA = Caller(name="ada", tenant_id="acme", organization_id="ops", role=Role.WRITER)
SERVICE = Caller(name="planner", tenant_id="*", organization_id="*", role=Role.SERVICE)
OWN_SERVICE = Caller(name="own", tenant_id="acme", organization_id="*", role=Role.SERVICE)


def test_the_token_decides_for_everybody_but_services() -> None:
    assert acting_scope(ADA, None) == acting_scope(ADA, ACME) == visible_scope(ADA, None) == ACME
    for check in (acting_scope, visible_scope):
        with pytest.raises(NotPermitted):
            check(ADA, RIVAL)


def test_a_service_names_for_whom_it_acts_and_may_read_everything() -> None:
    assert acting_scope(SERVICE, RIVAL) == RIVAL
    assert visible_scope(SERVICE, None) is None
    with pytest.raises(InvalidInput):
        acting_scope(SERVICE, None)


def test_a_service_of_one_tenant_stays_in_it() -> None:
    assert acting_scope(OWN_SERVICE, Scope(tenant_id="acme", organization_id="x")).organization_id == "x"
    with pytest.raises(NotPermitted):
        visible_scope(OWN_SERVICE, RIVAL)


@pytest.mark.parametrize(("tenant", "organization"), [("a", ""), ("", "b"), ("*", "b"), ("a", "*")])
def test_half_a_scope_is_none(tenant: str, organization: str) -> None:
    with pytest.raises(InvalidInput):
        named_scope(tenant, organization)


def test_an_empty_scope_is_not_named() -> None:
    assert named_scope("", "") is None
    assert named_scope("acme", "ops") == ACME
