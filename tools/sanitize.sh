#!/usr/bin/env bash
# Runs the C interface on the backend reference under AddressSanitizer with LeakSanitizer, ThreadSanitizer
# and valgrind; and the operators' cases on the backend `cpu`, with each instruction set of the
# processor under AddressSanitizer and without any under valgrind. The sanitizers need unstable
# compiler options and a standard library that is built with them.
#     tools/sanitize.sh [address] [thread] [valgrind]
set -euo pipefail

# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

kinds=("$@")
[ ${#kinds[@]} -gt 0 ] || kinds=(address thread valgrind)
host=$(rustc -vV | sed -n 's/^host: //p')
runtimes=$(rustc --print sysroot)/lib/rustlib/$host/lib
[[ $host == *-linux-gnu ]] || fail "sanitizers run on Linux only"
setup_valgrind
setup_cxx
have rustup && rustup -q component add rust-src >&2 || true
[ -d "$(rustc --print sysroot)/lib/rustlib/src/rust/library" ] ||
    fail "the source of the standard library is missing; with rustup, type:  rustup component add rust-src"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny_model "$work/model"

# Compiles a program of the C interface for a sanitizer, or for valgrind without one, and links it
# with a static library and Rust's runtime of the sanitizer: that of cc lacks functions that LLVM
# calls.
#     program KIND NAME SOURCE LIBRARY
program() {
    local flag=() runtime=()
    case $1 in
    address) flag=(-fsanitize=address) runtime=("$runtimes"/librustc*_rt.asan.a) ;;
    thread) flag=(-fsanitize=thread) runtime=("$runtimes"/librustc*_rt.tsan.a) ;;
    esac
    cc -std=c11 -g -O1 -pthread -I include "${flag[@]}" -c "$3" -o "$work/$2.o"
    cc -pthread "$work/$2.o" -Wl,--whole-archive "${runtime[@]}" -Wl,--no-whole-archive "$4" \
        -o "$work/$2" -Wl,--gc-sections -lm -ldl -lrt -lgcc_s -lstdc++
}

# Compiles the programs and runs them.
#     check KIND LIBRARY RUNNER...
check() {
    local kind=$1
    program "$kind" threads tests/faults/threads.c "$2"
    program "$kind" capi tests/capi/capi.c "$2"
    program "$kind" features tests/capi/features.c "$2"
    say "$kind: threads"
    "${@:3}" "$work/threads" "$work/model" reference
    say "$kind: capi"
    "${@:3}" "$work/capi" "$work/model" reference "$work/kernels" >/dev/null
    "${@:3}" "$work/features" "$work/model" reference >/dev/null
}

# Runs the cases on the backend `cpu` whose names contain a text. Vector instructions are only
# inlined with some optimization.
#     cases TEXT CARGO_OPTION...
cases() {
    say "cases: ${1:-all}"
    REQUIRE_BACKENDS=cpu CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off \
        CARGO_TARGET_DIR=$target cargo test --release --locked --target "$host" -p transformer-lite \
        --no-default-features --features cpu --test references "${@:2}" -- "conformance::$1"
}

for kind in "${kinds[@]}"; do
    # A tiny model needs no optimization, and building takes longer than running.
    options=(--locked -p transformer-lite-capi --lib --no-default-features --crate-type staticlib --target "$host"
        --config profile.dev.opt-level=0 --config 'profile.dev.package."*".opt-level=0')
    target=$(target_folder)/sanitize-$kind
    flags="-Zsanitizer=$kind -Cforce-frame-pointers=yes"
    begun=$SECONDS
    case $kind in
    address | thread)
        say "Building for the sanitizer \"$kind\""
        RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags CARGO_TARGET_DIR=$target \
            cargo rustc "${options[@]}" -Zbuild-std
        ;;
    valgrind)
        CARGO_TARGET_DIR=$target cargo rustc "${options[@]}"
        ;;
    *) fail "expected address, thread or valgrind, found $kind" ;;
    esac
    say "$kind: built in $((SECONDS - begun)) s"
    library=$target/$host/debug/libtlite_c.a
    case $kind in
    address)
        check "$kind" "$library" env ASAN_OPTIONS=detect_leaks=1:abort_on_error=0
        RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags ASAN_OPTIONS=detect_leaks=0 cases "" -Zbuild-std
        ;;
    thread) check "$kind" "$library" env TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 ;;
    valgrind)
        check "$kind" "$library" valgrind --quiet --error-exitcode=99 --leak-check=full \
            --show-leak-kinds=definite,indirect --errors-for-leak-kinds=definite,indirect
        runner=CARGO_TARGET_$(tr a-z- A-Z_ <<<"$host")_RUNNER
        (
            export "$runner=valgrind --quiet --error-exitcode=99"
            cases :portable
        )
        ;;
    esac
done
say "No sanitizer found anything"
