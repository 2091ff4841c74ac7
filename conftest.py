"""Makes the real backends of the test kit available to every test of the repository."""

from hypothesis import settings

pytest_plugins = ["noetl_testkit.plugin"]

# How long an example takes says something about the machine: a busy one must not fail a test.
settings.register_profile("noetl", deadline=None)
settings.load_profile("noetl")
