"""Makes the real backends of the test kit available to every test of the repository."""

pytest_plugins = ["noetl_testkit.plugin"]
