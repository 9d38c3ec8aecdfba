#!/usr/bin/env bash
# Compares the host interpreter with ONNX Runtime on a converted model, over the first positions of a real text.
#
#   tools/compare_logits.sh [MODEL_DIR] [POSITIONS]
#
# MODEL_DIR defaults to the demo's converted (not quantized) model, POSITIONS to 128. Makes a Python environment in the cache folder
# on first use. Fails when the relative error of the logits, ||ours - theirs|| / ||theirs||, reaches 1e-3.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${TLITE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/transformer-lite}
model=${1:-$cache/smollm2-135m/onnx}
positions=${2:-128}
if [ ! -f "$model/model.onnx" ]; then
  echo "compare_logits: no $model/model.onnx; run tools/demo.sh first, or name a folder that 'tlite convert' wrote" >&2
  exit 2
fi
venv=$cache/venv-ort
if ! "$venv/bin/python" -c 'import onnxruntime, tokenizers' 2>/dev/null; then
  echo "making a Python environment in $venv" >&2
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet 'onnxruntime==1.31.1' numpy tokenizers
fi
cargo build --quiet --release --manifest-path "$root/Cargo.toml" --example logits
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
target=$(cargo metadata --no-deps --format-version 1 --manifest-path "$root/Cargo.toml" | python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')
"$venv/bin/python" "$root/tools/compare_logits.py" "$model" "$root/tests/data" "$positions" "$target/release/examples/logits" "$work"
