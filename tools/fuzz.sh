#!/usr/bin/env bash
# Fuzzes one target, or all: tries the inputs in fuzz/regressions, then new ones for some seconds. The
# corpus grows in the cache folder from one call to the next. A finding ends the script; its input is
# then in fuzz/findings. With TLITE_FUZZ_LOG set, executions are added to fuzz/log.tsv.
#     tools/fuzz.sh TARGET|all SECONDS
set -euo pipefail

# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

[ $# -eq 2 ] || fail "usage: tools/fuzz.sh TARGET|all SECONDS"
seconds=$2
mapfile -t targets < <(sed -n 's/^    Target::[a-z]*("\([a-z_]*\)".*/\1/p' fuzz/src/main.rs)
if [ "$1" != all ]; then
    [[ " ${targets[*]} " == *" $1 "* ]] || fail "no target $1; expected all or one of ${targets[*]}"
    targets=("$1")
fi

setup_cxx
build_fuzz
corpora=$CACHE/fuzz
stamp=$(cksum <fuzz/seeds.py)
if [ "$(cat "$corpora/stamp" 2>/dev/null)" != "$stamp" ]; then
    say "Making seeds in $corpora"
    prepare_onnx_data
    find_tlite
    python3 fuzz/seeds.py "$corpora" "$ONNX_DATA" "$TLITE"
    echo "$stamp" >"$corpora/stamp"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p fuzz/findings
for target in "${targets[@]}"; do
    regressions=fuzz/regressions/$target timeout=5
    case $target in
    plan | run) regressions=fuzz/regressions/models ;;
    # A model on PoCL waits for its compiler.
    device) regressions=fuzz/regressions/models timeout=60 ;;
    esac
    mkdir "$work/$target"
    inputs=("$corpora/$target")
    [ ! -d "$regressions" ] || inputs+=("$regressions")
    FUZZ_TARGET=$target FUZZ_WORK=$work/$target "$FUZZ" -artifact_prefix=fuzz/findings/ -timeout="$timeout" \
        -report_slow_units=1 -rss_limit_mb=4096 -print_final_stats=1 -detect_leaks=0 \
        -max_total_time="$seconds" "${inputs[@]}" >"$work/log" 2>&1 ||
        { tail -n 40 "$work/log" >&2; fail "fuzzing $target: see fuzz/findings"; }
    count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
    say "$target: $count executions"
    [ -z "${TLITE_FUZZ_LOG:-}" ] ||
        printf '%s\t%s\t%s\t%s\t%s\n' "$(date -u +%F)" "$(git rev-parse --short HEAD)" "$target" "$seconds" "$count" >>fuzz/log.tsv
done
