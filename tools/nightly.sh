#!/usr/bin/env bash
# Runs all checks of test.sh, and what takes too long for every change: all specialisations of all
# kernels on this machine's devices, all kernel texts in the phones' compilers, and the accuracy of
# a model of 0.5 billion parameters.
set -euo pipefail
TLITE_TESTS=nightly exec "$(dirname "${BASH_SOURCE[0]}")/test.sh"
