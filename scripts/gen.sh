#!/usr/bin/env bash
# Generates the gRPC code of every contract into noetl-contracts. The result is committed; `make contracts` fails when it is stale.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
out=${1:-libs/noetl-contracts/src}
mkdir -p "$out"
rm -rf "${out:?}/noetl"
mapfile -t protos < <(cd protos && find noetl -name '*.proto' | sort)
PATH="$PWD/$bin:$PATH" "$bin/python" -m grpc_tools.protoc -I protos \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" "${protos[@]}"
