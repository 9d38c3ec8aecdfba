#!/usr/bin/env bash
# Compares the logits of decoders with ONNX Runtime, on the first tokens of a real text, or on
# random tokens if the folder has no tokenizer.
#
#   tools/compare_logits.sh [--positions N] [--decode N] [--backend NAME].. [MODEL_DIR..]
#
#   MODEL_DIR     a folder with model.onnx (default: the demo's converted, unquantized model)
#   --positions   tokens in the prefill (default: 128)
#   --decode      tokens decoded one by one after it (default: 0)
#   --backend     reference, opencl or wgpu; may be repeated (default: reference)
#
# Creates a Python environment in the cache folder on first use. Fails if the relative error of the
# logits, ||ours - theirs|| / ||theirs||, over all rows or in one row, reaches 1e-3 with reference or
# 2e-2 on a device, which stores 16-bit floats.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cache=${TLITE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/transformer-lite}
options=() models=()
while [ $# -gt 0 ]; do
  case $1 in
    --positions | --decode | --backend) options+=("$1" "${2:?$1 needs a value}"); shift 2 ;;
    -*) echo "compare_logits: unknown option $1" >&2; exit 2 ;;
    *) models+=("$1"); shift ;;
  esac
done
[ ${#models[@]} -gt 0 ] || models=("$cache/smollm2-135m/onnx")
for model in "${models[@]}"; do
  if [ ! -f "$model/model.onnx" ]; then
    echo "compare_logits: no $model/model.onnx; name a folder that 'tlite convert --float' or export_llm.py wrote" >&2
    exit 2
  fi
done
venv=$cache/venv-ort
if ! "$venv/bin/python" -c 'import onnxruntime, tokenizers' 2>/dev/null; then
  echo "Creating a Python environment in $venv" >&2
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet 'onnxruntime==1.31.1' numpy tokenizers
fi
cargo build --quiet --release --manifest-path "$root/Cargo.toml" --example logits
target=$(cargo metadata --no-deps --format-version 1 --manifest-path "$root/Cargo.toml" | python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')
"$venv/bin/python" "$root/tools/compare_logits.py" "$target/release/examples/logits" "$root/tests/data" "${options[@]}" "${models[@]}"
