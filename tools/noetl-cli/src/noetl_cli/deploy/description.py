"""Reads what people write about a deployment: YAML, typed, every problem at once, nothing that is not understood."""

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml
from noetl_core.errors import InvalidInput

T = TypeVar("T")


class DescriptionInvalid(InvalidInput):
    """A description that cannot be used; every problem is listed."""

    code = "deploy.description_invalid"


def read_description(file: Path) -> Mapping[str, Any]:
    """The mapping that a file holds."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as exc:
        raise DescriptionInvalid(f"{file} is not YAML: {' '.join(str(exc).split())}") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise DescriptionInvalid(f"{file} cannot be read: {exc}") from exc
    if not isinstance(document, dict):
        raise DescriptionInvalid(f"{file} must hold a mapping")
    return document


def fill(kind: type[T], document: Mapping[str, Any], *, where: str = "") -> T:
    """A dataclass of plain values from a mapping; unknown keys and wrong types are refused together."""
    hints, problems, values = get_type_hints(kind), [], {}
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key, value in document.items():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, n=1)
            problems.append(f"{where}{key} is not known" + (f"; did you mean {near[0]}?" if near else ""))
            continue
        if not _fits(value, hints[key]):
            problems.append(f"{where}{key} must be {_name(hints[key])}, not {value!r}")
            continue
        values[key] = value
    absent = dataclasses.MISSING
    required = [name for name, one in fields.items() if one.default is absent and one.default_factory is absent]
    missing = [name for name in required if name not in document]
    problems += [f"{where}{name} is missing" for name in missing]
    if problems:
        raise DescriptionInvalid("; ".join(problems))
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple)  # its parts were filled before
    allowed = get_args(hint) or (hint,)
    return isinstance(value, tuple(one for one in allowed if isinstance(one, type)))


def _name(hint: Any) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    return " or ".join(names.get(one, getattr(one, "__name__", str(one))) for one in (get_args(hint) or (hint,)))
