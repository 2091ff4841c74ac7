"""Sessions of commands, one after the other in one process: each leaves nothing behind, and finds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os
from pathlib import Path
from noetl_adapters.spark.jobs import SparkJobs, job_settings

before, machines = dict(os.environ), []
for _ in range(2):
    with SparkJobs(job_settings(jobs=1, memory="512m")) as jobs:
        context = jobs.session().sparkContext
        assert context.parallelize(range(9), 2).sum() == 36
        machines.append(context._gateway.proc.pid)
    assert dict(os.environ) == before
print([pid for pid in machines if Path(f"/proc/{pid}").exists()], len(set(machines)))
"""


def test_a_session_is_gone_with_its_jvm_and_all_that_it_wrote_and_so_is_the_next(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]

    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)

    assert (ran.returncode, ran.stdout) == (0, "[] 2\n"), ran.stderr
    assert list(tmp_path.glob("noetl-jobs-*")) == []
