#!/usr/bin/env python3
"""Measures how closely an int8 classifier matches the float model that it was quantized from.

usage: int8_accuracy.py FLOAT.onnx INT8.onnx PICTURES [--crops N] [--seed N] [--engine N]
                        [--engine-args TEXT] [--json FILE]

Runs both models in ONNX Runtime on the pictures of a folder and on N random crops of them (default:
1000), each with 0.5 to 1.0 of the area. Prints

* the signal-to-quantization-noise ratio (SQNR) of the logits in dB: the median and the 10th
  percentile;
* top-1 agreement: how often the largest logit has the same index;
* top-1 agreement on clear inputs, where the float model's largest logit exceeds the second by more
  than 1.

The int8 model is loaded at every optimization level of ONNX Runtime. With --engine N, the first N
inputs also run in tlite, and its int8 logits are compared with those of ONNX Runtime without
optimizations. The exit code is 1 unless the median is at least 20 dB, agreement is at least 90 %,
and all clear inputs agree.

Pictures are stretched to the input size and normalized with the mean and standard deviation of
ImageNet. Needs numpy, onnxruntime and Pillow. The environment variable TLITE names the tlite binary;
the default is the release build.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime as ort
from crop_pictures import cropped, opened, paths
from PIL import Image

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")


def tensor(picture, size):
    scaled = np.asarray(picture.resize((size[1], size[0]), Image.BILINEAR), np.float32) / 255
    return ((scaled - MEAN) / DEVIATION).transpose(2, 0, 1)[None].copy()


def inputs(folder, crops, seed, size):
    """The pictures of a folder, then random crops of them, as input tensors."""
    pictures = [opened(p) for p in paths(folder)]
    for picture in pictures:
        yield tensor(picture, size)
    draw = random.Random(seed)
    for i in range(crops):
        yield tensor(cropped(pictures[i % len(pictures)], draw), size)


def session(path, level="ENABLE_ALL"):
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, "ORT_" + level)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def sqnr(signal, found):
    noise = float(np.sum((signal - found) ** 2.0))
    return 10 * np.log10(float(np.sum(signal**2.0)) / noise) if noise else 200.0


def engine(model, x, name, arguments):
    """The output of tlite for an input."""
    command = os.environ.get("TLITE") or os.path.join(ROOT, "target", "release", "tlite")
    with tempfile.TemporaryDirectory() as folder:
        np.save(os.path.join(folder, "x.npy"), x)
        words = [command, "run", model, "-i", f"{name}={folder}/x.npy", "-o", folder + "/out", "--quiet", *arguments]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        (file,) = os.listdir(folder + "/out")
        return np.load(os.path.join(folder, "out", file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("float")
    parser.add_argument("int8")
    parser.add_argument("pictures")
    parser.add_argument("--crops", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", type=int, default=0)
    parser.add_argument("--engine-args", default="")
    parser.add_argument("--json")
    options = parser.parse_args()
    sessions = {level: session(options.int8, level) for level in LEVELS}
    original, fast, plain = session(options.float), sessions["ENABLE_ALL"], sessions["DISABLE_ALL"]
    given = original.get_inputs()[0]
    size = [n if isinstance(n, int) else 224 for n in given.shape[2:]]
    ratios, same, clear, levels, apart = [], [], [], [], []
    for i, x in enumerate(inputs(options.pictures, options.crops, options.seed, size)):
        wanted = original.run(None, {given.name: x})[0].ravel()
        found = plain.run(None, {given.name: x})[0].ravel()
        ratios.append(sqnr(wanted, found))
        same.append(wanted.argmax() == found.argmax())
        first, second = np.sort(wanted)[: -3 : -1]
        if first - second > 1:
            clear.append(same[-1])
        if i % 10 == 0:
            levels.append(found.argmax() == fast.run(None, {given.name: x})[0].argmax())
        if i < options.engine:
            ours = engine(options.int8, x, given.name, options.engine_args.split()).ravel()
            apart.append((sqnr(found, ours), ours.argmax() == found.argmax(), sqnr(wanted, ours)))
    result = {
        "inputs": len(ratios),
        "median_sqnr": float(np.median(ratios)),
        "lowest_decile_sqnr": float(np.quantile(ratios, 0.1)),
        "same_top1": float(np.mean(same)),
        "clear": len(clear),
        "same_top1_if_clear": float(np.mean(clear)),
        "same_top1_optimized": float(np.mean(levels)),
    }
    if apart:
        result["engine_inputs"] = len(apart)
        result["engine_to_ort_median_snr"] = float(np.median([a[0] for a in apart]))
        result["engine_same_top1_as_ort"] = float(np.mean([a[1] for a in apart]))
        result["engine_median_sqnr"] = float(np.median([a[2] for a in apart]))
    for key, value in result.items():
        print(f"{key}: {value:.4g}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)
    missed = result["median_sqnr"] < 20 or result["same_top1"] < 0.9 or not all(clear)
    sys.exit(missed)


if __name__ == "__main__":
    main()
