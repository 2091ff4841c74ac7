"""How images are built, and what would be found in a bad one. `make images-check` shows that good ones run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from subprocess import run

import pytest

from scripts.deploy.containers import Image
from scripts.deploy.image_contents import problems_of_image
from scripts.deploy.images import BUILDERS, CannotBuild, build_command, find_builder, image_name

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("api", "planner", "projector", "outbox-publisher", "reaper", "worker")
DOCKER, _, BUILDAH = BUILDERS
LOCK = "attrs==1.0 \\\n    --hash=sha256:00\nuvloop==2.0 ; sys_platform != 'win32' \\\n    --hash=sha256:01\n"


def dockerfile(service: str) -> str:
    return (ROOT / "services" / service / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")


@pytest.mark.parametrize("service", SERVICES)
def test_whatever_a_build_downloads_is_compared_with_the_lock(service: str) -> None:
    text = dockerfile(service)
    installs = [line for line in text.splitlines() if re.search(r"\buv pip install|-m pip install", line)]

    assert len(installs) == 3
    for line in installs[1:]:
        assert "--constraint requirements.lock --build-constraint requirements.lock" in line
        assert "--no-sources" in line  # there is no workspace in an image
    assert "--require-hashes" in installs[0]


def test_uv_is_taken_from_the_lock_with_its_hashes_and_nothing_else_is() -> None:
    programs = {
        match
        for service in SERVICES
        for match in re.findall(r"RUN (awk '[^']+') requirements.lock", dockerfile(service))
    }
    assert len(programs) == 1
    (program,) = programs
    taken = run(
        ["sh", "-c", f"{program} requirements.lock"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout

    assert re.match(r"uv==\d", taken)
    assert taken.count("==") == 1
    assert taken.count("--hash=sha256:") > 1


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_has_every_package_of_the_repository_that_its_service_needs_and_no_other(service: str) -> None:
    members = {path.parent.relative_to(ROOT).as_posix(): path for path in ROOT.glob("*/*/pyproject.toml")}
    by_name = {
        tomllib.loads(path.read_text(encoding="utf-8"))["project"]["name"]: where for where, path in members.items()
    }
    needed: set[str] = set()
    todo = [f"services/{service}", *(["tools/noetl-cli"] if service == "api" else [])]
    while todo:
        where = todo.pop()
        needed.add(where)
        for dependency in tomllib.loads(members[where].read_text(encoding="utf-8"))["project"]["dependencies"]:
            found = by_name.get(re.split(r"[^a-z0-9-]", dependency)[0])
            if found is not None and found not in needed:
                todo.append(found)

    text = dockerfile(service)
    copied = {source for source, target in re.findall(r"^COPY (\S+) (\S+)$", text, re.MULTILINE) if source == target}
    assert copied == needed
    assert {word.removeprefix("./") for word in re.findall(r"\./\w+/[\w-]+", text)} == needed


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_is_run_by_a_user_and_says_how_it_is_built(service: str) -> None:
    text = dockerfile(service)

    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    assert f"docker build -f services/{service}/Dockerfile -t {image_name(service)} ." in text
    assert f'CMD ["noetl-{service}"]' in text


def test_all_images_share_the_layer_of_their_common_libraries() -> None:
    firsts = {text[text.index("ARG PYTHON=") : text.index("COPY services/")] for text in map(dockerfile, SERVICES)}
    assert len(firsts) == 1


def test_the_first_builder_that_answers_is_taken_and_none_is_an_error_that_helps() -> None:
    assert find_builder(None, lambda probe: probe[0] != "docker").name == "podman"
    assert find_builder("buildah", lambda _: True).name == "buildah"
    with pytest.raises(CannotBuild, match=r"tried: docker, podman, buildah.*apt-get install buildah"):
        find_builder(None, lambda _: False)


def test_a_mirror_is_an_argument_of_the_build_and_its_authority_is_only_lent() -> None:
    plain = build_command(DOCKER, "api", base=None, index_url=None, certificates=None)
    mirrored = build_command(BUILDAH, "api", base="mirror/python", index_url="https://index", certificates="/ca.crt")

    assert plain == ["docker", "build", "--file=services/api/Dockerfile", f"--tag={image_name('api')}", "."]
    assert {"--build-arg=PYTHON=mirror/python", "--build-arg=INDEX_URL=https://index"} <= set(mirrored)
    assert "--volume=/ca.crt:/etc/ssl/certs/ca-certificates.crt:ro" in mirrored


@pytest.fixture
def image(tmp_path: Path) -> Image:
    """The files of an image that nothing is wrong with."""
    for directory in ("etc", "bin", "usr/bin", "usr/local/bin", "opt/noetl/bin", "tmp", "var/lib/apt/lists/partial"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nnoetl:x:10001:10001::/tmp:/bin/false\n")
    install(tmp_path, "attrs", "1.0")
    ours = install(tmp_path, "noetl_core", "0.1.0")
    (ours / "direct_url.json").write_text('{"url": "file:///source/libs/noetl-core", "dir_info": {}}')
    return Image(name="image", root=tmp_path, config={"User": "10001:10001"}, size_bytes=1)


def install(root: Path, name: str, version: str) -> Path:
    directory = root / "opt/noetl/lib/python3.11/site-packages" / f"{name}-{version}.dist-info"
    directory.mkdir(parents=True)
    (directory / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\nText\n")
    return directory


def test_a_good_image_has_no_problems(image: Image) -> None:
    assert problems_of_image(image, LOCK) == []


def test_an_image_that_anybody_could_change_or_that_carries_tools_is_found_out(image: Image) -> None:
    (image.root / "usr/bin/gcc").touch()
    (image.root / "opt/noetl/array.h").touch()
    (image.root / "opt/noetl/loose.py").touch()
    (image.root / "opt/noetl/loose.py").chmod(0o666)
    (image.root / "root/.cache/pip").mkdir(parents=True)

    assert set(problems_of_image(image, LOCK)) == {
        "/usr/bin/gcc is there",
        "/opt/noetl/array.h is for compilers",
        "/opt/noetl/loose.py can be written by the service",
        "/root/.cache has pip",
    }


def test_packages_that_are_not_those_of_the_lock_or_not_ours_are_found_out(image: Image) -> None:
    install(image.root, "uvloop", "2.1")
    install(image.root, "stray", "1.0")
    install(image.root, "noetl_contracts", "9.9")  # as an index would give it to who does not look

    assert set(problems_of_image(image, LOCK)) == {
        "uvloop 2.1 is not what requirements.lock says: 2.0",
        "stray 1.0 is not what requirements.lock says: nothing",
        "noetl-contracts 9.9 does not come from the repository",
    }


def test_an_image_without_a_user_of_its_own_is_found_out(image: Image) -> None:
    rootly = Image(name="image", root=image.root, config={}, size_bytes=1)

    assert problems_of_image(rootly, LOCK) == ["runs as root, not as 10001:10001"]
