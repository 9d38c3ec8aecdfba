#!/usr/bin/env python3
"""Runs TensorFlow Lite models for integer_vectors.py and compare_int8.py, in its own environment.

usage: tflite_peer.py outputs FOLDER
       tflite_peer.py time MODEL --threads N

outputs: runs each NAME.tflite of FOLDER on the inputs in NAME.npz (named 0, 1, ..) and writes the
outputs to NAME.out.npz, or the error to NAME.out.txt. The package tflite-runtime runs its reference
kernels, and ai-edge-litert its default kernels.

time: prints the name of the engine. Then, for each line N on standard input, runs the model N times
on a random input and prints a JSON array of times in milliseconds.

Needs numpy, and tflite-runtime or ai-edge-litert.
"""

import json
import os
import sys
import time
from importlib import metadata

import numpy as np


def interpreter(path, threads=1):
    try:
        from tflite_runtime import interpreter as runtime

        kind = {"experimental_op_resolver_type": runtime.OpResolverType.BUILTIN_REF}
    except ImportError:
        from ai_edge_litert import interpreter as runtime

        kind = {}
    made = runtime.Interpreter(model_path=path, num_threads=threads, **kind)
    made.allocate_tensors()
    return made


def name():
    for package, shown in (("tflite-runtime", "TensorFlow Lite"), ("ai-edge-litert", "LiteRT")):
        try:
            return f"{shown} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            pass


def outputs(folder):
    for file in sorted(os.listdir(folder)):
        base, end = os.path.splitext(os.path.join(folder, file))
        if end != ".tflite":
            continue
        try:
            model = interpreter(base + end)
            with np.load(base + ".npz") as given:
                for i, place in enumerate(model.get_input_details()):
                    model.set_tensor(place["index"], given[str(i)])
            model.invoke()
            made = {str(i): model.get_tensor(d["index"]) for i, d in enumerate(model.get_output_details())}
            np.savez(base + ".out.npz", **made)
        except (RuntimeError, ValueError) as e:
            with open(base + ".out.txt", "w", encoding="utf-8") as out:
                out.write(str(e).strip())


def timed(path, threads):
    model = interpreter(path, threads)
    random = np.random.default_rng(7)
    for place in model.get_input_details():
        if place["dtype"] == np.float32:
            value = random.uniform(-1, 1, place["shape"]).astype(np.float32)
        else:
            value = random.integers(-128, 128, place["shape"]).astype(place["dtype"])
        model.set_tensor(place["index"], value)
    print(name(), flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            model.invoke()
            times.append((time.perf_counter() - start) * 1e3)
        print(json.dumps(times), flush=True)


def main():
    arguments = sys.argv[1:]
    if len(arguments) == 2 and arguments[0] == "outputs":
        outputs(arguments[1])
    elif len(arguments) == 4 and arguments[0] == "time" and arguments[2] == "--threads" and arguments[3].isdigit():
        timed(arguments[1], int(arguments[3]))
    else:
        sys.exit(__doc__.strip())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
