"""`noetl chaos` on real processes: it tells what is sound from what is not, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from noetl_cli.dev.home import StackHome
from noetl_cli.dev.state import Phase, StackState
from noetl_testkit.local_stack import environment_of_nobody

CHARGE = Path(__file__).parents[2] / "examples" / "chaos" / "charge.yaml"
# A second is long enough to be killed in, whatever else the machine has to do.
SLOW = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: slow, path: tests/slow}
workflow:
- step: wait
  tool: {kind: python, code: "import time; time.sleep(1); result = 1"}
"""
SECONDS = 500.0


@contextmanager
def chaos(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "noetl_cli", "chaos", *arguments],
        env=environment_of_nobody(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_sound_playbook_comes_to_the_same_with_the_same_effects_whoever_is_killed() -> None:
    command = (str(CHARGE), "--effects", "shop_url", "--sample", "3", "--seed", "5", "-o", "json")
    with chaos(*command) as process:
        out, err = process.communicate(timeout=SECONDS)

    assert process.returncode == 0, (out, err)
    told = json.loads(out)
    assert (told["same"], told["runs"], told["planned"], told["status"], told["seed"]) == (True, 3, 3, "COMPLETED", 5)
    assert told["undisturbed"]["committed"] == 4
    assert sum(told["undisturbed"]["effects"]["applied"].values()) == 3
    for result in told["results"]:
        assert (result["committed"], result["effects"]["applied"]) == (4, told["undisturbed"]["effects"]["applied"])
        (kill,) = result["kills"]
        assert kill["landed_at"] >= kill["event"] and kill["back_seconds"] > 0
        assert result["checksum"] == told["results"][0]["checksum"]
    assert "drawn with seed 5" in err and "[3/3]" in err


def test_a_playbook_that_comes_to_something_else_is_told_with_the_place_at_which_it_does(tmp_path: Path) -> None:
    playbook = tmp_path / "slow.yaml"
    playbook.write_text(SLOW)
    # The worker is killed while the step runs, and nobody tries again.
    once = ("--service", "worker", "--setting", "NOETL_COMMAND_MAX_ATTEMPTS=1")
    with chaos(str(playbook), *once) as process:
        out, err = process.communicate(timeout=SECONDS)

    assert process.returncode == 1, (out, err)
    assert re.search(r"after · \d+ command.started wait: DIFFERENT", out), out
    assert "execution tests/slow.status: FAILED instead of COMPLETED" in out
    assert "runs came to something else" in out


def test_ctrl_c_stops_the_stack_and_leaves_its_directory_to_whoever_chose_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    home = StackHome(root=tmp_path / "stack")
    with chaos(str(CHARGE), "--home", str(home.root), "--service", "reaper") as process:
        assert process.stdout is not None
        seen = ""
        while "undisturbed 1/2" not in seen:
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            seen += line
        state = StackState.read(home.state_file)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)

    assert process.returncode == 130
    assert state is not None and state.phase is Phase.READY
    running = [one.process for one in state.components.values() if one.process is not None]
    assert running and not any(one.is_alive() for one in running)
    left = StackState.read(home.state_file)
    assert left is not None and left.phase is Phase.STOPPED
    assert home.lock().holder() is None
    assert home.ports_file.exists()
