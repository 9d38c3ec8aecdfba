#!/usr/bin/env bash
# Sets up what the tests need and runs all checks: format, lints, features, tests in release mode,
# documentation.
set -euo pipefail

# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

# The current step and its start, and a line for each step that has ended.
current= began=0 times=()

begin() {
    current=$1 began=$SECONDS
    say "$current"
}

# Ends the current step, with a remark.
end() {
    local took=$((SECONDS - began))
    times+=("$(printf '%5d:%02d  %s' $((took / 60)) $((took % 60)) "$current${1:-}")")
    current=
}

step() {
    begin "$1"
    shift
    "$@" || fail "$current: failed"
    end
}

# Prints the minutes of each step, also after a failure.
table() {
    [ -z "$current" ] || end " (failed)"
    say "Minutes of each step:"
    printf '%s\n' "${times[@]}" "$(printf '%5d:%02d  total' $((SECONDS / 60)) $((SECONDS % 60)))" >&2
}
trap table EXIT

# TLITE_TESTS=nightly, which nightly.sh sets, adds what nightly.sh names.
export TLITE_TESTS=${TLITE_TESTS:-ci}
nightly=
[ "$TLITE_TESTS" != nightly ] || nightly=1

begin "Drivers and tools"
setup_drivers
setup_browser
setup_valgrind
setup_cxx
setup_kotlin
setup_rust
cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 ||
    { have rustup && rustup -q component add rustfmt clippy >&2; } || install rustfmt rust-clippy

say "$(cargo --version), $(rustc --version), drivers:"
driver_versions >&2
end

# All steps use the release profile, so that they share build results. Optimizing across the parts
# of a crate takes as long as compiling them: kernels would be faster, tests are not.
export CARGO_PROFILE_RELEASE_LTO=off
step "Format" cargo fmt --check --all
step "Training: format" cargo fmt --check --manifest-path qat/Cargo.toml
step "Lints" cargo clippy --release --locked --workspace --all-targets -- -D warnings
# Clippy has seen the code of these features, so here the compiler's warnings are enough. To deny
# them by a flag would compile all dependencies once more.
features() {
    local output passed=1
    output=$(cargo check --release --locked -p tlite --lib --bins --no-default-features --features "$1" 2>&1) || passed=
    printf '%s\n' "$output" >&2
    [ -n "$passed" ] && [[ $output != *" generated "*warning* ]]
}
for set in "" cpu ${nightly:+opencl wgpu}; do
    step "Features \"$set\"" features "$set"
done
# The page is what its sources are built to.
page() {
    local built
    built=$(mktemp -d)
    cp web/dist/* "$built"
    (cd web && npm ci --no-audit --no-fund && npm run build && npm test) >&2 || return 1
    [ -z "$nightly" ] || (cd web && npm run test:browser) >&2 || return 1
    diff -r web/dist "$built" >&2
}
if setup_node; then
    step "Page" page
fi
if setup_android; then
    RUSTFLAGS="-D warnings" step "Android" cargo check --release --locked --target "$ANDROID" --lib --bins
fi
# Builds the command and the fuzz targets too, with the features of the tests' dependencies: building
# them alone would compile the library once more. Examples and benchmarks are only linted.
tests=(--release --locked -p transformer-lite -p transformer-lite-capi -p transformer-lite-convert
    -p transformer-lite-serve -p tlite -p tlite-fuzz -p tlite-example-server --tests)
step "Building the tests" cargo test "${tests[@]}" --no-run
begin "Models"
find_tlite
prepare_model
prepare_onnx_data
prepare_real_models
prepare_clip
prepare_optimum
end
"$TLITE" devices >&2
step "Machine code of native kernels: doctests" python3 -m doctest tools/kernel_code.py
step "Machine code of native kernels" python3 tools/kernel_code.py "$TLITE"
export TLITE_TEST_MODEL_DIR=$MODEL_DIR
export TLITE_ONNX_DATA=$ONNX_DATA
export TLITE_TEST_MODELS=$CACHE
# A missing driver fails the tests instead of skipping some.
export REQUIRE_BACKENDS=${REQUIRE_BACKENDS:-cpu,opencl,wgpu}
if [ -n "$nightly" ]; then
    begin "The larger model"
    prepare_large_model
    end
    export TLITE_TEST_LARGE_MODEL_DIR=$LARGE_MODEL_DIR
fi
begin "Setup of phone compilers"
setup_phone_compilers
end
step "Phone compilers: doctests" python3 -m doctest tools/phone_compile/{tables,summary,predictions,page}.py
step "Phone compilers" python3 tools/phone_compile --check ${nightly:+--all}
step "Comparisons: their tables" python3 -m doctest tools/compare_llm.py tools/compare_int8.py tools/facts.py
step "Tests" cargo test "${tests[@]}" --no-fail-fast
step "Kotlin" tools/kotlin.sh
setup_clients
step "Server: OpenAI's client" "$CLIENTS" tools/server/openai_client.py "$TLITE" "$MODEL_DIR/e0m4"
# At random times, so each run tries others.
step "Kills and other faults" python3 tests/faults/kill.py "$TLITE" "$MODEL_DIR" ${nightly:+--kills 500 --long}
if [ -n "$nightly" ]; then
    # All targets together take an hour.
    FUZZ_COVERAGE=1 step "Fuzzing" tools/fuzz.sh all 210
    # PoCL takes most of its time to compile: an hour is enough for only a few thousand graphs.
    graphs() {
        local kept
        kept=$(mktemp -d)
        FUZZ_GRAPHS=$kept tools/fuzz.sh graphs 3600 100000 && tools/fuzz.sh graphs_wgpu 7200 100000 &&
            tools/fuzz.sh graphs_opencl 3600 100000 && python3 tools/compare_graphs.py "$kept" || return
        rm -r "$kept"
    }
    step "Random graphs" graphs
else
    FUZZ=$(target_folder)/release/fuzz step "Fuzzing" tools/fuzz.sh all 5
fi
if setup_aarch64; then
    # Tests of native kernels on an emulated processor. Optimizing more takes longer than it saves.
    arm() {
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu $1 -L /usr/aarch64-linux-gnu" \
            CARGO_PROFILE_RELEASE_OPT_LEVEL=1 REQUIRE_BACKENDS=cpu \
            cargo test --release --locked --target "$AARCH64" -p transformer-lite \
            --no-default-features --features cpu "${@:2}"
    }
    # `max` has all instruction sets, the other no dot products.
    step "64-bit Arm: building the tests" arm max --lib --test references --no-run
    step "64-bit Arm: kernels" arm max --lib -- cpu::
    step "64-bit Arm: operators without dot products" arm cortex-a53 --test references -- conformance::
    [ -z "$nightly" ] || step "64-bit Arm: operators" arm max --test references -- conformance::
fi
step "Doctests" cargo test --release --locked --doc
# Runs each benchmark once without timing, as criterion does without `--bench`.
[ -z "$nightly" ] || step "Benchmarks" cargo test --release --locked --bench '*'
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
    # Its compiler builds one program at a time per process, so use two processes. A sample of each
    # operator, or all in the nightly tier.
    operators() {
        [ -n "$nightly" ] || export CONFORMANCE_SAMPLE=1
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
if [ -n "$nightly" ]; then
    # Its dependencies take longer to build than the engine.
    training() {
        CARGO_TARGET_DIR=$(target_folder)/qat cargo "$1" --release --locked --manifest-path qat/Cargo.toml "${@:2}"
    }
    step "Training: lints" training clippy --all-targets -- -D warnings
    step "Training: tests" training test
    step "Training: building the command" training build
    step "Training: LeNet" qat/test.sh "$(target_folder)/qat/release/tlite-qat"
    step "Sanitizers" tools/sanitize.sh
    step "Soak" tools/soak.sh 1200
fi
# Building the packages as a user gets them takes minutes.
no_verify=--no-verify
[ -z "$nightly" ] || no_verify=
if setup_cargo_deny; then
    step "Dependencies" "$CARGO_DENY" --locked --workspace check --hide-inclusion-graph licenses bans sources
fi
step "Packages" cargo publish --workspace --dry-run --locked --allow-dirty $no_verify
RUSTDOCFLAGS="-D warnings" step "Documentation" cargo doc --release --locked --no-deps
say "All passed"
