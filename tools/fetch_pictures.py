#!/usr/bin/env python3
"""Downloads pictures for calibrating and evaluating int8 models.

usage: fetch_pictures.py calibration|evaluation... --dir DIR

Writes the pictures of each set to DIR/pictures/SET and prints that folder. No picture is in both
sets. Most are photographs of single objects. They come from the Debian packages
tuxpaint-stamps-default and mate-backgrounds, which apt downloads without installing them.
tools/pictures.txt lists them with their checksums.
"""

import os
import sys
import tempfile

from fetch_data import unpack_debian
from fetch_model import Failure, parsed, sha256

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pictures.txt")
SETS = ("calibration", "evaluation")


def listed():
    """For each set, its pictures: checksum, package, path in the package, and file name."""
    sets = {name: [] for name in SETS}
    with open(LIST, encoding="utf-8") as file:
        for line in file:
            checksum, name, package, path = line.split()
            sets[name].append((checksum, package, path, "-".join(path.split("/")[3:])))
    return sets


def is_whole(path, checksum):
    return os.path.isfile(path) and sha256(path) == checksum


def fetch(name, folder):
    """Downloads a set and returns its folder."""
    folder = os.path.join(folder, "pictures", name)
    os.makedirs(folder, exist_ok=True)
    missing = [p for p in listed()[name] if not is_whole(os.path.join(folder, p[3]), p[0])]
    for package in sorted({package for _, package, _, _ in missing}):
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=os.path.dirname(folder)) as scratch:
            unpack_debian(package, scratch)
            for checksum, _, path, target in (p for p in missing if p[1] == package):
                found = os.path.join(scratch, path)
                if not is_whole(found, checksum):
                    raise Failure(f"{package}: {path} is missing or differs from the file with sha256 {checksum}")
                os.replace(found, os.path.join(folder, target))
    return folder


def main():
    names, folder = parsed(sys.argv[1:], SETS, "set", __doc__)
    try:
        for name in names:
            print(fetch(name, folder))
    except (Failure, OSError) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
