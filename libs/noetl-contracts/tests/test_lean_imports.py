import importlib
import importlib.util
import sys

import pytest
from noetl_contracts.lean_imports import without


def test_what_is_not_loaded_is_as_if_it_were_not_installed_and_comes_back() -> None:
    sys.modules.pop("antigravity", None)
    with without("this", "antigravity"), pytest.raises(ImportError):
        importlib.import_module("antigravity")

    assert "antigravity" not in sys.modules
    assert importlib.util.find_spec("antigravity") is not None


def test_what_is_loaded_stays() -> None:
    with without("json"):
        assert importlib.import_module("json") is sys.modules["json"]


def test_everything_is_back_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), without("antigravity"):
        raise ZeroDivisionError
    assert "antigravity" not in sys.modules
