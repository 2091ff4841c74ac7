"""Settings from environment variables: typed, never repaired, and every problem reported at once."""

import math
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from noetl_core.errors import InvalidInput

T = TypeVar("T")
NumberT = TypeVar("NumberT", int, float)
_BOOLEANS: Final = {"1": True, "true": True, "yes": True, "on": True} | {
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


class SettingsInvalid(InvalidInput):
    """The process cannot start with these settings; every problem is listed."""

    code = "settings.invalid"

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server listens or is found."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Env:
    """Reads variables one by one and remembers what is wrong; `check` then refuses all of it together.

    After a problem an accessor still returns a value of its type, so that reading can go on; nobody sees
    it, because `check` raises. An empty variable counts as one that is not set.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._problems: dict[str, str] = {}
        self._read: set[str] = set()

    def text(self, name: str, *, default: str | None = None) -> str:
        return self._get(name, default, lambda raw: raw, placeholder="")

    def integer(
        self, name: str, *, default: int | None = None, minimum: int | None = None, maximum: int | None = None
    ) -> int:
        def parse(raw: str) -> int:
            try:
                value = int(raw)
            except ValueError:
                raise ValueError(f"must be a whole number, not {raw!r}") from None
            return _within(value, minimum, maximum)

        return self._get(name, default, parse, placeholder=minimum or 0)

    def number(
        self,
        name: str,
        *,
        default: float | None = None,
        minimum: float | None = None,
        maximum: float | None = None,
    ) -> float:
        def parse(raw: str) -> float:
            try:
                value = float(raw)
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise ValueError(f"must be a number, not {raw!r}")
            return _within(value, minimum, maximum)

        return self._get(name, default, parse, placeholder=minimum or 0.0)

    def boolean(self, name: str, *, default: bool | None = None) -> bool:
        def parse(raw: str) -> bool:
            value = _BOOLEANS.get(raw.lower())
            if value is None:
                raise ValueError(f"must be true or false, not {raw!r}")
            return value

        return self._get(name, default, parse, placeholder=False)

    def choice(self, name: str, choices: Sequence[str], *, default: str | None = None) -> str:
        def parse(raw: str) -> str:
            if raw not in choices:
                raise ValueError(f"must be one of {', '.join(choices)}, not {raw!r}")
            return raw

        return self._get(name, default, parse, placeholder=choices[0])

    def path(self, name: str, *, default: Path | None = None) -> Path:
        return self._get(name, default, Path, placeholder=Path())

    def optional_path(self, name: str) -> Path | None:
        return self.path(name) if self._raw(name) is not None else None

    def file(self, name: str, *, check: Callable[[str], object]) -> Path:
        """A file that is read when it is needed, and again; `check` raises ValueError if its text could not be used."""

        def parse(raw: str) -> Path:
            try:
                check(Path(raw).read_text("utf-8"))
            except OSError as exc:
                raise ValueError(f"names {raw!r}, which cannot be read: {exc.strerror}") from None
            except ValueError as exc:
                raise ValueError(f"names {raw!r}, which cannot be used: {exc}") from None
            return Path(raw)

        return self._get(name, None, parse, placeholder=Path())

    def address(self, name: str, *, default: str | None = None) -> Address:
        """`host:port`; port 0 lets the system choose one."""
        placeholder = Address(host="", port=0)
        parsed_default = parse_address(default) if default is not None else None
        return self._get(name, parsed_default, parse_address, placeholder=placeholder)

    def url(self, name: str, *, schemes: Sequence[str] = (), default: str | None = None) -> str:
        """A URL may carry a password, so a bad one is not repeated in the problem."""

        def parse(raw: str) -> str:
            scheme = urllib.parse.urlsplit(raw).scheme
            if not scheme or "://" not in raw:
                raise ValueError("must be a URL such as scheme://host/path")
            if schemes and scheme not in schemes:
                raise ValueError(f"must be a URL of {', '.join(schemes)}, not of {scheme!r}")
            return raw

        return self._get(name, default, parse, placeholder="")

    def optional_url(self, name: str, *, schemes: Sequence[str] = ()) -> str | None:
        return self.url(name, schemes=schemes) if self._raw(name) is not None else None

    def secret(self, name: str, *, default: str | None = None) -> str:
        """The value of NAME, or the contents of the file that NAME_FILE names."""
        file_name = f"{name}_FILE"
        value, file = self._raw(name), self._raw(file_name)
        if value is not None and file is not None:
            return self._problem(name, f"is set, and so is {file_name}: set one of them", "")
        if file is None:
            return self._get(name, default, lambda raw: raw, placeholder="", missing=f"is not set, nor is {file_name}")
        try:
            contents = Path(file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
            return self._problem(file_name, f"names {file!r}, which cannot be read: {reason}", "")
        if not contents:
            return self._problem(file_name, f"names {file!r}, which is empty", "")
        return contents

    def require(self, condition: bool, message: str) -> None:
        """A rule across settings; said only if the variables that the message names are themselves right."""
        if not condition and not any(name in message for name in self._problems):
            self._problems.setdefault(message, "")

    def unread(self, prefix: str = "NOETL_") -> tuple[str, ...]:
        """Variables that nobody asked for, perhaps misspelt; worth a warning, never a refusal."""
        return tuple(sorted(name for name in self._values if name.startswith(prefix) and name not in self._read))

    def check(self) -> None:
        """Raise SettingsInvalid if anything was wrong."""
        if self._problems:
            raise SettingsInvalid([f"{name} {problem}".strip() for name, problem in self._problems.items()])

    def _raw(self, name: str) -> str | None:
        self._read.add(name)
        return self._values.get(name, "").strip() or None

    def _get(
        self,
        name: str,
        default: T | None,
        parse: Callable[[str], T],
        *,
        placeholder: T,
        missing: str = "is not set",
    ) -> T:
        raw = self._raw(name)
        if raw is None:
            return default if default is not None else self._problem(name, missing, placeholder)
        try:
            return parse(raw)
        except ValueError as exc:
            return self._problem(name, str(exc), default if default is not None else placeholder)

    def _problem(self, name: str, problem: str, placeholder: T) -> T:
        self._problems.setdefault(name, problem)
        return placeholder


def parse_address(raw: str) -> Address:
    """`127.0.0.1:7000`, `[::1]:7000` or `host:7000`."""
    host, separator, port = raw.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"must be host:port, not {raw!r}")
    return Address(host=host, port=int(port))


def _within(value: NumberT, minimum: NumberT | None, maximum: NumberT | None) -> NumberT:
    if minimum is not None and value < minimum:
        raise ValueError(f"must be at least {minimum}, not {value}")
    if maximum is not None and value > maximum:
        raise ValueError(f"must be at most {maximum}, not {value}")
    return value
