"""Looks into the built images and runs them. Run by `make images-check`, as root, after `make images`.

Each image: its user, its files, its packages. Then all together: every container that `helm install` of the throwaway
installation makes is run from its image by runc, with a read-only root, the chart's environment, volumes and memory
limits, until it is ready; two playbooks go through, and all stop in order. Last, the worker's image is an executor.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from scripts.deploy.check import ROOT, SERVICES, update_dependencies
from scripts.deploy.containers import Image, missing, mounted
from scripts.deploy.image_contents import problems_of_image
from scripts.deploy.image_executor import problems_of_executor
from scripts.deploy.image_pods import JOBS, installation
from scripts.deploy.images import image_name
from scripts.deploy.rendered import SERVICES as IN_ORDER

PLAYBOOKS = ("examples/playbooks/two_steps.yaml", "examples/howto/spark.yaml")


def check_contents(images: Mapping[str, Image]) -> bool:
    """One line for each image."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    good = [
        _tell(f"{image.name}, {image.size_bytes / 1e6:.0f} MB", problems_of_image(image, lock))
        for image in images.values()
    ]
    return all(good)


def check_installation(images: Mapping[str, Image]) -> bool:
    """One line for each thing that had to happen."""
    if problems := update_dependencies():
        return _tell("dependencies of the charts", problems)
    with ExitStack() as pods:
        installed = pods.enter_context(installation(images))
        for job in JOBS:
            began = time.monotonic()
            installed.run_job(job)
            _tell(f"job {job}, {time.monotonic() - began:.0f} s", [])
        for service in IN_ORDER:
            # One after the other: a service that finds nobody ends, and only a kubelet would start it again.
            began = time.monotonic()
            pods.enter_context(installed.pod(service))
            _tell(f"pod of {service} is ready, {time.monotonic() - began:.0f} s", [])
        for playbook in PLAYBOOKS:
            began = time.monotonic()
            installed.play(ROOT / playbook)
            _tell(f"playbook {playbook}, {time.monotonic() - began:.0f} s", [])
    return _tell("all pods ended by themselves when they were asked to", [])


def check_executor(images: Mapping[str, Image]) -> bool:
    with tempfile.TemporaryDirectory(prefix="noetl-executor-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        return _tell(
            "worker's image as executor of Spark", problems_of_executor(images[image_name("worker")], directory)
        )


def _tell(what: str, problems: Sequence[str]) -> bool:
    sys.stdout.write(f"{'FAILED' if problems else 'ok':7}{what}\n")
    sys.stdout.writelines(f"         {problem}\n" for problem in problems)
    sys.stdout.flush()
    return not problems


PARTS: dict[str, Callable[[Mapping[str, Image]], bool]] = {
    "contents": check_contents,
    "installation": check_installation,
    "executor": check_executor,
}


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 when something is not as it must be, 2 when it could not be looked at."""
    parser = argparse.ArgumentParser(prog="python -m scripts.deploy.images_check", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="only this part (again for more); else all of them"
    )
    options = parser.parse_args(words)
    if reason := missing():
        sys.stderr.write(f"images cannot be checked here: {reason}\n")
        return 2
    with ExitStack() as stack:
        try:
            images = {name: stack.enter_context(mounted(name)) for name in map(image_name, SERVICES)}
        except RuntimeError as exc:
            sys.stderr.write(f"{exc}\nbuild the images first: make images\n")
            return 2
        good = [_judge(part, images) for part in options.only or PARTS]
    return 0 if all(good) else 1


def _judge(part: str, images: Mapping[str, Image]) -> bool:
    """A part that cannot go on has failed, and the next one is tried."""
    try:
        return PARTS[part](images)
    except (RuntimeError, AssertionError, subprocess.TimeoutExpired) as exc:
        return _tell(part, [str(exc)])


if __name__ == "__main__":
    sys.exit(main())
