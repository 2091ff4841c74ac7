#!/usr/bin/env bash
# Prints the interpreter for the virtual environment: python3 as PATH finds it, unless that is too old, cannot make environments
# or was built without optimisation (as pyenv does by default), and another on PATH is none of this.
set -u
check=${BASH_SOURCE[0]%/*}/interpreter.py
first=$(type -P python3)
while read -r candidate; do
  reason=$("$candidate" -I "$check" 2>&1) || { why=${why:-$reason}; continue; }
  if [ "$candidate" != "$first" ]; then
    echo "taking $candidate instead of ${first:-python3} (${why:-not found}); another one: make PYTHON=…" >&2
  fi
  echo "$candidate"
  exit
done < <(type -ap python3 python3.14 python3.13 python3.12 python3.11)
echo python3  # installing says what is wrong with it, if it is more than slow
