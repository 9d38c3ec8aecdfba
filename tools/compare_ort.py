#!/usr/bin/env python3
"""Compares results and times of tlite with ONNX Runtime, on the same models and inputs.

    tools/compare_ort.py [--backend cpu|reference|opencl|wgpu]... [--device TEXT] [--repeat N] [--rounds N]
                         [--threads N] [--float f32|f16] [--json FILE]
                         [--round-activations] [--picture FILE] [MODEL[:SIZES]]...

MODEL is a name of tools/fetch_model.py, which is downloaded; a name of tools/export_clip.py that
was exported to the cache; a folder with model.onnx; or an ONNX file. SIZES gives values to symbols,
for example minilm:batch_size=1,sequence_length=128. Without MODEL, all models of the list below
run.

Prints a line for each model and backend: the largest difference relative to the range of ONNX
Runtime's output, both median times and their ratio. Both engines run in turn, --repeat times in
each of --rounds. The exit code is 1 if a difference exceeds its bound.

--float f16           store activations in 16 bits on devices; the bound is then 0.02
--threads N           threads for ONNX Runtime, and for tlite with cpu and reference (default: the
                      number of cores)
--round-activations   show what 16-bit activations cost, without tlite: compare ONNX Runtime,
                      unoptimized in f32, with itself while the result of every operator is rounded
                      to f16
--picture FILE        with --round-activations, use an image normalised for ImageNet as the model's
                      only float input of 3 planes

Needs onnx, onnxruntime 1.31.1 and numpy. The environment variable TLITE names the command; by
default it is that of the release build.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.environ.get("TLITE_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "transformer-lite")

BACKENDS = ["cpu", "reference", "opencl", "wgpu"]
# Bound on the difference relative to the range of the output, by storage type of activations.
BOUNDS = {"f32": 1e-3, "f16": 2e-2}
# Default sizes of symbols, and the bound on the difference if it is not that of f32.
MODELS = {
    "minilm": ("batch_size=1,sequence_length=128", None),
    "mobilenetv2": ("", None),
    "ppocr-det": ("p2o_DynamicDimension_0=1,p2o_DynamicDimension_1=320,p2o_DynamicDimension_2=320", None),
    "ppocr-rec": ("p2o_DynamicDimension_0=1,x_2=48,p2o_DynamicDimension_1=320", None),
    "ppocr-cls": ("x_0=1,x_1=3,x_2=48,x_3=192,p2o_DynamicDimension_0=1", None),
    "yolo11n": ("batch=1,height=320,width=320", None),
    # Its matmuls quantize their operands at run time, so a difference in the last bit can become a
    # whole quantization step. ONNX Runtime's own optimization levels differ by 0.025.
    "minimind2-small": ("batch_size=1,sequence_length=9,past_sequence_length=0", 0.05),
    "silero-vad": ("input_0=1,input_1=576,state_1=1,sr=16000", None),
    # Models in int8. ONNX Runtime computes some conversions and sums of smart-turn in floats.
    "sscd": ("batch=1,height=224,width=224", None),
    "smart-turn": ("s6=1", 0.01),
    # Models in 16 bits.
    "sscd-distilled": ("batch=1,height=224,width=224", BOUNDS["f16"]),
    "clip-image": ("batch=1", None),
    "clip-text": ("batch=1,sequence=77", None),
    "clip-image-f16": ("batch=1", BOUNDS["f16"]),
    "clip-text-f16": ("batch=1,sequence=77", BOUNDS["f16"]),
}
# Exported by tools/export_clip.py; these cannot be downloaded.
EXPORTED = [name for name in MODELS if name.startswith("clip-")]


def exported(name):
    """False for a model that must be exported first and was not."""
    return name not in EXPORTED or os.path.isfile(os.path.join(CACHE, name, "model.onnx"))


def say(text):
    print(text, file=sys.stderr, flush=True)


def model_file(name):
    """The ONNX file of a model name, folder or file."""
    if name.endswith(".onnx"):
        return name
    if os.path.isdir(name):
        return os.path.join(name, "model.onnx")
    if name not in MODELS:
        sys.exit(f"error: {name}: expected an ONNX file, a folder or a model name of tools/fetch_model.py")
    path = os.path.join(CACHE, name, "model.onnx")
    if not os.path.isfile(path):
        if name in EXPORTED:
            half = " --fp16" if name.endswith("-f16") else ""
            sys.exit(f"error: {path} not found; create it with tools/export_clip.py --dir {CACHE}{half}")
        fetch = os.path.join(ROOT, "tools", "fetch_model.py")
        subprocess.run([sys.executable, fetch, name, "--dir", CACHE], check=True, stdout=subprocess.DEVNULL)
    return path


def sizes_of(text):
    pairs = (p.split("=", 1) for p in text.split(",") if p)
    try:
        return {k: int(v) for k, v in pairs}
    except ValueError:
        sys.exit(f"error: {text}: expected NAME=N,...")


def inputs_of(session, sizes):
    """An array for each input of a session: seeded random floats, ones for masks, consecutive
    positions, and small integers."""
    import numpy as np

    types = {
        "tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(int32)": np.int32,
        "tensor(uint8)": np.uint8, "tensor(bool)": np.bool_,
    }
    random = np.random.default_rng(7)
    out = {}
    for i in session.get_inputs():
        shape = []
        for axis, d in enumerate(i.shape):
            if isinstance(d, str):
                # tlite's names of symbols; a size without a name is called after the input and
                # axis.
                d = re.sub(r"[^A-Za-z0-9_+ ]", "_", d) if re.search(r"\w", d) else f"{i.name}_{axis}"
                if d in sizes:
                    d = sizes[d]
                else:
                    # A sum, such as the length of a mask.
                    parts = [p.strip() for p in d.split("+")]
                    if not all(p in sizes for p in parts):
                        sys.exit(f"error: input \"{i.name}\" has the unknown size {d}; set it with MODEL:{d}=N")
                    d = sum(sizes[p] for p in parts)
            shape.append(sizes.get(f"{i.name}_{axis}", 1) if d is None else d)
        kind = types.get(i.type)
        if kind is None:
            sys.exit(f"error: input \"{i.name}\" has the unsupported type {i.type}")
        count = int(np.prod(shape))
        if kind in (np.float32, np.float16):
            value = random.uniform(-1, 1, shape)
        elif "mask" in i.name:
            value = np.ones(shape)
        elif shape == [] and i.name in sizes:
            value = np.array(sizes[i.name])
        elif "position" in i.name:
            value = np.arange(count).reshape(shape)
        elif "type" in i.name:
            value = np.zeros(shape)
        else:
            value = ((np.arange(count) * 89 + 5) % 997).reshape(shape)
        out[i.name] = value.astype(kind)
    return out


def picture_of(file, shape):
    """An image as planes of this size, normalised for ImageNet. Needs pillow."""
    import numpy as np
    from PIL import Image

    with Image.open(file) as picture:
        pixels = np.asarray(picture.convert("RGB").resize((shape[3], shape[2]), Image.BILINEAR), dtype=np.float32) / 255
    planes = (pixels - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    return planes.transpose(2, 0, 1)[None].astype(np.float32)


def rounded(path):
    """The model with each float result of its nodes rounded to f16, except its outputs."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    graph = model.graph
    floats = {v.name for v in graph.value_info if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    nodes, renamed, count = [], {}, 0
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
        nodes.append(node)
        for name in node.output if node.op_type != "Constant" else []:
            if name in floats:
                half, back = f"{name}/half", f"{name}/rounded"
                nodes.append(helper.make_node("Cast", [name], [half], to=TensorProto.FLOAT16))
                nodes.append(helper.make_node("Cast", [half], [back], to=TensorProto.FLOAT))
                renamed[name] = back
                count += 1
    del graph.node[:]
    graph.node.extend(nodes)
    return model, count


def round_activations(name, path, sizes, picture):
    """Prints the differences in ONNX Runtime between plain and rounded activations."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    model, count = rounded(path)
    sessions = [ort.InferenceSession(m, options, providers=["CPUExecutionProvider"])
                for m in (path, model.SerializeToString())]
    given = inputs_of(sessions[0], sizes)
    if picture:
        planes = [n for n, v in given.items() if v.dtype == np.float32 and v.ndim == 4 and v.shape[:2] == (1, 3)]
        if len(planes) != 1:
            sys.exit(f"error: {name}: --picture needs exactly one float input of 3 planes, found {len(planes)}")
        given[planes[0]] = picture_of(picture, given[planes[0]].shape)
    for output, plain, half in zip(sessions[0].get_outputs(), *(s.run(None, given) for s in sessions)):
        if plain.dtype == np.float32 and plain.size:
            if not (np.isfinite(plain).all() and np.isfinite(half).all()):
                print(f"{name:<16} {output.name:<24} {count} results rounded: exceeds the range of f16", flush=True)
                continue
            apart = np.abs(plain - half) / ((plain.max() - plain.min()) or max(abs(plain.max()), 1.0))
            print(f"{name:<16} {output.name:<24} {count} results rounded: largest difference {apart.max():.1e}, "
                  f"99.9 % within {np.quantile(apart, 0.999):.1e}, mean {apart.mean():.1e}", flush=True)


def median_of(runs):
    return statistics.median(runs), min(runs), max(runs)


def with_ort(path, sizes, threads, repeat, work):
    """Writes inputs and outputs to `work`. Returns arguments for tlite, and a function that returns
    the milliseconds of `repeat` runs."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = inputs_of(session, sizes)
    arguments = []
    for i, (name, value) in enumerate(given.items()):
        file = os.path.join(work, f"input_{i}.npy")
        np.save(file, value)
        arguments += ["--input", f"{name}={file}"]
    names = [o.name for o in session.get_outputs()]
    outputs = session.run(names, given)
    for name, value in zip(names, outputs):
        np.save(os.path.join(work, name.replace("/", "_").replace(":", "_") + ".npy"), value)

    def timed():
        times = []
        for _ in range(repeat):
            start = time.perf_counter()
            session.run(names, given)
            times.append((time.perf_counter() - start) * 1e3)
        return times

    return arguments, timed


def in_turn(command, timed, rounds):
    """Times of ONNX Runtime and of tlite, and the last report of tlite, or its error as a text."""
    theirs, ours = [], []
    for _ in range(rounds):
        theirs += timed()
        done = subprocess.run(command, capture_output=True, text=True)
        try:
            report = json.loads(done.stdout)
        except ValueError:
            return theirs, ours, done.stderr.strip()
        ours += report["runs_ms"] or [report["first_ms"]]
    return theirs, ours, report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    parser.add_argument("--device")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--float", choices=list(BOUNDS), default="f32")
    parser.add_argument("--json")
    parser.add_argument("--round-activations", action="store_true")
    parser.add_argument("--picture")
    parser.add_argument("model", nargs="*")
    args = parser.parse_args()
    if min(args.repeat, args.rounds) < 1:
        parser.error("--repeat and --rounds must be at least 1")
    if args.picture and not args.round_activations:
        parser.error("--picture needs --round-activations")
    models = args.model or [name for name in MODELS if exported(name)]
    for name in MODELS:
        if not args.model and name not in models:
            say(f"skipping {name}: export it with tools/export_clip.py first")
    try:
        import numpy  # noqa: F401
        import onnxruntime
    except ImportError as e:
        sys.exit(f"error: {e}; run pip install onnxruntime==1.31.1 numpy")
    tlite = os.environ.get("TLITE") or os.path.join(
        os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release", "tlite")
    say(f"ONNX Runtime {onnxruntime.__version__} with {args.threads} threads")
    rows, failed = [], False
    for model in models:
        name, _, given = model.partition(":")
        usual, bound = MODELS.get(name, ("", None))
        path = model_file(name)
        sizes = sizes_of(given or usual)
        if args.round_activations:
            round_activations(name, path, sizes, args.picture)
            continue
        with tempfile.TemporaryDirectory() as work:
            arguments, timed = with_ort(path, sizes, args.threads, args.repeat, work)
            for backend in args.backend or BACKENDS:
                command = [tlite, "run", path, "--json", "--backend", backend, "--compare", work,
                           "--repeat", str(args.repeat + 1), *arguments]
                tolerance = max(bound or 0.0, BOUNDS[args.float if backend != "reference" else "f32"])
                command += ["--float", args.float, "--tolerance", str(tolerance)]
                if backend in ("cpu", "reference"):
                    command += ["--threads", str(args.threads)]
                if args.device and backend != "reference":
                    command += ["--device", args.device]
                theirs, ours, report = in_turn(command, timed, args.rounds)
                if isinstance(report, str):
                    failed = True
                    rows.append({"model": name, "backend": backend, "error": report})
                    print(f"{name:<16} {backend:<7} FAILED: {report}", flush=True)
                    continue
                theirs, ours = median_of(theirs), median_of(ours)
                worst = max((c["relative"] if c["error"] is None else float("inf") for c in report["compare"]), default=0.0)
                passed = all(c["passed"] for c in report["compare"])
                failed |= not passed
                rows.append({
                    "model": name, "backend": backend, "device": report["device"], "sizes": sizes, "relative": worst,
                    "float": args.float, "tolerance": tolerance, "passed": passed, "onnxruntime_ms": theirs, "tlite_ms": ours,
                    "ratio": ours[0] / theirs[0], "dispatches": report["dispatches"], "host_steps": len(report["host"]),
                })
                print(f"{name:<16} {backend:<7} difference {worst:.1e} {'ok' if passed else 'DIFFERS':<8}"
                      f"ONNX Runtime {theirs[0]:8.2f} ms   tlite {ours[0]:8.2f} ms   ratio {ours[0] / theirs[0]:6.2f}   "
                      f"{report['dispatches']} dispatches, {len(report['host'])} on the host", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
