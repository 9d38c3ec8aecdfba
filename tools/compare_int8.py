#!/usr/bin/env python3
"""Compares the speed of tlite, ONNX Runtime and LiteRT on quantized convolutional networks.

usage: compare_int8.py [--width W]... [--resolution N]... [--precision int8|float]...
                       [--threads N] [--repeat N] [--rounds N] [--per-tensor] [--uint8]
                       [--backend cpu|reference|opencl|wgpu] [--device TEXT] [--json FILE]
                       [--markdown FILE] [MODEL.onnx]...

Without MODEL, the networks are MobileNet v1 with random weights (tools/made_cnn.py). Their widths
are 0.25, 0.5, 0.75 and 1.0, and their resolutions 128, 160, 192 and 224, unless --width and
--resolution select others. Each runs in int8 and in float, unless --precision selects one. A MODEL
runs as it is. It must have one input, and tools/tflite_of.py must support it.

All engines get the same model, number of threads and cores; LiteRT gets another random input. The
engines take turns: each runs --repeat times in each of --rounds. ONNX Runtime runs the QDQ model
with all its optimizations, and LiteRT runs its default kernels (XNNPACK).

A Markdown table is printed, with median times in milliseconds and their ratios. The "gain" columns
show how many times faster int8 is than float in the same engine. "off" is the largest difference
between the first outputs of tlite and ONNX Runtime, relative to their range; with random weights,
int8 networks amplify a difference of one step. --json also reports the fastest and slowest runs. The
exit code is 1 if an engine failed.

--threads N    threads of each engine (default: 1); with --backend cpu and reference, the process is
               limited to as many cores
--repeat N     runs per round (default: 20)
--rounds N     rounds (default: 5)
--per-tensor   one scale per weight tensor instead of one per output channel
--uint8        uint8 activations for tlite and ONNX Runtime; LiteRT runs in int8

An environment with the packages is created in the cache folder. The environment variable TLITE names
the tlite binary; the default is the release build.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import environments
from environments import Failure, say

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WIDTHS, RESOLUTIONS, PRECISIONS = (0.25, 0.5, 0.75, 1.0), (128, 160, 192, 224), ("int8", "float")
ENGINES = ("tlite", "onnxruntime", "litert")


def command():
    found = os.environ.get("TLITE") or os.path.join(
        os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release", "tlite")
    if not os.path.isfile(found):
        raise Failure(f"{found} not found; build it with cargo build --release, or set TLITE")
    return found


class Tlite:
    """The tlite command, which is started once per round."""

    def __init__(self, path, work, args):
        self.output = os.path.join(work, "tlite")
        self.command = [command(), "run", path, "--json", "--backend", args.backend, "--input", f"x={work}/x.npy",
                        "-o", self.output, "--repeat", str(args.repeat + 1)]
        if args.backend == "cpu":
            self.command += ["--threads", str(args.threads)]
        if args.device:
            self.command += ["--device", args.device]
        self.device = None

    def run(self):
        done = subprocess.run(self.command, capture_output=True, text=True)
        try:
            report = json.loads(done.stdout)
        except ValueError:
            raise Failure(f"tlite: {done.stderr.strip()}") from None
        self.device = f"{report['backend']}, {report['device']}"
        return report["runs_ms"]

    def result(self, name):
        import numpy as np

        return np.load(os.path.join(self.output, name.replace("/", "_").replace(":", "_") + ".npy"))

    def close(self):
        pass


class OnnxRuntime:
    def __init__(self, path, work, args):
        import numpy as np
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = args.threads, 3
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.given = {"x": np.load(os.path.join(work, "x.npy"))}
        self.repeat, self.device = args.repeat, f"ONNX Runtime {ort.__version__}"
        self.output = self.session.get_outputs()[0].name
        self.last = self.session.run([self.output], self.given)[0]

    def run(self):
        times = []
        # For every engine, the first run of a round is not counted.
        for _ in range(self.repeat + 1):
            start = time.perf_counter()
            self.session.run(None, self.given)
            times.append((time.perf_counter() - start) * 1e3)
        return times[1:]

    def close(self):
        self.session = None


class LiteRt:
    """A process that runs the model as many times as each line on its standard input says."""

    def __init__(self, path, work, args):
        import onnx
        from made_cnn import folded
        from tflite_of import convert

        file = os.path.join(work, "model.tflite")
        with open(file, "wb") as out:
            out.write(convert(folded(onnx.load(path))).data)
        peer = os.path.join(ROOT, "tools", "tflite_peer.py")
        with open(os.path.join(work, "litert.txt"), "wb") as log:
            self.process = subprocess.Popen([sys.executable, peer, "time", file, "--threads", str(args.threads)],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.log, self.repeat = log.name, args.repeat
        self.device = self.line()

    def line(self):
        text = self.process.stdout.readline().strip()
        if not text:
            self.close()
            with open(self.log, encoding="utf-8", errors="replace") as log:
                raise Failure(f"LiteRT: {(log.read().strip() or 'it ended').splitlines()[-1]}")
        return text

    def run(self):
        self.process.stdin.write(f"{self.repeat + 1}\n")
        self.process.stdin.flush()
        return json.loads(self.line())[1:]

    def close(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def off(found, wanted):
    """The largest difference, relative to the range of the expected values."""
    import numpy as np

    spread = float(wanted.max()) - float(wanted.min()) or 1.0
    return float(np.abs(found.astype(np.float64) - wanted).max()) / spread


def measured(path, given, args):
    """The times or the error of each engine for a model and its input."""
    import numpy as np

    row, engines = {"ms": {}, "devices": {}, "errors": {}, "off": None}, {}
    with tempfile.TemporaryDirectory() as work:
        np.save(os.path.join(work, "x.npy"), given)
        try:
            for name, kind in zip(ENGINES, (Tlite, OnnxRuntime, LiteRt)):
                try:
                    engines[name] = kind(path, work, args)
                except (Failure, OSError, RuntimeError) as e:
                    row["errors"][name] = str(e)
            times = {name: [] for name in engines}
            for turn in range(args.rounds):
                # Each round starts with another engine.
                names = list(engines)
                for name in names[turn % len(names):] + names[: turn % len(names)]:
                    try:
                        times[name] += engines[name].run()
                    except (Failure, OSError, RuntimeError) as e:
                        row["errors"][name] = str(e)
                        engines.pop(name).close()
            for name, engine in engines.items():
                values = times[name]
                row["ms"][name] = {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}
                row["devices"][name] = engine.device
            if "tlite" in engines and "onnxruntime" in engines:
                theirs = engines["onnxruntime"]
                row["off"] = off(engines["tlite"].result(theirs.output), theirs.last)
        finally:
            for engine in engines.values():
                engine.close()
    return row


def networks(args):
    """For each network: its name, precision, ONNX model and input."""
    import numpy as np
    from made_cnn import CALIBRATION_PICTURES, folded, mobilenet_v1, pictures, quantized

    for width in args.width or WIDTHS:
        for resolution in args.resolution or RESOLUTIONS:
            floats = folded(mobilenet_v1(width, resolution))
            shape = (3, resolution, resolution)
            for precision in args.precision or PRECISIONS:
                model = floats
                if precision == "int8":
                    model = quantized(floats, pictures((CALIBRATION_PICTURES, *shape), 0), not args.per_tensor,
                                      np.uint8 if args.uint8 else np.int8)
                yield f"mobilenet_v1 {width:g} {resolution}", precision, model, pictures((1, *shape), 5)


def given_models(args):
    """The same for models of the command line, which must have one input with a fixed shape."""
    import numpy as np
    import onnx
    from onnx_graph import Graph

    for path in args.model:
        model = onnx.load(path)
        graph = Graph(model)
        if len(graph.inputs) != 1:
            raise Failure(f"{path}: expected one input, found {len(graph.inputs)}")
        # All engines expect the input name x.
        (name,) = graph.inputs
        for node in model.graph.node:
            node.input[:] = ["x" if i == name else i for i in node.input]
        next(v for v in model.graph.input if v.name == name).name = "x"
        dtype, random = np.dtype(graph.types[name]), np.random.default_rng(7)
        shape = graph.shape(name)
        if dtype == np.float32:
            value = random.uniform(-1, 1, shape).astype(dtype)
        else:
            value = random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, endpoint=True).astype(dtype)
        precision = "int8" if any(n.op_type == "DequantizeLinear" for n in model.graph.node) else "float"
        yield path, precision, model, value


def with_ratios(rows):
    """Adds the ratios of medians to each row, where both medians are known."""
    def ratio(a, b):
        return a["median"] / b["median"] if a and b else None

    floats = {row["model"]: row["ms"] for row in rows if row["precision"] == "float"}
    for row in rows:
        ms = row["ms"]
        row["ratios"] = {name: ratio(ms.get("tlite"), ms.get(name)) for name in ENGINES[1:]}
        row["gains"] = {name: ratio(floats.get(row["model"], {}).get(name), ms.get(name)) if row["precision"] == "int8" else None
                        for name in ENGINES}
    return rows


def table(rows):
    """The rows as a Markdown table.

    >>> ms = {"tlite": {"median": 3.0}, "onnxruntime": {"median": 2.0}}
    >>> row = {"model": "m", "precision": "int8", "ms": ms, "off": 0.0125}
    >>> print(table(with_ratios([row])).splitlines()[-1])
    | m | int8 | 3.00 | 2.00 | - | 1.50 | - | - | - | - | 1.3e-02 |
    """
    head = ["model", "precision", "tlite ms", "ONNX Runtime ms", "LiteRT ms", "tlite / ONNX Runtime", "tlite / LiteRT",
            "gain tlite", "gain ONNX Runtime", "gain LiteRT", "off"]
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)]]
    for row in rows:
        medians = [row["ms"].get(name, {}).get("median") for name in ENGINES]
        numbers = [*medians, *row["ratios"].values(), *row["gains"].values()]
        shown = ["-" if n is None else f"{n:.2f}" for n in numbers]
        lines.append([row["model"], row["precision"], *shown, "-" if row["off"] is None else f"{row['off']:.1e}"])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def compare(args):
    from onnx_graph import write_whole

    if args.backend in ("cpu", "reference"):
        cores = sorted(os.sched_getaffinity(0))
        if args.threads > len(cores):
            raise Failure(f"--threads {args.threads}: this process may use {len(cores)} cores")
        os.sched_setaffinity(0, cores[: args.threads])
    rows = []
    for name, precision, model, given in (given_models(args) if args.model else networks(args)):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            with open(path, "wb") as file:
                file.write(model.SerializeToString())
            row = {"model": name, "precision": precision, "threads": args.threads, **measured(path, given, args)}
        rows.append(row)
        for engine, error in row["errors"].items():
            say(f"{name} {precision}: {engine} failed: {error}")
        say(f"{name} {precision}: " + ", ".join(f"{k} {v['median']:.2f} ms" for k, v in row["ms"].items()))
    text = table(with_ratios(rows))
    devices = {k: v for row in rows for k, v in row["devices"].items()}
    print("; ".join(f"{k}: {v}" for k, v in devices.items()), f"; threads: {args.threads}\n\n", text, sep="", end="")
    if args.markdown:
        write_whole(args.markdown, text.encode())
    if args.json:
        write_whole(args.json, (json.dumps(rows, indent=1) + "\n").encode())
    return not any(row["errors"] for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, action="append")
    parser.add_argument("--resolution", type=int, action="append")
    parser.add_argument("--precision", choices=PRECISIONS, action="append")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--per-tensor", action="store_true")
    parser.add_argument("--uint8", action="store_true")
    parser.add_argument("--backend", choices=["cpu", "reference", "opencl", "wgpu"], default="cpu")
    parser.add_argument("--device")
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    parser.add_argument("model", nargs="*")
    args = parser.parse_args()
    if min(args.threads, args.repeat, args.rounds) < 1:
        parser.error("--threads, --repeat and --rounds must be at least 1")
    if args.model and (args.width or args.resolution or args.precision or args.per_tensor or args.uint8):
        parser.error("a MODEL is run as it is; options for the made networks do not apply")
    try:
        environments.continue_with("onnx-tools", environments.ONNX)
        command()
        sys.exit(0 if compare(args) else 1)
    except (Failure, OSError) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
