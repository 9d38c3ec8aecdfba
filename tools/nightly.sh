#!/usr/bin/env bash
# Runs all checks of test.sh, and what takes too long for every change:
# - all specialisations of all kernels on this machine's devices, and all kernel texts in the
#   phones' compilers
# - each backend for GPUs without the others
# - the accuracy of a model of 0.5 billion parameters
# - trials of the kind "nightly", which test.sh lists as ignored
# - all operators with dot products of 64-bit Arm
# - all operators on Intel's OpenCL, and its models with the phones' kernels
# - each benchmark, once
# - the training in qat: lints, tests, and LeNet on a part of MNIST
# - an hour of fuzzing that sees which code an input reaches
# - up to 100,000 random graphs on each backend, within a time limit, and a sample in ONNX Runtime
# - 500 kills of the command at random times
# - more faults of drivers, sanitizers over the C interface and the operators of the backend `cpu`, and
#   20 minutes of models that come and go
set -euo pipefail
TLITE_TESTS=nightly exec "$(dirname "${BASH_SOURCE[0]}")/test.sh"
