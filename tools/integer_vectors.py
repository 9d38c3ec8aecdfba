#!/usr/bin/env python3
"""Makes the test vectors of quantized operators with TensorFlow Lite and ONNX Runtime.

usage: integer_vectors.py [--check] [NAME]...

tests/data/integer has a folder for each case. test_data_set_0/fixed_N.pb is output N of TensorFlow
Lite, and float_N.pb that of ONNX Runtime. An engine that lacks the operator has no file.
tests/data/integer/README.md explains the files; the table in it is also printed.

--check    write nothing: run the stored models and inputs, and compare the outputs

NAME selects the cases whose names begin with it; then nothing is stored. Environments with both
engines are created in the cache folder. They need Python 3.11 or earlier.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile

import environments
from environments import Failure, say

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "tests", "data", "integer")
README = """# Vectors of quantized operators

Made by `tools/integer_vectors.py`; `--check` runs them again. Each case is a folder in the layout
of ONNX's node tests: a model whose inputs and outputs are integers, `input_N.pb`, and the outputs
of two arithmetics:

* `fixed_N.pb`: the reference kernels (`BUILTIN_REF`) of tflite-runtime 2.14.0 for the model that
  `tools/tflite_of.py` makes. Convolutions and matmuls round twice, as gemmlowp does.
* `float_N.pb`: ONNX Runtime 1.31.1 without optimizations. Convolutions and matmuls are QLinearConv,
  QLinearMatMul and QGemm. ConvTranspose and a MatMul with a bias do not have such a form. They, and
  all other operators, are computed as floats between DequantizeLinear and QuantizeLinear.

A missing file means that the engine lacks the operator. The columns of this table are numbers of
outputs that differ, and by how much at most:

* float: `float` against `fixed`
* QDQ: ONNX Runtime with floats between DequantizeLinear and QuantizeLinear, against `float`
* fused: ONNX Runtime with its own fusions of them, against `float`
* XNNPACK: LiteRT 2.3.0 with its default kernels, against `float`

Three things are not obvious in `fixed`:

* MEAN multiplies the sum of values less their zero point once, also where both scales are the same.
  The mantissa of input scale / output scale is shifted left by floor(log2(count)) and divided by
  the count, without rounding. The exponent is lowered by as much. The product rounds twice.
* AVERAGE_POOL_2D divides the sum of values that include their zero point, and rounds half away from
  zero. The result for uint8 is therefore that of int8, shifted.
* QUANTIZE and LEAKY_RELU multiply with two roundings, and HARD_SWISH uses 16-bit steps. Their
  results differ from the real function, rounded. Those of LOGISTIC, TANH and SOFTMAX do not.

The last results of the two networks tell little about single operators: random weights amplify a
difference of one step.

"""


def vnni():
    """Whether ONNX Runtime computes products of uint8 and int8 exactly. Its sums saturate on x86
    processors without VNNI."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = file.read().split()
    return "avx512_vnni" in flags or "avx_vnni" in flags


def onnx_outputs(model, given, optimize=False):
    from made_cnn import session
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Missing

    try:
        return session(model, optimize).run(None, given)
    except Missing:
        return None


def tflite_outputs(python, cases, converted):
    """For each case, the outputs of its model or an error message."""
    import numpy as np
    from tflite_of import to_onnx, to_tflite

    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            made = converted[case.name]
            if isinstance(made, str):
                results[case.name] = made
                continue
            with open(os.path.join(folder, f"{case.name}.tflite"), "wb") as file:
                file.write(made.data)
            arrays = {str(i): to_tflite(p, case.inputs[p.name]) for i, p in enumerate(made.inputs)}
            np.savez(os.path.join(folder, f"{case.name}.npz"), **arrays)
        peer = os.path.join(ROOT, "tools", "tflite_peer.py")
        if subprocess.run([python, peer, "outputs", folder], stdout=sys.stderr).returncode:
            raise Failure("TensorFlow Lite failed; see above")
        for case in cases:
            if case.name in results:
                continue
            base = os.path.join(folder, f"{case.name}.out")
            if not os.path.exists(base + ".npz"):
                with open(base + ".txt", encoding="utf-8") as file:
                    results[case.name] = file.read().split("\n")[0]
                continue
            with np.load(base + ".npz") as found:
                results[case.name] = [to_onnx(p, found[str(i)]) for i, p in enumerate(converted[case.name].outputs)]
    return results


def difference(found, wanted):
    """How many values differ, and by how much at most; empty if either is missing."""
    import numpy as np

    if not isinstance(found, list) or not isinstance(wanted, list):
        return ""
    apart = [np.abs(a.astype(np.float64) - b.astype(np.float64)) for a, b in zip(found, wanted)]
    count = sum(int((a != 0).sum()) for a in apart)
    return f"{count} (by {max(a.max() for a in apart):.3g})" if count else "0"


def computed(cases):
    """For each case, its outputs in both arithmetics, or the reason why there are none, and its row
    of the table."""
    from onnx_qlinear import with_qlinear
    from tflite_of import convert

    converted = {}
    for case in cases:
        try:
            converted[case.name] = convert(case.model)
        except Failure as e:
            converted[case.name] = str(e)
    fixed = tflite_outputs(environments.environment("tflite-reference", environments.TFLITE_REFERENCE), cases, converted)
    modern = tflite_outputs(sys.executable, cases, converted)
    for case in cases:
        qdq = onnx_outputs(case.model, case.inputs)
        whole, count = with_qlinear(case.model)
        exact = onnx_outputs(whole, case.inputs) if count else qdq
        values = {"fixed": fixed[case.name], "float": exact if exact is not None else "ONNX Runtime lacks the operator"}
        total = next((sum(o.size for o in v) for v in values.values() if isinstance(v, list)), 0)
        row = [case.name, total, difference(values["float"], values["fixed"]), difference(qdq, exact) if count else "",
               difference(onnx_outputs(case.model, case.inputs, True), exact), difference(modern[case.name], exact)]
        yield case, values, row


def stored(folder):
    """The cases in a folder, with their stored outputs."""
    import onnx
    from integer_cases import Case
    from onnx import numpy_helper

    def read(path):
        return numpy_helper.to_array(onnx.load_tensor(path))

    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name, "model.onnx")
        if not os.path.isfile(path):
            continue
        case, data = Case(name), os.path.join(folder, name, "test_data_set_0")
        case.model = onnx.load(path)
        case.inputs = {v.name: read(os.path.join(data, f"input_{i}.pb")) for i, v in enumerate(case.model.graph.input)}
        case.stored = {}
        for kind in ("fixed", "float"):
            files = [os.path.join(data, f"{kind}_{i}.pb") for i in range(len(case.model.graph.output))]
            case.stored[kind] = [read(f) for f in files] if all(map(os.path.isfile, files)) else None
        yield case


def write(case, values, folder):
    from onnx import numpy_helper

    data = os.path.join(folder, case.name, "test_data_set_0")
    os.makedirs(data)
    with open(os.path.join(folder, case.name, "model.onnx"), "wb") as file:
        file.write(case.model.SerializeToString())
    names = {"input": (list(case.inputs), list(case.inputs.values()))}
    for kind, arrays in values.items():
        if isinstance(arrays, list):
            names[kind] = ([v.name for v in case.model.graph.output], arrays)
    for kind, (labels, arrays) in names.items():
        for i, (label, array) in enumerate(zip(labels, arrays)):
            with open(os.path.join(data, f"{kind}_{i}.pb"), "wb") as file:
                file.write(numpy_helper.from_array(array, label).SerializeToString())


def shown(rows):
    head = ["case", "outputs", "float", "QDQ", "fused", "XNNPACK"]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join("| " + " | ".join(str(v) or "-" for v in line) + " |\n" for line in lines)


def check(names):
    """Compares the stored outputs with new ones. Returns whether all are equal."""
    import numpy as np

    cases = [c for c in stored(FOLDER) if not names or c.name.startswith(names)]
    if not cases:
        raise Failure(f"{FOLDER} has no such case")
    rows, same = [], True
    for case, values, row in computed(cases):
        rows.append(row)
        for kind, wanted in case.stored.items():
            found = values[kind] if isinstance(values[kind], list) else None
            equal = (found is None) == (wanted is None) and all(np.array_equal(a, b) for a, b in zip(found or [], wanted or []))
            if not equal:
                say(f"{case.name}: {kind} differs from the stored file: {difference(found, wanted) or 'one is missing'}")
                same = False
    print(shown(rows), end="")
    return same


def make(names):
    from integer_cases import cases

    wanted = [c for c in cases() if not names or c.name.startswith(names)]
    if not wanted:
        raise Failure(f"no case begins with {' or '.join(names)}")
    os.makedirs(os.path.dirname(FOLDER), exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".integer-", dir=os.path.dirname(FOLDER)) as work:
        part, rows = os.path.join(work, "integer"), []
        os.mkdir(part)
        for case, values, row in computed(wanted):
            for kind, value in values.items():
                if isinstance(value, str):
                    say(f"{case.name}: no {kind}: {value}")
            write(case, values, part)
            rows.append(row)
        print(shown(rows), end="")
        if names:
            say("some cases only: nothing is stored")
            return
        with open(os.path.join(part, "README.md"), "w", encoding="utf-8") as file:
            file.write(README + shown(rows))
        shutil.rmtree(FOLDER, ignore_errors=True)
        os.replace(part, FOLDER)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("name", nargs="*")
    args = parser.parse_args()
    try:
        if not vnni():
            raise Failure("ONNX Runtime's sums of uint8 and int8 are exact only on processors with VNNI")
        environments.continue_with("onnx-tools", environments.ONNX)
        if args.check:
            sys.exit(0 if check(tuple(args.name)) else 1)
        make(tuple(args.name))
    except (Failure, OSError) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
