"""Makes the real backends of the test kit available to every test of the repository."""

import os
import signal

from hypothesis import settings

pytest_plugins = ["noetl_testkit.plugin", "noetl_testkit.side_by_side"]

# The same examples in every run, so that a change that fails is the one that broke something; how long an example
# takes says something about the machine only. `HYPOTHESIS_PROFILE=explore` looks for examples nobody has tried.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# A shell ignores interrupts for what it runs in the background, and so would everything that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A JVM of a test lives for seconds: what its second compiler takes, it never gives back. Sessions and daemons of Spark
# read these by themselves.
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(_options, "-XX:TieredStopAtLevel=1")
