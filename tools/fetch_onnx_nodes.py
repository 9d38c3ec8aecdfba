#!/usr/bin/env python3
"""Makes the test cases of the ONNX project with its Python package.

usage: fetch_onnx_nodes.py FOLDER

Each case of the sets node, simple, pytorch-operator and pytorch-converted is a folder with a model
and its data. The set light has models and their outputs. An intact FOLDER is not made again.

The package has the set node as code only. The package and what it needs are therefore downloaded to
a temporary folder and run there. Nothing is installed, and a failure leaves no partial FOLDER.

A checksum in this script covers the name and size of every file, all models, and the data of all
sets but node. It leaves out the tensors of the set node, because the last bits of their floats
depend on the C library and the kind of CPU. FOLDER/sha256 has a checksum over everything as it was
made here, which detects later damage.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

from fetch_model import Failure, download, say

PACKAGE = "onnx==1.23.0"
# NumPy 2.2 is the last for Python 3.10, and 2.3 the first for 3.14. Both give the same cases.
NUMPY = "numpy==2.2.6" if sys.version_info < (3, 11) else "numpy==2.3.5"
PACKAGES = (PACKAGE, NUMPY, "protobuf==6.33.6", "ml_dtypes==0.5.4", "typing_extensions==4.16.0")
PYTHONS = ((3, 10), (3, 14))
COPIED = ("simple", "pytorch-operator", "pytorch-converted", "light")
SHA256 = "a5bde097d4d975332832c4fb4e207516dfc2c07814598938496c2f9cf6a22fe5"
RECORD = "sha256"

# Writes the cases with the package's own tool, which made the files of onnx 1.22 and earlier.
MAKE = """
import argparse, sys
sys.path.insert(0, sys.argv[1])
from onnx.backend.test import cmd_tools
from onnx.backend.test.case import node
cmd_tools.model_test.collect_testcases = node.collect_testcases
cmd_tools.generate_data(argparse.Namespace(output=sys.argv[2]))
"""
# With these, NumPy and OpenBLAS take the same code paths on all x86-64 CPUs, so that their results
# are rounded alike. Other CPUs ignore them.
SAME_ROUNDING = {
    "NPY_DISABLE_CPU_FEATURES": "SSSE3 SSE41 POPCNT SSE42 AVX F16C FMA3 AVX2 AVX512F AVX512CD AVX512_KNL"
    " AVX512_KNM AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Prescott",
    "OPENBLAS_NUM_THREADS": "1",
}


def checksums(folder):
    """Checksums over the files, sorted by name: of everything, and of what is the same everywhere.

    The second leaves out the contents of the tensors of the set node.
    """
    names = []
    for root, _, files in os.walk(folder):
        names += [os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/") for name in files]
    everything, portable = hashlib.sha256(), hashlib.sha256()
    for name in sorted(names):
        if name == RECORD:
            continue
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
        head = f"{name} {len(content)}\n".encode()
        everything.update(head + content)
        is_tensor = name.startswith("node/") and name.endswith(".pb")
        portable.update(head if is_tensor else head + content)
    return everything.hexdigest(), portable.hexdigest()


def is_intact(folder):
    everything, portable = checksums(folder)
    try:
        with open(os.path.join(folder, RECORD), "rb") as file:
            return portable == SHA256 and file.read().strip() == everything.encode()
    except FileNotFoundError:
        return False


def unpack(packages, scratch, folder):
    """Downloads packages to `folder`, from which Python can import them."""
    for package in packages:
        with tempfile.TemporaryDirectory(dir=scratch) as own:
            with zipfile.ZipFile(download(f"pip:{package}", own)) as wheel:
                wheel.extractall(folder)


def make_nodes(library, folder):
    """Makes the set node in `folder`, with the packages in `library` and no others."""
    command = [sys.executable, "-I", "-S", "-B", "-c", MAKE, library, folder]
    # The warnings about intended divisions by zero are not shown.
    run = subprocess.run(command, env={**os.environ, **SAME_ROUNDING}, capture_output=True)
    if run.returncode != 0:
        last = run.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise Failure(f"{PACKAGE} could not make its test cases (exit code {run.returncode}): {last}")


def fetch(target):
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        first, last = (".".join(map(str, version)) for version in PYTHONS)
        found = ".".join(map(str, sys.version_info[:2]))
        raise Failure(f"{PACKAGE} and {NUMPY} need Python {first} to {last}, but this is Python {found}")
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        library, part = os.path.join(scratch, "library"), os.path.join(scratch, "part")
        say(f"Downloading the ONNX test cases, 31 MB (Python packages {', '.join(PACKAGES)})")
        unpack(PACKAGES, scratch, library)
        say("Making the ONNX test cases")
        make_nodes(library, part)
        for name in COPIED:
            data = os.path.join(library, "onnx", "backend", "test", "data", name)
            shutil.copytree(data, os.path.join(part, name))
        everything, portable = checksums(part)
        if portable != SHA256:
            raise Failure(f"cases of {PACKAGE}: expected sha256 {SHA256}, found {portable}")
        with open(os.path.join(part, RECORD), "w") as file:
            file.write(f"{everything}\n")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(part, target)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    target = os.path.abspath(sys.argv[1])
    try:
        if os.path.isdir(target):
            if is_intact(target):
                return
            say(f"{target} is damaged, making it again")
        fetch(target)
    except (Failure, OSError, zipfile.BadZipFile) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
