"""Locators: one spelling for each address, and distances that follow from it."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.errors import LocatorInvalid
from noetl_core.locator import (
    Distance,
    Locator,
    distance,
    is_payload,
    parse,
    payload_locator,
    result_locator,
    to_nats_subject,
    worker_locator,
)

thorough = settings(deadline=None, derandomize=True, max_examples=300)

DIGEST = "0123456789abcdef" * 4
VALUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text not in {".", ".."})
KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda key: key not in {"tenant", "org", "region", "zone", "cluster", "node", "worker", "result", "payloads"}
)
LOCATORS = st.builds(
    lambda root, rest: Locator((*root, *(part for pair in rest.items() for part in pair))),
    st.one_of(
        st.tuples(st.just("tenant"), VALUES, st.just("org"), VALUES),
        st.tuples(st.just("tenant"), VALUES, st.just("payloads"), st.just("sha256"), VALUES),
    ),
    st.dictionaries(KEYS, VALUES, max_size=4),
)
PLACES = st.none() | st.sampled_from(["a", "b"])
WORKERS = st.builds(
    worker_locator,
    tenant=st.just("t"),
    org=st.just("o"),
    worker=st.sampled_from(["w1", "w2"]),
    region=PLACES,
    zone=PLACES,
    cluster=PLACES,
    node=PLACES,
)


@thorough
@given(LOCATORS)
def test_a_locator_survives_as_text(locator: Locator) -> None:
    assert parse(str(locator)) == locator


@thorough
@given(st.text() | st.text(alphabet="tenaorg/%2Fa.?#").map("noetl://tenant/{}".format))
def test_text_is_a_locator_in_exactly_one_spelling_or_refused(text: str) -> None:
    try:
        locator = parse(text)
    except LocatorInvalid:
        return
    assert str(locator) == text


@pytest.mark.parametrize("kind", ["tenant", "execution", "dataset", "stream", "partition", "payload"])
def test_a_locator_may_start_with_each_kind(kind: str) -> None:
    locator = parse(f"noetl://{kind}/x")

    assert locator.kind == kind
    assert locator.value(kind) == "x"


def test_values_are_percent_encoded() -> None:
    locator = worker_locator(tenant="a/b", org="100%", worker="w ?#é")

    assert str(locator) == "noetl://tenant/a%2Fb/org/100%25/worker/w%20%3F%23%C3%A9"
    assert parse(str(locator)).value("tenant") == "a/b"


def test_a_worker_stands_at_the_end_of_its_places_from_coarse_to_fine() -> None:
    locator = worker_locator(
        tenant="acme",
        org="care",
        region="eu-1",
        zone="eu-1a",
        cluster="prod",
        node="n7",
        worker="cpu-01",
    )

    assert str(locator) == ("noetl://tenant/acme/org/care/region/eu-1/zone/eu-1a/cluster/prod/node/n7/worker/cpu-01")
    assert locator.kind == "worker"


def test_places_that_nobody_knows_are_left_out() -> None:
    locator = worker_locator(tenant="acme", org="care", node="n7", worker="cpu-01")

    assert str(locator) == "noetl://tenant/acme/org/care/node/n7/worker/cpu-01"
    assert locator.value("region") is None


def test_a_result_is_named_by_execution_step_and_id() -> None:
    locator = result_locator(execution_id=42, step="load rows", result_id="r1")

    assert str(locator) == "noetl://execution/42/result/load%20rows/r1"
    assert locator.values("result") == ("load rows", "r1")
    assert locator.kind == "result"


def test_a_payload_is_named_by_its_digest_under_its_organization() -> None:
    locator = payload_locator(tenant_id="acme", organization_id="care", sha256=DIGEST)

    assert str(locator) == f"noetl://tenant/acme/org/care/payloads/sha256/{DIGEST}"
    assert locator.kind == "payload"
    assert is_payload(locator, sha256=DIGEST)
    assert not is_payload(locator, sha256=DIGEST[::-1])
    assert not is_payload(parse("noetl://payload/x"), sha256="x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "noetl://",
        "noetl:///",
        "http://tenant/a",
        "NOETL://tenant/a",
        "noetl://tenant",
        "noetl://tenant/",
        "noetl://tenant/a/",
        "noetl://tenant//org/o",
        "noetl://tenant/a/org",
        "noetl://worker/w",
        "noetl://tenant/a?x=1",
        "noetl://tenant/a#x",
        "noetl://tenant/a/tenant/b",
        "noetl://tenant/a/Org/o",
        "noetl://tenant/a/%6frg/o",
        "noetl://tenant/%61",
        "noetl://tenant/a%2fb",
        "noetl://tenant/a b",
        "noetl://tenant/%ff",
        "noetl://tenant/%zz",
        "noetl://tenant/..",
        "noetl://tenant/%2E%2E",
        "noetl://tenant/a/org/./node/n",
        "noetl://tenant/a/cluster/c/region/r",
        "noetl://execution/1/result/step",
        "noetl://tenant/a/payloads/sha256",
        "noetl://tenant/\ud800",
    ],
)
def test_text_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(LocatorInvalid) as refusal:
        parse(text)

    assert refusal.value.code == "locator.invalid"


@pytest.mark.parametrize("tenant", ["", ".", "..", "\ud800"])
def test_a_value_that_no_address_can_have_is_refused(tenant: str) -> None:
    with pytest.raises(LocatorInvalid):
        payload_locator(tenant_id=tenant, organization_id="o", sha256=DIGEST)


@pytest.mark.parametrize("digest", ["", "abc", DIGEST.upper(), DIGEST + "0", DIGEST + "\n"])
def test_a_payload_needs_a_sha256_in_lowercase_hex(digest: str) -> None:
    with pytest.raises(LocatorInvalid):
        payload_locator(tenant_id="t", organization_id="o", sha256=digest)


def test_a_subject_has_a_token_for_each_segment_and_loses_what_a_token_cannot_carry() -> None:
    locator = worker_locator(tenant="acme.eu", org="a b", worker="w*>1")

    assert to_nats_subject(locator) == "noetl.tenant.acme_eu.org.a_b.worker.w__1"


@thorough
@given(LOCATORS)
def test_every_subject_is_made_of_safe_tokens(locator: Locator) -> None:
    tokens = to_nats_subject(locator).split(".")

    assert len(tokens) == 1 + len(locator.segments)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", token) for token in tokens)


def at(**places: str) -> Locator:
    return worker_locator(tenant="t", org="o", worker="w", **places)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (at(region="r", zone="z", cluster="c", node="n"), at(region="r", zone="z", cluster="c", node="n"), "node"),
        (at(node="n"), at(node="n"), "node"),
        (at(cluster="c", node="n"), at(cluster="d", node="n"), "any"),
        (at(region="r", zone="z", node="n"), at(region="r", zone="z", node="m"), "zone"),
        (at(region="r", zone="a"), at(region="q", zone="a"), "any"),
        (at(region="r", zone="y"), at(region="r", zone="z"), "region"),
        (at(region="r", cluster="c"), at(region="q", cluster="c"), "cluster"),
        (at(), at(), "any"),
        (at(node="n"), at(), "any"),
    ],
)
def test_distance_is_the_closest_place_that_both_are_in(a: Locator, b: Locator, expected: str) -> None:
    assert distance(a, b) == expected


@thorough
@given(WORKERS, WORKERS)
def test_distance_is_the_same_both_ways_and_always_within_any(a: Locator, b: Locator) -> None:
    assert distance(a, b) is distance(b, a)
    assert distance(a, b).within(Distance.ANY)


def test_distances_are_ordered_from_near_to_far() -> None:
    near_to_far = list(Distance)

    assert near_to_far == ["node", "zone", "region", "cluster", "any"]
    assert all(
        near.within(far) == (near_to_far.index(near) <= near_to_far.index(far))
        for near in near_to_far
        for far in near_to_far
    )
