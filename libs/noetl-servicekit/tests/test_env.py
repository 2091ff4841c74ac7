from pathlib import Path

import pytest
from noetl_servicekit.env import Address, Env, SettingsInvalid


def test_values_are_read_as_what_they_are() -> None:
    env = Env(
        {
            "TEXT": " hello ",
            "WHOLE": "7",
            "NUMBER": "0.5",
            "FLAG": "Yes",
            "CHOICE": "json",
            "DIR": "/var/lib",
            "URL": "nats://localhost:4222",
            "LISTEN": "[::1]:0",
            "TOKEN": "s3cret",
        }
    )

    assert env.text("TEXT") == "hello"
    assert env.integer("WHOLE", minimum=1, maximum=7) == 7
    assert env.number("NUMBER") == 0.5
    assert env.boolean("FLAG") is True
    assert env.choice("CHOICE", ("json", "console")) == "json"
    assert env.path("DIR") == Path("/var/lib")
    assert env.url("URL", schemes=("nats",)) == "nats://localhost:4222"
    assert env.address("LISTEN") == Address(host="::1", port=0)
    assert str(env.address("LISTEN")) == "[::1]:0"
    assert env.secret("TOKEN") == "s3cret"
    env.check()


def test_what_is_not_set_or_empty_takes_its_default() -> None:
    env = Env({"WHOLE": "", "TEXT": "  "})

    assert env.integer("WHOLE", default=0) == 0
    assert env.text("TEXT", default="") == ""
    assert env.boolean("FLAG", default=False) is False
    assert env.address("LISTEN", default="127.0.0.1:0") == Address(host="127.0.0.1", port=0)
    assert env.optional_url("URL") is None
    assert env.optional_path("DIR") is None
    env.check()


def test_all_problems_are_reported_together() -> None:
    env = Env({"COUNT": "many", "RATIO": "nan", "PORT": "70000", "FORMAT": "xml", "FLAG": "perhaps"})
    env.text("DSN")
    env.integer("COUNT")
    env.number("RATIO")
    env.integer("PORT", maximum=65535)
    env.choice("FORMAT", ("json", "console"))
    env.boolean("FLAG")

    with pytest.raises(SettingsInvalid) as refusal:
        env.check()

    assert refusal.value.problems == (
        "DSN is not set",
        "COUNT must be a whole number, not 'many'",
        "RATIO must be a number, not 'nan'",
        "PORT must be at most 65535, not 70000",
        "FORMAT must be one of json, console, not 'xml'",
        "FLAG must be true or false, not 'perhaps'",
    )
    assert "DSN is not set; COUNT must" in str(refusal.value)


def test_a_value_out_of_range_is_refused_and_never_clamped() -> None:
    env = Env({"COUNT": "0"})
    env.integer("COUNT", default=16, minimum=1)

    with pytest.raises(SettingsInvalid, match="COUNT must be at least 1, not 0"):
        env.check()


@pytest.mark.parametrize("raw", ["localhost", ":80", "host:", "host:http", "host:65536", "host:-1", "host:²"])
def test_an_address_without_host_or_port_is_refused(raw: str) -> None:
    env = Env({"LISTEN": raw})
    env.address("LISTEN", default="127.0.0.1:0")

    with pytest.raises(SettingsInvalid, match="must be host:port"):
        env.check()


def test_a_rule_across_settings_is_checked_with_the_rest() -> None:
    env = Env({"INDEX": "5", "COUNT": "4"})
    env.require(env.integer("INDEX") < env.integer("COUNT"), "INDEX must be below COUNT")

    with pytest.raises(SettingsInvalid, match=r"^INDEX must be below COUNT$"):
        env.check()


def test_a_rule_about_a_variable_that_is_wrong_itself_is_not_reported_besides() -> None:
    env = Env({"INDEX": "5", "COUNT": "four"})
    env.require(env.integer("INDEX") < env.integer("COUNT"), "INDEX must be below COUNT")

    with pytest.raises(SettingsInvalid) as refusal:
        env.check()

    assert refusal.value.problems == ("COUNT must be a whole number, not 'four'",)


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")

    assert Env({"TOKEN_FILE": str(file)}).secret("TOKEN") == "s3cret"


def test_a_secret_that_is_missing_doubled_or_unreadable_is_refused_without_being_shown(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    env = Env(
        {
            "A": "hunter2",
            "A_FILE": str(empty),
            "B_FILE": str(tmp_path / "gone"),
            "C_FILE": str(empty),
            "E_FILE": str(binary),
        }
    )
    for name in "ABCDE":
        env.secret(name)

    with pytest.raises(SettingsInvalid) as refusal:
        env.check()

    problems = refusal.value.problems
    assert problems[0] == "A is set, and so is A_FILE: set one of them"
    assert problems[1].endswith("cannot be read: No such file or directory")
    assert problems[2].endswith("which is empty")
    assert problems[3] == "D is not set, nor is D_FILE"
    assert problems[4].endswith("it is not text")
    assert "hunter2" not in str(refusal.value)


def test_a_file_that_is_missing_or_whose_text_could_not_be_used_is_refused(tmp_path: Path) -> None:
    whole, broken, binary = (tmp_path / name for name in ("whole", "broken", "binary"))
    whole.write_text("7")
    broken.write_text("seven")
    binary.write_bytes(b"\xff\xfe")
    files = {"A": whole, "B": broken, "C": binary, "D": tmp_path / "gone"}
    env = Env({name: str(file) for name, file in files.items()})

    assert env.file("A", check=int) == whole
    env.check()
    for name in "BCDE":
        env.file(name, check=int)
    with pytest.raises(SettingsInvalid) as refusal:
        env.check()

    problems = refusal.value.problems
    assert problems[0].startswith(f"B names {str(broken)!r}, which cannot be used: invalid literal")
    assert problems[1].startswith(f"C names {str(binary)!r}, which cannot be used: 'utf-8' codec")
    assert problems[2] == f"D names {str(files['D'])!r}, which cannot be read: No such file or directory"
    assert problems[3] == "E is not set"


@pytest.mark.parametrize("raw", ["localhost:5432", "postgres:pass", "http://user:hunter2@host/"])
def test_a_bad_url_is_refused_without_being_shown(raw: str) -> None:
    env = Env({"URL": raw})
    env.url("URL", schemes=("postgresql",))

    with pytest.raises(SettingsInvalid) as refusal:
        env.check()

    assert raw not in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_variables_that_nobody_asked_for_are_named_and_do_no_harm() -> None:
    env = Env({"NOETL_SHARD_COUTN": "4", "NOETL_LOG_LEVEL": "info", "PATH": "/bin"})
    env.text("NOETL_LOG_LEVEL")
    env.integer("NOETL_SHARD_COUNT", default=64)

    env.check()
    assert env.unread() == ("NOETL_SHARD_COUTN",)
    assert env.unread("NOETL_PLANNER_") == ()
