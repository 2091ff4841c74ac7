#!/usr/bin/env bash
# Shows NoETL at work: starts the whole stack in a temporary directory, runs an example, looks at it, and leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${VENV:-.venv}/bin

directory=$(mktemp -d "${TMPDIR:-/tmp}/noetl-demo-XXXXXX")
chmod 711 "$directory" # PostgreSQL may have to run as another user; what is inside is private by itself
export NOETL_HOME="$directory/stack"
unset NOETL_API_ADDRESS NOETL_TOKEN NOETL_TOKEN_FILE # the demo talks to its own stack

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
noetl() {
  printf '$ noetl'; printf ' %q' "$@"; printf '\n'
  "$bin/noetl" "$@"
}
clean_up() {
  code=$?
  trap - EXIT
  say "Stop everything and remove $directory"
  noetl dev down || true
  rm -rf "$directory"
  if [ "$code" -eq 0 ]; then
    say "Done. To keep a stack running: make dev, then .venv/bin/noetl run examples/playbooks/hello_world.yaml"
  fi
  exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "Start PostgreSQL, NATS and the six services of NoETL in $NOETL_HOME"
noetl dev up

say "Run a playbook of two steps; the second uses what the first returned"
example=(examples/playbooks/two_steps.yaml --set who=Ada --start-key demo)
noetl run "${example[@]}"
# The same start key finds the execution again instead of starting another.
id=$("$bin/noetl" run "${example[@]}" --no-follow -o json |
  "$bin/python" -c 'import json, sys; print(json.load(sys.stdin)["execution_id"])')

say "What its steps returned"
noetl result "$id"

say "Where it stands: one row, however long its history is"
noetl status "$id"

say "The history itself: every state it ever had can be made from it again"
noetl events "$id"

say "What runs, and where"
noetl dev status
