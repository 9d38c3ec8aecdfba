#!/usr/bin/env bash
# Sets up what the tests need and runs all checks: format, lints, features, tests in release mode,
# documentation.
set -euo pipefail

# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

# Prints a line before a step and its time after it.
step() {
    local name=$1 start=$SECONDS
    shift
    say "$name"
    "$@" || fail "$name: failed"
    say "$name: $((SECONDS - start)) s"
}

setup_drivers
setup_browser
setup_valgrind
setup_rust
cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
    { have rustup && rustup -q component add rustfmt clippy >&2; } || install rustfmt rust-clippy

say "$(cargo --version), $(rustc --version), drivers:"
driver_versions >&2

# All steps use the release profile, so that they share build results.
# cargo fmt does not find the modules that the list of operators declares.
format() {
    cargo fmt --check --all && rustfmt --check --config-path rustfmt.toml --edition 2024 src/graph/op/*.rs
}
step "Format" format
step "Lints: library and command" cargo clippy --release --locked --workspace --lib --bins -- -D warnings
step "Lints: tests, benches and examples" cargo clippy --release --locked --workspace --tests --benches --examples -- -D warnings
for features in "" opencl wgpu; do
    step "Lints: features \"$features\"" cargo clippy --release --locked -p tlite --lib --bins --no-default-features --features "$features" -- -D warnings
done
if setup_android; then
    RUSTFLAGS="-D warnings" step "Android" cargo check --release --locked --target "$ANDROID" --lib --bins
fi
# Builds the command too, with the features of the tests' dependencies: building it alone would
# compile the library once more.
step "Building the tests" cargo test --release --locked --no-run
find_tlite
prepare_model
prepare_onnx_data
prepare_real_models
prepare_clip
prepare_optimum
"$TLITE" devices >&2
export TLITE_TEST_MODEL_DIR=$MODEL_DIR
export TLITE_ONNX_DATA=$ONNX_DATA
export TLITE_TEST_MODELS=$CACHE
# A missing driver fails the tests instead of skipping some.
export REQUIRE_BACKENDS=${REQUIRE_BACKENDS:-opencl,wgpu}
# TLITE_TESTS=nightly, which nightly.sh sets, also tests all kernels and a larger model.
export TLITE_TESTS=${TLITE_TESTS:-ci}
nightly=
if [ "$TLITE_TESTS" = nightly ]; then
    nightly=1
    prepare_large_model
    export TLITE_TEST_LARGE_MODEL_DIR=$LARGE_MODEL_DIR
fi
setup_phone_compilers
step "Phone compilers: doctests" python3 -m doctest tools/phone_compile/{tables,summary,predictions,page}.py
step "Phone compilers" python3 tools/phone_compile --check ${nightly:+--all}
step "Comparisons: their tables" python3 -m doctest tools/compare_llm.py
step "Tests" cargo test --release --locked --no-fail-fast
# Runs each benchmark once without timing, as criterion does without `--bench`.
step "Benchmarks" cargo test --release --locked --bench '*'
if setup_intel_opencl; then
    intel() {
        OCL_ICD_VENDORS=$INTEL_VENDORS REQUIRE_BACKENDS=opencl cargo test --release --locked "$@"
    }
    # Runs the trials of a test whose names contain a text, after further filters. Fails if there
    # are none, since a filter without matches would pass.
    matching() {
        local test=$1
        shift
        [[ $(intel --test "$test" -- "$@" --list) == *": test"* ]] && intel --test "$test" -- "$@"
    }
    # Its compiler builds one program at a time per process, so use two processes.
    operators() {
        matching references conformance::f16@opencl & local halves=$!
        matching references conformance::@opencl --skip f16@opencl & local others=$!
        local failed=0
        wait "$halves" || failed=1
        wait "$others" || failed=1
        return "$failed"
    }
    step "Intel's OpenCL: backend" intel --lib -- backend::opencl
    step "Intel's OpenCL: operators" operators
    # Intel's driver supports images over buffers, and the half-precision arithmetic that weights in
    # pairs need.
    step "Intel's OpenCL: accuracy of phones' kernels" matching references llm::agreement_as_
    step "Intel's OpenCL: a model on an Adreno" matching models phone_path::adreno_
    step "Intel's OpenCL: a model on a Mali" matching models phone_path::mali_
fi
RUSTDOCFLAGS="-D warnings" step "Documentation" cargo doc --release --locked --no-deps
say "All passed in $SECONDS s"
