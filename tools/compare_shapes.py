#!/usr/bin/env python3
"""Compares the shapes that tlite infers for a model with those that ONNX Runtime computes.

usage: compare_shapes.py MODEL [--bind NAME=SIZE,... ]... [--ours COMMAND]

MODEL is a file or a folder with model.onnx. Every intermediate value becomes an output, and ONNX
Runtime runs the unoptimised model for each binding of its symbols. Shape and element type of each
value are compared with the inferred ones at that binding. Without --bind, three bindings are
chosen: small sizes, and multiples of 32 for images.

COMMAND, followed by the path, prints the inferred shapes as JSON: {"inputs": [..], "values":
[{"name", "dtype", "shape": ["batch_size", "3*N"]}]}. Needs onnx, onnxruntime and numpy.
"""

import argparse
import json
import math
import os
import re
import shlex
import subprocess
import sys
from fractions import Fraction

OURS = "cargo run --quiet --release --example shapes --"
DTYPES = {
    "float32": "f32",
    "float16": "f16",
    "int64": "i64",
    "int32": "i32",
    "uint32": "u32",
    "uint8": "u8",
    "int8": "i8",
    "bool": "bool",
}
# Sizes of the n-th symbol in the three default bindings.
SMALL = [(1, 5, 3, 2), (2, 7, 4, 5), (1, 1, 6, 3)]
IMAGE = [(64, 96), (96, 64), (128, 160)]
# ONNX Runtime needs the folder of external data if the model comes from memory.
FOLDER_KEY = "session.model_external_initializers_file_folder_path"


def fail(text):
    sys.exit(f"error: {text}")


FUNCTIONS = {"min": min, "max": max, "floor": math.floor, "ceil": math.ceil, "mod": lambda a, b: a % b}


def symbols(expression):
    return [w for w in re.findall(r"[A-Za-z_]\w*", expression) if w not in FUNCTIONS]


def evaluate(expression, binding):
    """The value of a shape expression; None if it contains a symbol that depends on data."""
    if not re.fullmatch(r"[\w\s+\-*/(),%]+", expression):
        fail(f"shape expression {expression!r} contains invalid characters")
    if any(s not in binding for s in symbols(expression)):
        return None
    # Quotients are exact; floor and ceil round them.
    names = {name: Fraction(size) for name, size in binding.items()}
    text = re.sub(r"\b(\d+)\b", r"Fraction(\1)", expression)
    value = eval(text, {"__builtins__": {}, "Fraction": Fraction, **FUNCTIONS}, names)  # checked above
    if value != int(value):
        fail(f"{expression} is {value} at {binding}")
    return int(value)


def derived(command, model):
    done = subprocess.run([*shlex.split(command), model], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        fail(f"`{command} {model}` ended with exit code {done.returncode}")
    return json.loads(done.stdout)


def parse_binding(text):
    binding = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not size.strip().isdigit():
            fail(f"--bind {text!r}: expected NAME=SIZE")
        binding[name.strip()] = int(size)
    return binding


def made_up(inputs):
    """Three default bindings of the symbols of the inputs."""
    names, images = [], []
    for i in inputs:
        for axis, size in enumerate(i["shape"]):
            wide = len(i["shape"]) == 4 and axis >= 2 and i["dtype"].startswith("f") and "past" not in size
            for name in symbols(size):
                if name not in names + images:
                    (images if wide else names).append(name)
    out = []
    for small, image in zip(SMALL, IMAGE):
        binding = {name: small[i % len(small)] for i, name in enumerate(names)}
        binding.update({name: image[i % len(image)] for i, name in enumerate(images)})
        out.append(binding)
    return out


def runner(path, onnx, onnxruntime):
    """A session of the model with all intermediate values as outputs, and their names."""
    model = onnx.load(path, load_external_data=False)
    known = {o.name for o in model.graph.output}
    for node in model.graph.node:
        if node.op_type == "Constant":
            continue
        for name in node.output:
            if name and name not in known:
                known.add(name)
                model.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.add_session_config_entry(FOLDER_KEY, os.path.dirname(os.path.abspath(path)))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session, [o.name for o in session.get_outputs()]


def feed(inputs, binding, numpy):
    """Input values: ones for integers, which are valid indices everywhere; seeded noise for
    floats."""
    noise = numpy.random.default_rng(1)
    names = {ours: theirs for theirs, ours in DTYPES.items()}
    out = {}
    for i in inputs:
        shape = [evaluate(size, binding) for size in i["shape"]]
        if None in shape:
            fail(f"input {i['name']} of shape {i['shape']} has symbols that the binding {binding} lacks")
        dtype = numpy.dtype(names[i["dtype"]])
        if i["dtype"].startswith("f"):
            out[i["name"]] = noise.standard_normal(shape).astype(dtype)
        else:
            out[i["name"]] = numpy.ones(shape, dtype)
    return out


def compare(ours, names, results, binding):
    """Prints differences; returns the numbers of values that agree, that differ, and that are
    unknown."""
    found = dict(zip(names, results))
    agree = differ = open_sizes = 0
    for value in ours["values"]:
        result = found.get(value["name"])
        if result is None:
            continue
        shape = [evaluate(size, binding) for size in value["shape"]]
        theirs = list(result.shape)
        dtype = DTYPES.get(str(result.dtype), str(result.dtype))
        same_rank = len(shape) == len(theirs)
        told = [(a, b) for a, b in zip(shape, theirs) if a is not None]
        if not same_rank or any(a != b for a, b in told) or dtype != value["dtype"]:
            differ += 1
            print(f"  {value['name']}: inferred {value['dtype']}{value['shape']} = {shape}, ONNX Runtime has {dtype}{theirs}")
        elif None in shape:
            open_sizes += 1
        else:
            agree += 1
    return agree, differ, open_sizes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--bind", action="append", type=parse_binding, metavar="NAME=SIZE,...")
    parser.add_argument("--ours", default=OURS, metavar="COMMAND")
    options = parser.parse_args()
    try:
        import numpy
        import onnx
        import onnxruntime
    except ImportError as e:
        fail(f"the Python package {e.name} is needed; install it with: {sys.executable} -m pip install onnx onnxruntime numpy")
    path = options.model
    if os.path.isdir(path):
        path = os.path.join(path, "model.onnx")
    if not os.path.isfile(path):
        fail(f"{path} not found")
    ours = derived(options.ours, path)
    session, names = runner(path, onnx, onnxruntime)
    wrong = False
    for binding in options.bind or made_up(ours["inputs"]):
        results = session.run(names, feed(ours["inputs"], binding, numpy))
        agree, differ, open_sizes = compare(ours, names, results, binding)
        at = ", ".join(f"{name}={size}" for name, size in binding.items()) or "no symbols"
        text = f"{at}: {agree} values agree, {differ} differ"
        if open_sizes:
            text += f", {open_sizes} have sizes that depend on data"
        print(text)
        wrong |= differ > 0 or agree == 0
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
