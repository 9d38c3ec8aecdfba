#!/usr/bin/env python3
"""Downloads pictures for calibrating and evaluating int8 models.

usage: fetch_pictures.py calibration|evaluation... --dir DIR

Writes the pictures of a set to DIR/pictures/SET and prints that folder. No picture is in both sets.
Most are photographs of single objects. They come from the Debian packages tuxpaint-stamps-default
and mate-backgrounds, which apt downloads without installing them; pictures.txt lists them with
their checksums.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pictures.txt")
SETS = ("calibration", "evaluation")


class Failure(Exception):
    """An error to report to the user."""


def listed():
    """For each set, its pictures: checksum, package, path in the package, name."""
    sets = {name: [] for name in SETS}
    with open(LIST, encoding="utf-8") as file:
        for line in file:
            checksum, name, package, path = line.split()
            sets[name].append((checksum, package, path, "-".join(path.split("/")[3:])))
    return sets


def checked(path, checksum):
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest() == checksum


def unpack(packages, scratch):
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Failure(f"{tool} not found; this tool needs Debian or a distribution based on it")
    if subprocess.run(["apt-get", "download", "-q", *packages], cwd=scratch, stdout=sys.stderr.fileno()).returncode:
        raise Failure(f"apt could not download {', '.join(packages)}; run apt-get update and try again")
    for archive in [f for f in os.listdir(scratch) if f.endswith(".deb")]:
        subprocess.run(["dpkg-deb", "-x", archive, "."], cwd=scratch, check=True)


def fetch(name, folder):
    folder = os.path.join(folder, "pictures", name)
    os.makedirs(folder, exist_ok=True)
    missing = [p for p in listed()[name] if not checked(os.path.join(folder, p[3]), p[0])]
    if missing:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=os.path.dirname(folder)) as scratch:
            unpack(sorted({package for _, package, _, _ in missing}), scratch)
            for checksum, package, path, target in missing:
                found = os.path.join(scratch, path)
                if not checked(found, checksum):
                    raise Failure(f"{package}: {path} is missing or differs from the file with sha256 {checksum}")
                os.replace(found, os.path.join(folder, target))
    return folder


def main():
    arguments = sys.argv[1:]
    if "--dir" not in arguments[:-1]:
        sys.exit(__doc__.strip())
    at = arguments.index("--dir")
    names = arguments[:at] + arguments[at + 2 :]
    if not names or not set(names) <= set(SETS):
        sys.exit(__doc__.strip())
    try:
        for name in names:
            print(fetch(name, os.path.abspath(arguments[at + 1])))
    except (Failure, OSError, subprocess.CalledProcessError) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
