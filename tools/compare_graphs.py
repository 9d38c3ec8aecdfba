#!/usr/bin/env python3
"""Compares results of random graphs with those of ONNX Runtime.

    tools/compare_graphs.py FOLDER

The fuzz targets `graphs`, `graphs_opencl` and `graphs_wgpu` write their graphs to FOLDER if the
variable FUZZ_GRAPHS names it. Prints each difference and the number of graphs by outcome; ONNX
Runtime cannot run all of them. The exit code is 1 if there is a difference or nothing to compare.

Needs onnx, onnxruntime and numpy, and installs them in the cache folder if they are missing.
"""

import collections
import pathlib
import sys

import environments

environments.need(__doc__, "onnx", "onnxruntime", "numpy")

import numpy as np
import onnx
import onnxruntime

# Relative to the expected value, or to 1 if that is smaller.
TOLERANCE = 1e-3


def tensor(path):
    proto = onnx.TensorProto.FromString(path.read_bytes())
    return proto.name, onnx.numpy_helper.to_array(proto)


def difference(found, wanted):
    """The difference, or None."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return f"expected {wanted.dtype}{wanted.shape}, found {found.dtype}{found.shape}"
    if found.dtype.kind != "f":
        same = found == wanted
    else:
        with np.errstate(all="ignore"):
            near = np.abs(found - wanted) <= TOLERANCE * np.maximum(1, np.abs(wanted))
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted)) | near
    if same.all():
        return None
    return f"expected {wanted[~same][:4]}, found {found[~same][:4]}"


def main(folder):
    onnxruntime.set_default_logger_severity(4)
    counts = collections.Counter()
    for case in sorted(folder.iterdir()):
        data = case / "test_data_set_0"
        inputs = dict(tensor(p) for p in data.glob("input_*.pb"))
        outputs = [tensor(p)[1] for p in sorted(data.glob("output_*.pb"))]
        try:
            session = onnxruntime.InferenceSession(case / "model.onnx", providers=["CPUExecutionProvider"])
            wanted = session.run(None, inputs)
        except Exception:
            counts["not run"] += 1
            continue
        found = [d for d in map(difference, outputs, wanted) if d]
        counts["different" if found else "equal"] += 1
        for d in found:
            graph = onnx.load(case / "model.onnx").graph
            print(f"{case.name}: {', '.join(n.op_type for n in graph.node)}: {d}")
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return 1 if counts["different"] or not counts["equal"] else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    sys.exit(main(pathlib.Path(sys.argv[1])))
