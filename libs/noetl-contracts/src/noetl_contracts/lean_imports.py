"""Loading a library without the others that it would load merely because they are installed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Meanwhile these are as if they were not installed, except for those that are loaded already."""
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is how the import system spells it
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
