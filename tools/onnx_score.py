#!/usr/bin/env python3
"""Counts the node cases of ONNX that pass in tlite and in other engines.

    tools/onnx_score.py [--data DIR] [--report FILE] [--peers NAME,...] [--seconds N]
                        [--json FILE] [--failures]

The results of tlite come from the report of tests/references/onnx_nodes.rs. --report names a report that was
written with TLITE_ONNX_NODES_REPORT; without it the test runs. On a device a case counts as passed
if the device runs all of it; cases with nodes on the host are counted in another column.

The other engines are onnxruntime (through its Python interface, which does not support 4-bit
types), tract, rten and wonnx; the runners of the last three are built from tools/onnx_score. All
have the error bounds of ONNX's own runner, 0.001 of an element and 1e-7. On devices tlite may also
err by 1e-5 of the largest element, since exp and log of GPUs are less accurate. An unsupported
case, a crash, and a case that takes longer than --seconds count as not passed. rten may return
32-bit integers, and wonnx results without shapes.

--data is a folder of tools/fetch_onnx_nodes.py, by default the one in the cache. --failures prints
each failure of the other engines. Needs onnx, onnxruntime and numpy for onnxruntime, and Cargo for
the others.
"""

import argparse
import ctypes
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CACHE = os.environ.get("TLITE_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "transformer-lite")
PEERS = ["onnxruntime", "tract", "rten", "wonnx"]


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def onnxruntime_case(folder):
    """Runs a case; raises an exception if it fails."""
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import numpy_helper

    model = onnx.load(os.path.join(folder, "model.onnx"))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])

    def plain(value):
        """Converts types that numpy lacks to an OrtValue with the ONNX type; returns others
        unchanged."""
        if not isinstance(value, np.ndarray) or value.dtype.isbuiltin == 1 or value.dtype.kind in "OSUb":
            return value
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        raw = value.view(np.uint16 if value.dtype.itemsize == 2 else np.uint8)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, kind)

    def as_array(value):
        """The reverse for a result; copies its bytes."""
        kind = value.element_type()
        if not value.is_tensor() or kind not in EXOTIC:
            return value.numpy() if value.is_tensor() else value
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        count = int(np.prod(value.shape()))
        raw = ctypes.string_at(value.data_ptr(), count * dtype.itemsize)
        return np.frombuffer(raw, dtype).reshape(value.shape())

    # bfloat16 and the 8-bit floats. 4-bit and 2-bit types are packed and left to the plain
    # interface.
    EXOTIC = {16, 17, 18, 19, 20, 24}

    def read(file, kind):
        with open(file, "rb") as f:
            data = f.read()
        if kind.HasField("sequence_type"):
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        if kind.HasField("optional_type"):
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        return numpy_helper.to_array(onnx.TensorProto.FromString(data))

    def check(found, wanted):
        if wanted is None or found is None:
            assert wanted is None and found is None, "expected both or neither to have a value"
        elif isinstance(wanted, list):
            assert len(found) == len(wanted), f"{len(found)} elements, expected {len(wanted)}"
            for pair in zip(found, wanted):
                check(*pair)
        elif wanted.dtype.kind in "OSU":
            assert found.shape == wanted.shape and found.astype(str).tolist() == wanted.astype(str).tolist(), "the texts differ"
        else:
            assert found.dtype == wanted.dtype and found.shape == wanted.shape, f"{found.dtype}{list(found.shape)}"
            exotic = wanted.dtype.isbuiltin != 1
            found, wanted = (found.astype(np.float32), wanted.astype(np.float32)) if exotic else (found, wanted)
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-7)

    sets = 0
    while os.path.isdir(data := os.path.join(folder, f"test_data_set_{sets}")):
        given = {}
        for i, value in enumerate(model.graph.input):
            given[value.name] = read(os.path.join(data, f"input_{i}.pb"), value.type)
        names = [o.name for o in model.graph.output]
        of_type = {v.type.tensor_type.elem_type for v in [*model.graph.input, *model.graph.output]}
        if of_type & EXOTIC:
            given = {name: plain(value) for name, value in given.items()}
            given = {name: v if isinstance(v, onnxruntime.OrtValue) else onnxruntime.OrtValue.ortvalue_from_numpy(v)
                     for name, v in given.items()}
            found = [as_array(v) for v in session.run_with_ort_values(names, given)]
        else:
            found = session.run(names, given)
        for i, (one, value) in enumerate(zip(found, model.graph.output)):
            check(one, read(os.path.join(data, f"output_{i}.pb"), value.type))
        sets += 1
    assert sets > 0, "no data"


def serve_onnxruntime():
    """Reads a folder per line and answers with a line, like the runners of tools/onnx_score."""
    for line in sys.stdin:
        try:
            onnxruntime_case(line.strip())
            print("passed", flush=True)
        except Exception as e:  # noqa: BLE001: whatever it is, the case did not pass
            print("failed", " ".join(str(e).split())[:300], flush=True)


class Runner:
    """A process that answers every line with a line, and is restarted after a crash."""

    def __init__(self, command, environment):
        self.command, self.environment, self.process = command, environment, None

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, env=self.environment)
        self.lines = queue.Queue()

        def pump(process, lines):
            for line in process.stdout:
                lines.put(line.strip())
            lines.put(None)

        threading.Thread(target=pump, args=(self.process, self.lines), daemon=True).start()

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, line, seconds):
        if self.process is None:
            self.start()
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.lines.get(timeout=seconds)
        except queue.Empty:
            self.stop()
            return f"failed: no answer in {seconds} s"
        except OSError:
            answer = None
        if answer is None:
            self.stop()
            return "failed: it crashed"
        return answer


def runner_of(peer):
    """The runner of an engine and its version, or None and the reason."""
    if peer == "onnxruntime":
        try:
            import onnx  # noqa: F401
            import onnxruntime
        except ImportError as e:
            return None, str(e)
        return Runner([sys.executable, os.path.abspath(__file__), "--serve-onnxruntime"], None), onnxruntime.__version__
    folder = os.path.join(ROOT, "tools", "onnx_score")
    say(f"Building the runner for {peer}")
    manifest = ["--manifest-path", os.path.join(folder, "Cargo.toml")]
    if subprocess.run(["cargo", "build", "--release", "--locked", "--features", peer, "--bin", peer, *manifest]).returncode != 0:
        return None, "building its runner failed"
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--features", peer, *manifest]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    crate = {"tract": "tract-onnx"}.get(peer, peer)
    version = next(p["version"] for p in metadata["packages"] if p["name"] == crate)
    return Runner([os.path.join(metadata["target_directory"], "release", peer)], None), version


def ours(file, names):
    """Counts in a report, by place and kind."""
    counts = {}
    with open(file, encoding="utf-8") as f:
        for line in f:
            kind, name = line.split("\t")[:2]
            case, _, place = name.partition("@")
            if case in names:
                kinds = counts.setdefault(place or "reference", {})
                kinds[kind] = kinds.get(kind, 0) + 1
    return counts


def report_of_test(data, scratch):
    say("Running tests/references/onnx_nodes.rs")
    file = os.path.join(scratch, "report.txt")
    environment = dict(os.environ, TLITE_ONNX_DATA=data, TLITE_ONNX_NODES_REPORT=file)
    manifest = os.path.join(ROOT, "Cargo.toml")
    command = ["cargo", "test", "--release", "--test", "references", "--manifest-path", manifest, "--", "onnx_nodes::"]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL)
    if not os.path.isfile(file):
        sys.exit("error: tests/references/onnx_nodes.rs wrote no report")
    return file


def main():
    if sys.argv[1:] == ["--serve-onnxruntime"]:
        return serve_onnxruntime()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.path.join(CACHE, "onnx-1.23.0"))
    parser.add_argument("--report")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--json")
    parser.add_argument("--failures", action="store_true")
    args = parser.parse_args()
    peers = [p for p in args.peers.split(",") if p]
    if unknown := [p for p in peers if p not in PEERS]:
        sys.exit(f"error: --peers: unknown engine {', '.join(unknown)}; choose from {', '.join(PEERS)}")
    nodes = os.path.join(args.data, "node")
    if not os.path.isdir(nodes):
        sys.exit(f"error: folder {nodes} not found; run tools/fetch_onnx_nodes.py {args.data}")
    names = sorted(n for n in os.listdir(nodes) if os.path.isfile(os.path.join(nodes, n, "model.onnx")))
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        counts = ours(args.report or report_of_test(os.path.abspath(args.data), scratch), set(names))
    for place, kinds in counts.items():
        rows.append({"engine": f"transformer-lite, {place}", "passed": kinds.get("passed", 0),
                     "partly_on_host": kinds.get("partly on the host", 0), "of": sum(kinds.values())})
    for peer in peers:
        runner, version = runner_of(peer)
        if runner is None:
            say(f"skipping {peer}: {version}")
            continue
        say(f"{peer} {version}")
        passed = 0
        for name in names:
            answer = runner.ask(os.path.join(nodes, name), args.seconds)
            passed += answer == "passed"
            if args.failures and answer != "passed":
                print(f"{peer}\t{name}\t{answer}", flush=True)
        runner.stop()
        rows.append({"engine": f"{peer} {version}", "passed": passed, "partly_on_host": 0, "of": len(names)})
    print(f"{'of ' + str(len(names)) + ' node cases':<40} passed   passed partly on the host")
    for row in rows:
        note = "" if row["of"] == len(names) else f"   (of {row['of']} cases run)"
        print(f"{row['engine']:<40} {row['passed']:>6}   {row['partly_on_host'] or '':>6}{note}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"cases": len(names), "rows": rows}, f, indent=1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
