#!/usr/bin/env bash
# Fuzzes one target, or all. Tries the inputs in fuzz/regressions, then new ones for SECONDS, but at
# most EXECUTIONS. With FUZZ_COVERAGE set, coverage guides libFuzzer, and its corpus grows in the
# cache folder from one call to the next. A finding ends the script; its input and the log are then
# in fuzz/findings. With TLITE_FUZZ_LOG set, the number of executions is added to fuzz/log.tsv.
#     tools/fuzz.sh TARGET|all SECONDS [EXECUTIONS]
set -euo pipefail

# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

[ $# -eq 2 ] || [ $# -eq 3 ] || fail "usage: tools/fuzz.sh TARGET|all SECONDS [EXECUTIONS]"
seconds=$2 executions=${3:--1}
mapfile -t targets < <(sed -n 's/^    Target::[a-z]*("\([a-z_0-9]*\)".*/\1/p' fuzz/src/main.rs)
[ ${#targets[@]} -gt 0 ] || fail "fuzz/src/main.rs lists no targets"
if [ "$1" != all ]; then
    [[ " ${targets[*]} " == *" $1 "* ]] || fail "no target $1; expected all or one of ${targets[*]}"
    targets=("$1")
fi

setup_drivers
setup_rust
setup_cxx
build_fuzz
seeds=$CACHE/fuzz/seeds corpora=$CACHE/fuzz/corpora
stamp=$(cat fuzz/seeds.py fuzz/src/byte_tokenizer.json tests/data/templates/*.jinja | cksum)
if [ "$(cat "$seeds.stamp" 2>/dev/null)" != "$stamp" ]; then
    say "Making seeds in $seeds"
    prepare_onnx_data
    TLITE=$(target_folder)/release/tlite
    [ -x "$TLITE" ] || build_tlite
    rm -rf "$seeds"
    python3 fuzz/seeds.py "$seeds" "$ONNX_DATA" "$TLITE"
    echo "$stamp" >"$seeds.stamp"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p fuzz/findings
for target in "${targets[@]}"; do
    regressions=fuzz/regressions/$target timeout=5
    case $target in
    plan | run | cpu) regressions=fuzz/regressions/models ;;
    # A model on PoCL waits for its compiler.
    opencl) regressions=fuzz/regressions/models timeout=60 ;;
    graphs_*) timeout=60 ;;
    esac
    inputs=()
    for folder in "$seeds/$target" "$regressions"; do
        [ ! -d "$folder" ] || inputs+=("$folder")
    done
    FUZZ_SEEDS=$(IFS=:; printf %s "${inputs[*]}") options=(-len_control=0)
    if [ -n "${FUZZ_COVERAGE:-}" ]; then
        FUZZ_SEEDS= options=()
        mkdir -p "$corpora/$target"
        inputs=("$corpora/$target" "${inputs[@]}")
    fi
    mkdir "$work/$target"
    FUZZ_TARGET=$target FUZZ_WORK=$work/$target FUZZ_SEEDS=$FUZZ_SEEDS "$FUZZ" "${options[@]}" \
        -artifact_prefix=fuzz/findings/ -timeout="$timeout" -report_slow_units=1 -rss_limit_mb=4096 \
        -print_final_stats=1 -detect_leaks=0 -max_total_time="$seconds" -runs="$executions" \
        "${inputs[@]}" >"$work/log" 2>&1 || {
        tail -n 40 "$work/log" >&2
        cp "$work/log" "fuzz/findings/$target.log"
        fail "fuzzing $target: see fuzz/findings"
    }
    count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
    say "$target: $count executions"
    [ -z "${TLITE_FUZZ_LOG:-}" ] ||
        printf '%s\t%s\t%s\t%s\t%s\n' "$(date -u +%F)" "$(git rev-parse --short HEAD)" "$target" "$seconds" "$count" >>fuzz/log.tsv
done
