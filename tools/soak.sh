#!/usr/bin/env bash
# Loads models, generates and fails for a while on every backend at once, and fails if memory,
# descriptors or threads of a process grow by more than 10 % after the third minute, or after half of
# the time if that is earlier.
#     tools/soak.sh [SECONDS [BACKEND...]]
set -euo pipefail

# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

seconds=${1:-1200}
backends=("${@:2}")
[ ${#backends[@]} -gt 0 ] || backends=(reference opencl wgpu)
settle=$((seconds / 2 < 180 ? seconds / 2 : 180))

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny_model "$work/model"
# Where cargo puts the library that the command is built with.
library=$(target_folder)/release/deps
cc -std=c11 -Wall -Wextra -Werror -O1 -I include tests/faults/soak.c -o "$work/soak" \
    -L "$library" -ltlite_c "-Wl,-rpath,$library"

running=()
for backend in "${backends[@]}"; do
    "$work/soak" "$work/model" "$backend" "$seconds" "$settle" &
    running+=($!)
done
failed=
for i in "${!running[@]}"; do
    wait "${running[$i]}" || failed+=" ${backends[$i]}"
done
[ -z "$failed" ] || fail "soak:$failed"
