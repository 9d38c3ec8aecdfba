#!/usr/bin/env bash
# Trains LeNet on a part of MNIST in floats and for 8-bit integers, and checks both in the engine.
# Needs a built tlite-qat: the first argument, or the release build of this folder.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
qat=${1:-${CARGO_TARGET_DIR:-$here/target}/release/tlite-qat}
cache=${TLITE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/transformer-lite}
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

fail() {
    echo "error: $*" >&2
    exit 1
}

# Fails unless an expression of two numbers holds, as in `holds 0.97 ">=" 0.95`.
holds() {
    awk "BEGIN { exit !($1 $2 $3) }" || fail "$4: found $1, expected $2 $3"
}

# A number of a line of JSON.
number() {
    sed -n "s/.*\"$1\":\([0-9.e-]*\).*/\1/p"
}

[ -x "$qat" ] || fail "$qat does not exist; run cargo build --release in $here"
python3 "$here/../tools/fetch_data.py" mnist-5k --dir "$cache" >&2
data=$cache/mnist-5k

"$qat" new lenet -o "$work/new"
"$qat" train "$work/new" --data "$data" --epochs 6 --shift 2 -o "$work/float"
"$qat" quantize-aware "$work/float" --data "$data" --epochs 2 --shift 2 -o "$work/int8"

float=$("$qat" evaluate "$work/float" --data "$data" --json)
int8=$("$qat" evaluate "$work/int8" --data "$data" --trained "$work/int8" --json)
fixed=$("$qat" evaluate "$work/int8" --data "$data" --backend reference --integer fixed --items 200 \
    --trained "$work/int8" --json)
printf '%s\n' "$float" "$int8" "$fixed"
top1=$(number top1 <<<"$float")
holds "$top1" ">=" 0.95 "top-1 of the float network"
holds "$(number top1 <<<"$int8")" ">=" "$top1 - 0.01" "top-1 of the int8 network"
for report in "$int8" "$fixed"; do
    holds "$(number same_top1 <<<"$report")" ">=" 0.995 "share of the same top-1 as the trained network"
    holds "$(number most_steps <<<"$report")" "<=" 2 "largest difference of logits in steps"
done
