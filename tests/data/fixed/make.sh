#!/usr/bin/env bash
# Makes requantized.txt with gemmlowp (Debian package libgemmlowp-dev).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
c++ -std=c++17 -O1 -I/usr/include/gemmlowp make.cc -o "$work/make"
"$work/make" >requantized.txt
