"""Python environments in the cache folder, for engines whose packages exclude each other."""

import importlib.util
import os
import shutil
import subprocess
import sys

from fetch_model import Failure, say

ONNX = ("onnx==1.23.0", "onnxruntime==1.31.1", "ai-edge-litert==2.3.0")
# The last version whose reference kernels all round twice, as the paper of gemmlowp does. It is
# built for NumPy 1 and for Python 3.11 and earlier.
TFLITE_REFERENCE = ("tflite-runtime==2.14.0", "numpy==1.26.4")


def cache():
    return os.environ.get("TLITE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "transformer-lite")


def environment(name, packages, torch=False, alone=()):
    """The Python of an environment in the cache folder, which is created on first use. With `torch`,
    it has PyTorch: Debian's python3-torch if that is installed. The packages `alone` are installed
    without those that they ask for."""
    folder = os.path.join(cache(), name)
    python, stamp = os.path.join(folder, "bin", "python"), os.path.join(folder, "stamp")
    wanted = " ".join((*packages, *alone))
    try:
        with open(stamp, encoding="utf-8") as file:
            if file.read() == wanted:
                return python
    except FileNotFoundError:
        pass
    say(f"Creating a Python environment in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(cache(), exist_ok=True)
    make, system = [sys.executable, "-m", "venv"], "/usr/bin/python3"
    if torch and os.path.exists(system) and subprocess.run([system, "-c", "import torch"], capture_output=True).returncode == 0:
        make = [system, "-m", "venv", "--system-site-packages"]
    elif torch:
        packages = ("torch>=1.13,<2.6", *packages)
    pip = [python, "-m", "pip", "-q", "install"]
    for command in ([*make, folder], [*pip, *packages], *([[*pip, "--no-deps", *alone]] if alone else [])):
        if subprocess.run(command, stdout=sys.stderr).returncode:
            raise Failure(f"{' '.join(command)} failed; it needs Debian's python3-venv, or its like, and Python 3.11 or earlier")
    with open(stamp + ".part", "w", encoding="utf-8") as file:
        file.write(wanted)
    os.replace(stamp + ".part", stamp)
    return python


def continue_with(name, packages, torch=False, alone=()):
    """Continues this program in an environment, unless it runs there already."""
    python = environment(name, packages, torch, alone)
    if os.path.realpath(sys.prefix) != os.path.realpath(os.path.dirname(os.path.dirname(python))):
        os.execv(python, [python, os.path.abspath(sys.argv[0]), *sys.argv[1:]])


def need(usage, *modules):
    """Continues a program in the environment with onnx, onnxruntime and ai-edge-litert if any of
    these modules is missing. Its usage is shown without them."""
    if all(importlib.util.find_spec(m) for m in modules):
        return
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(usage.strip())
        sys.exit(0)
    try:
        continue_with("onnx-tools", ONNX)
    except (Failure, OSError) as e:
        sys.exit(f"error: {e}")
    sys.exit(f"error: {', '.join(modules)}: not all are there; remove {sys.prefix} and try again")
