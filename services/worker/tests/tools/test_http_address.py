"""Addresses of requests: what is written is sent as it is, and shown without who asks."""

import re

import httpx
import pytest
from noetl_worker.tools import http_address
from noetl_worker.tools.http_address import HttpAddress


@pytest.mark.parametrize(
    "text",
    [
        "http://h",
        "http://h?x",
        "http://H:80/a b?x=1 2",
        "https://h:443/a%20b?q=a+b%20c&d=%",
        "http://h/%zz?q=%2F%7E",
        "http://h/ä?ü=ö#f g",
        "http://bücher.example/",
        "http://[::1]:8080/x",
        "http://h/a/../b/./c",
        "http://h/{a}|b^c`?q={a}|b^c`'\"<>",
        "http://h//a",
        "http://127.0.0.1:1/a;b=c,d",
        "http://h/a\\b",
        "http://h_x/",
        "http://h/a?b?c",
        "http://h:/x",
        "http://h/a?",
        "http://h?#f",
        "http://[fe80::1%25eth0]:81/",
    ],
)
def test_an_address_is_written_as_other_clients_write_it(text: str) -> None:
    assert HttpAddress.parse(text).without_caller() == str(httpx.URL(text))


@pytest.mark.parametrize(
    "text",
    [
        "http://H.example:80/a/b.c?x=%2F&y=a+b?c",
        "https://h:443/",
        "https://h:8443/~a;b=c,d(e)!$&'*+:@%zz",
        "http://127.0.0.1:1/items/7",
        "http://h/a/../b",
        "http://h/.a?b=/.",
        "http://h:099/x?",
        "http://h..:1/x",
    ],
)
def test_a_simple_address_is_read_as_any_other(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simple = HttpAddress.parse(text)
    monkeypatch.setattr(http_address, "_SIMPLE", re.compile(r"\b\B"))  # nothing is simple

    assert simple == HttpAddress.parse(text)
    assert simple.target == simple.sent.raw_path_qs


@pytest.mark.parametrize("text", ["http://h:99999/x", "http://h:/x", "http://-:1/"])
def test_a_simple_address_is_refused_as_any_other(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal() -> str:
        try:
            return HttpAddress.parse(text).without_caller()
        except ValueError as exc:
            return str(exc)

    told = refusal()
    monkeypatch.setattr(http_address, "_SIMPLE", re.compile(r"\b\B"))
    assert told == refusal()


def test_what_is_sent_has_a_path_and_neither_caller_nor_fragment() -> None:
    address = HttpAddress.parse("http://ada:p%40ss@h?q=a+b%20c#part")

    assert str(address.sent) == "http://h/?q=a+b%20c"
    assert (address.username, address.password) == ("ada", "p@ss")
    assert address.without_caller() == "http://h?q=a+b%20c#part"


@pytest.mark.parametrize(
    ("location", "there"),
    [
        ("/x", "http://h/x"),
        ("y?z", "http://h/a/y?z"),
        ("//o/p", "http://o/p"),
        ("https://q:443/ü", "https://q/%C3%BC"),
        ("?a=1", "http://h/a/b?a=1"),
        ("../k", "http://h/k"),
    ],
)
def test_a_redirect_leads_from_where_one_is(location: str, there: str) -> None:
    assert HttpAddress.parse("http://u:p@h/a/b").joined(location).without_caller() == there


def test_a_redirect_keeps_the_fragment_unless_it_has_one() -> None:
    here = HttpAddress.parse("http://h/a#f")

    assert here.joined("/b").fragment == "f"
    assert here.joined("/b#g").fragment == "g"


def test_origins_differ_by_scheme_host_and_port() -> None:
    assert HttpAddress.parse("http://H/a").origin == HttpAddress.parse("http://h:80/b").origin
    for other in ("https://h/", "http://h:81/", "http://g/"):
        assert HttpAddress.parse(other).origin != HttpAddress.parse("http://h/").origin


def test_parameters_are_hidden_wherever_they_stand() -> None:
    address = HttpAddress.parse("http://h/?a=1&k%65y=secret&key=again&b")

    assert address.with_hidden(frozenset({"key"}), "***").without_caller() == "http://h/?a=1&k%65y=***&key=***&b"


@pytest.mark.parametrize(
    "text",
    [
        *("", "/relative", "ftp://h/", "http://", "http://h:port/", "http://h:99999/", "http://h /", "http://h/\x01"),
        "http://" + "h" * 70_000,
    ],
)
def test_what_is_no_address_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(has|is|must)") as refused:
        HttpAddress.parse(text)
    assert "port/" not in str(refused.value)


@pytest.mark.parametrize("host", ["h\u2100", "[h", "h]", "[::1%25a b]"])
def test_a_password_in_what_is_no_address_is_not_repeated(host: str) -> None:
    with pytest.raises(ValueError, match=r"^(has|is|must)") as refused:
        HttpAddress.parse(f"http://u:hunter2@{host}/")
    assert "hunter2" not in str(refused.value)


def test_an_empty_query_is_sent_as_it_is_written() -> None:
    address = HttpAddress.parse("http://h/a?#f")

    assert (str(address.sent), address.sent.raw_path_qs) == ("http://h/a?", "/a?")
    assert address.with_more_query("b=1").sent.raw_path_qs == "/a?b=1"


@pytest.mark.parametrize("zone", ["%25Eth0", "%Eth0"])
def test_the_zone_of_an_address_is_for_the_connection_and_not_for_the_server(zone: str) -> None:
    address = HttpAddress.parse(f"http://[FE80::1{zone}]:81/")

    assert (address.sent.raw_host, address.host_header) == ("fe80::1%Eth0", "[fe80::1]:81")
    assert address.without_caller() == "http://[fe80::1%25Eth0]:81/"
