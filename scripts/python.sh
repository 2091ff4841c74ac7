#!/usr/bin/env bash
# Prints the interpreter for the virtual environment: python3 as PATH finds it, unless that is too old, cannot make environments
# or was built without optimisation (as pyenv does by default), and another on PATH is none of this. A slow one is better than none.
set -u
case ${BASH_SOURCE[0]} in */*) check=${BASH_SOURCE[0]%/*}/interpreter.py ;; *) check=interpreter.py ;; esac
first=$(type -P python3)
take() {
  if [ -n "$1" ] && [ "$1" != "$first" ]; then
    echo "taking $1 instead of ${first:-python3} (${why:-not found}); another one: make PYTHON=…" >&2
  fi
  echo "${1:-python3}"
  exit
}
while IFS= read -r candidate; do
  reason=$("$candidate" -I "$check" 2>&1 </dev/null) && take "$candidate"
  why=${why:-$reason}
  if [ "$reason" = "built without optimisation" ]; then slow=${slow:-$candidate}; fi
done < <(type -ap python3 python3.14 python3.13 python3.12 python3.11)
take "${slow:-$first}"
