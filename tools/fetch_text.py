#!/usr/bin/env python3
"""Downloads English prose in the public domain, for calibration and perplexity.

usage: fetch_text.py NAME... --dir DIR
       fetch_text.py --list

Each NAME is a novel by Jane Austen. It is written to DIR/texts/NAME.txt, and the path is printed.
The texts come from the Debian package r-cran-janeaustenr, which apt downloads without installing
it.
"""

import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

PACKAGE = "r-cran-janeaustenr"
DATA = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"

# By name: the first line of the novel, and the checksum of the written file.
TEXTS = {
    "emma": ("EMMA", "7c67b5985c6d0de1efaeb5d342d52cb82c38083c40e2295129e30e87ee690ebe"),
    "mansfield-park": ("MANSFIELD PARK", "98bc90519cdf4ef663ad7de2734bb529435ef24f7abbde6bb1a50898871dafe9"),
    "northanger-abbey": ("NORTHANGER ABBEY", "51f91bbe0517db8e65cff009b097ce0a1836124c4e0532ac19e6c0cad982abed"),
    "persuasion": ("PERSUASION", "8061549557aebd2fd6e353d18d9197cb707029112bd52d4d8b174583a925848a"),
    "pride-and-prejudice": ("PRIDE AND PREJUDICE", "dfc684d4f857fa938268f9ab9c5567b64bd0691251eca959644adeabe6287a4d"),
    "sense-and-sensibility": ("SENSE AND SENSIBILITY", "105e1651fe93bed7130078578efd31e0c557d68667ba672ddc876f735b30fe09"),
}


class Failure(Exception):
    """An error to report to the user."""


def lines_of(data):
    """The elements of a vector of strings as R serializes it (XDR, version 3)."""
    if data[:2] != b"X\n":
        raise Failure(f"{PACKAGE}: expected an object in R's portable format")
    at = 2 + 3 * 4
    at += 4 + struct.unpack_from(">i", data, at)[0]
    kind, count = struct.unpack_from(">ii", data, at)
    if kind & 0xFF != 16:
        raise Failure(f"{PACKAGE}: expected a vector of strings (16), found an object of type {kind & 0xFF}")
    at += 8
    for _ in range(count):
        _, length = struct.unpack_from(">ii", data, at)
        at += 8
        yield data[at : at + max(length, 0)].decode()
        at += max(length, 0)


def novels(database):
    """First line and text of each object in the database: a length, then a zlib stream."""
    while database:
        stream = zlib.decompressobj()
        lines = list(lines_of(stream.decompress(database[4:])))
        yield lines[0].strip().upper(), "\n".join(lines) + "\n"
        database = stream.unused_data


def unpacked(scratch):
    """Downloads the package and returns its database."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Failure(f"{tool} not found; this tool needs Debian or a distribution based on it")
    if subprocess.run(["apt-get", "download", "-q", PACKAGE], cwd=scratch, stdout=sys.stderr.fileno()).returncode:
        raise Failure(f"apt could not download {PACKAGE}; run apt-get update and try again")
    (archive,) = [f for f in os.listdir(scratch) if f.endswith(".deb")]
    subprocess.run(["dpkg-deb", "-x", archive, "."], cwd=scratch, check=True)
    with open(os.path.join(scratch, DATA), "rb") as file:
        return file.read()


def checked(text, checksum):
    return hashlib.sha256(text).hexdigest() == checksum


def fetch(names, folder):
    folder = os.path.join(folder, "texts")
    os.makedirs(folder, exist_ok=True)
    paths = {name: os.path.join(folder, name + ".txt") for name in names}
    missing = []
    for name, path in paths.items():
        if not os.path.isfile(path) or not checked(open(path, "rb").read(), TEXTS[name][1]):
            missing.append(name)
    if missing:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            found = dict(novels(unpacked(scratch)))
            for name in missing:
                title, checksum = TEXTS[name]
                text = found.get(title)
                if text is None:
                    raise Failure(f"{PACKAGE} has no text \"{title}\"; it has {', '.join(found)}")
                if not checked(text.encode(), checksum):
                    raise Failure(f"{name}: expected sha256 {checksum}, found {hashlib.sha256(text.encode()).hexdigest()}")
                part = os.path.join(scratch, "part")
                with open(part, "w", encoding="utf-8", newline="\n") as file:
                    file.write(text)
                os.replace(part, paths[name])
    return list(paths.values())


def main():
    arguments = sys.argv[1:]
    if arguments == ["--list"]:
        print("\n".join(TEXTS))
        return
    if "--dir" not in arguments[:-1]:
        sys.exit(__doc__.strip())
    at = arguments.index("--dir")
    names = arguments[:at] + arguments[at + 2 :]
    unknown = [n for n in names if n not in TEXTS]
    if unknown or not names:
        sys.exit(f"error: unknown text {' '.join(unknown)}; choose from {', '.join(TEXTS)}" if unknown else __doc__.strip())
    try:
        print("\n".join(fetch(names, os.path.abspath(arguments[at + 1]))))
    except (Failure, OSError, subprocess.CalledProcessError, zlib.error, struct.error) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
