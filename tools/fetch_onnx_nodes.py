#!/usr/bin/env python3
"""Downloads the test cases of the ONNX project from its Python package.

usage: fetch_onnx_nodes.py FOLDER

The sets node, simple, pytorch-operator and pytorch-converted have a folder with model and data for
each case; the set light has models and their outputs. An intact FOLDER is not downloaded again.
Nothing of the package is installed or run: the cases are extracted from the wheel, for any
platform, and a checksum over all files is verified. A failure leaves no partial FOLDER.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile

from fetch_model import Failure, download, say

PACKAGE = "onnx==1.22.0"
PREFIX = "onnx/backend/test/data/"
SETS = ("node", "simple", "pytorch-operator", "pytorch-converted", "light")
SHA256 = "fef80d9bf475c6e177bd43849e9e533884ea2eb6f6198993dfdfb444dca8c298"


def sha256(folder):
    """Checksum over name, size and contents of every file, sorted by name."""
    names = []
    for root, _, files in os.walk(folder):
        names += [os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/") for name in files]
    digest = hashlib.sha256()
    for name in sorted(names):
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def fetch(target):
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        say(f"Downloading the ONNX test cases, 18 MB (Python package {PACKAGE})")
        path = download(f"pip:{PACKAGE}", scratch)
        part = os.path.join(scratch, "part")
        with zipfile.ZipFile(path) as wheel:
            for member in wheel.infolist():
                name = member.filename
                if member.is_dir() or not name.startswith(PREFIX):
                    continue
                inner = name[len(PREFIX):].split("/")
                if inner[0] not in SETS:
                    continue
                if any(word in ("", ".", "..") for word in inner):
                    sys.exit(f"error: {os.path.basename(path)} contains a file with an invalid path: {name}")
                file = os.path.join(part, *inner)
                os.makedirs(os.path.dirname(file), exist_ok=True)
                with wheel.open(member) as source, open(file, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
        found = sha256(part)
        if found != SHA256:
            sys.exit(f"error: cases of {PACKAGE}: expected sha256 {SHA256}, found {found}")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(part, target)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    target = os.path.abspath(sys.argv[1])
    if os.path.isdir(target):
        if sha256(target) == SHA256:
            return
        say(f"{target} is damaged, downloading it again")
    try:
        fetch(target)
    except (Failure, OSError, zipfile.BadZipFile) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
