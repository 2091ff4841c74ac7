"""Run by cases of the tool script."""

result = n * 2  # type: ignore[name-defined]  # noqa: F821
