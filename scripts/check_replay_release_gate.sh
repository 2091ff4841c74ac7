#!/usr/bin/env bash
# Release gate: fails on any difference between the log, what its replay gives, and what is live.
#
# usage: scripts/check_replay_release_gate.sh [DIR]
#
# Verifies every execution that the token may see (NOETL_API_ADDRESS and NOETL_TOKEN, else the stack of NOETL_HOME), and
# writes evidence of the newest ones below DIR (a new directory; default: build/release-gate), which it checks again
# from its files alone. NOETL names the command; GATE_SAMPLES how much evidence is kept; GATE_OPTIONS goes to
# `noetl verify all`. Every payload that an event refers to is looked for, which takes as long as reading them;
# GATE_WITHOUT_PAYLOADS=1 does without. Histories of GATE_SNAPSHOT_EVENTS events (default: 10000) have snapshots, and
# replays that begin with one come to the same as those of every event. At least one such history and one business
# object are to be among what is compared, unless GATE_WITHOUT_SNAPSHOTS=1 and GATE_WITHOUT_OBJECTS=1. GATE_PROJECTORS
# has the operator's port of every projector (http://HOST:PORT, with spaces between them): none may have given an
# execution up. Evidence keeps what the first one said. GATE_WITHOUT_PROJECTORS=1 does without.
set -euo pipefail
noetl=${NOETL:-noetl}
directory=${1:-build/release-gate}
samples=${GATE_SAMPLES:-3}
read -ra options <<<"${GATE_OPTIONS:-}"
read -ra projectors <<<"${GATE_PROJECTORS:-}"
[ -n "${GATE_WITHOUT_PAYLOADS:-}" ] || options+=(--payloads)

fail() {
  echo "release gate: $*" >&2
  exit 1
}

[ ! -e "$directory" ] || fail "$directory exists: evidence is not written over"
mkdir -p "$directory"

echo "release gate: replaying the whole log"
$noetl verify all "${options[@]}" -o json >"$directory/all.json" || {
  cat "$directory/all.json" >&2
  fail "what is live is not what the log says"
}
python3 - "$directory/all.json" "${GATE_WITHOUT_OBJECTS:-}" "${GATE_WITHOUT_PAYLOADS:-}" <<'PYTHON' || fail "too little was compared"
import json, sys

report = json.load(open(sys.argv[1], encoding="utf-8"))
print(f"release gate: {report['executions']} executions, {report['events']} events, {report['events_per_second']:.0f} events/s")
if report["payloads"] is None:
    print("release gate: payloads were NOT LOOKED FOR, only those of the executions whose evidence is kept")
assert report["proved"], "not proved"
assert sys.argv[3] or report["payloads"] is not None, "payloads were not looked for"
assert report["rows"]["execution"] > 0, "there is no execution to compare"
assert sys.argv[2] or report["rows"]["business_objects"] > 0, "there is no business object to compare"
PYTHON

echo "release gate: comparing snapshots with replays of every event"
$noetl verify snapshots --from-events "${GATE_SNAPSHOT_EVENTS:-10000}" -o json >"$directory/snapshots.json" || {
  cat "$directory/snapshots.json" >&2
  fail "a snapshot is missing, or leads to another state than the log"
}
python3 - "$directory/snapshots.json" "${GATE_WITHOUT_SNAPSHOTS:-}" <<'PYTHON' || fail "no snapshot was compared"
import json, sys

report = json.load(open(sys.argv[1], encoding="utf-8"))
compared = report["executions"] - report["not_compared"]
print(f"release gate: {compared} of {report['executions']} long histories replayed from snapshots, all of these equal")
if report["not_compared"]:
    print(f"release gate: {report['not_compared']} NOT COMPARED, too large to be replayed in one piece")
assert sys.argv[2] or report["from_snapshots"] > 0, "there is no history that is long enough, see GATE_SNAPSHOT_EVENTS"
PYTHON

asked=()
if [ ${#projectors[@]} -gt 0 ]; then
  echo "release gate: asking projectors what they have given up"
  python3 - "$directory/projectors.json" "${projectors[@]}" <<'PYTHON' || fail "not every projector says that it has given nothing up"
import json, sys, urllib.request

summaries = {}
for address in sys.argv[2:]:
    with urllib.request.urlopen(f"{address.rstrip('/')}/summary", timeout=30) as answer:
        summaries[address] = json.load(answer)
json.dump(summaries, open(sys.argv[1], "w", encoding="utf-8"), indent=2)
for address, summary in summaries.items():
    # The count: executions are named only up to a number.
    assert summary["quarantined_count"] == 0, f"{address} has given {summary['quarantined_count']} executions up"
    assert summary["live_instances"] <= len(summaries), f"{summary['live_instances']} projectors run, see GATE_PROJECTORS"
print(f"release gate: {len(summaries)} projectors have given nothing up")
PYTHON
  asked=(--projector "${projectors[0]}")
else
  [ -n "${GATE_WITHOUT_PROJECTORS:-}" ] || fail "no projector was asked, see GATE_PROJECTORS"
fi

$noetl list --limit "$samples" -o json >"$directory/newest.json"
python3 -c 'import json, sys; print(*(one["execution_id"] for one in json.load(open(sys.argv[1]))["executions"]), sep="\n")' \
  "$directory/newest.json" | while read -r execution; do
  $noetl verify run "$execution" "${asked[@]}" --into "$directory/$execution" >"$directory/$execution.txt" || {
    cat "$directory/$execution.txt" >&2
    fail "execution $execution is not proved"
  }
  $noetl verify bundle "$directory/$execution" >/dev/null || fail "the evidence of $execution is not whole"
  echo "release gate: execution $execution is proved, evidence in $directory/$execution"
done
echo "release gate: passed"
