#!/usr/bin/env python3
"""Compares quantization methods: perplexity and divergence of a model against its bits per weight.

    tools/compare_formats.py MODEL --text FILE --calibration FILE [--tokens N]
                             [--groups 128,64,32] [--methods int,rtn,...] [--bits 4.5]
                             [--gguf FILE --llama-cpp DIR] [--backend reference|opencl|wgpu]
                             [--work DIR] [--json FILE]

MODEL is a folder that `tlite convert` made; it is also the reference. Each method of --methods runs
at each group size of --groups. The method mixed runs once, at --bits bits per weight, with at least
--head-bits for the output head. Calibrated methods and mixed use --calibration; the others look at
weights only. Each row is printed as soon as it is measured. A calibrated method at groups of 128 is
marked `MISSED` if it loses more than half of the perplexity that INT4 loses.

--llama-cpp DIR also measures llama.cpp's Q4_0 and Q4_K_M. DIR holds its libraries (libllama,
libggml), as in the folder bins/linux-x64 of the npm package @node-llama-cpp/linux-x64 3.22.1. They
quantize --gguf FILE, the file that MODEL was converted from, and `tlite convert` reads the result.
Counting its bits needs the Python package gguf.

The environment variable TLITE names the command; by default it is that of the release build.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile

from llama_cpp import Q4_0, Q4_K_M, Failure, libraries, quantize_gguf, tlite

LEARN = ("gptq", "awq", "awq-gptq")
LLAMA_CPP = {"Q4_0": Q4_0, "Q4_K_M": Q4_K_M}


def bits_of(file):
    """Bits per weight of the matrices in a GGUF file, and their types."""
    import gguf

    matrices = [t for t in gguf.GGUFReader(file).tensors if len(t.shape) > 1]
    bits = 8 * sum(int(t.n_bytes) for t in matrices) / sum(int(t.n_elements) for t in matrices)
    return bits, sorted({t.tensor_type.name for t in matrices})


class Table:
    """The table of results, printed row by row."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.rows = []
        self.loss = None
        print(f"{'method':<12}{'group':>6}{'bits':>7}{'perplexity':>12}{'loss':>9}{'mean KL':>10}{'p99 KL':>9}{'same best':>11}")

    def measure(self, method, group, bits, model, note=""):
        """Measures a model against the reference and prints its row."""
        a = self.arguments
        result = tlite("perplexity", model, "--text", a.text, "--tokens", a.tokens, "--reference", a.model, "--json",
                       "--backend", a.backend)
        loss = result["perplexity"] - result["reference_perplexity"]
        if (method, group) == ("int", 128):
            self.loss = loss
        if method in LEARN and group == 128 and self.loss is not None and loss > self.loss / 2:
            note = f"{note} MISSED".strip()
        self.rows.append(dict(method=method, group=group, bits_per_weight=bits, note=note, **result))
        print(f"{method:<12}{group or '':>6}{bits:>7.3f}{result['perplexity']:>12.4f}{loss:>+9.4f}{result['kl_mean']:>10.5f}"
              f"{result['kl_p99']:>9.4f}{result['top1_agreement']:>11.2%}  {note}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--calibration-tokens", type=int, default=8192)
    parser.add_argument("--groups", default="128,64,32")
    parser.add_argument("--methods", default="int,rtn,mse,gptq,awq,awq-gptq,mixed")
    parser.add_argument("--bits", type=float, default=4.5)
    parser.add_argument("--head-bits", type=int, default=8)
    parser.add_argument("--gguf")
    parser.add_argument("--llama-cpp")
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--work")
    parser.add_argument("--json")
    a = parser.parse_args()
    if bool(a.gguf) != bool(a.llama_cpp):
        parser.error("--gguf and --llama-cpp go together")
    methods = a.methods.split(",")
    if a.work:
        os.makedirs(a.work, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=a.work) as work:
        table = Table(a)
        made = os.path.join(work, "quantized")
        for group in map(int, a.groups.split(",")):
            for method in (m for m in methods if m != "mixed"):
                learns = ["--calibration", a.calibration, "--calibration-tokens", a.calibration_tokens, "--backend", a.backend]
                report = tlite("quantize", a.model, "-o", made, "--method", method, "--group-size", group, "--head-bits",
                               a.head_bits, "--json", *(learns if method in LEARN else []))
                table.measure(method, group, report["bits_per_weight"], made)
                shutil.rmtree(made)
        if "mixed" in methods:
            try:
                report = tlite("quantize", a.model, "-o", made, "--method", "mixed", "--bits", a.bits, "--head-bits", a.head_bits, "--json",
                               "--calibration", a.calibration, "--calibration-tokens", a.calibration_tokens, "--backend", a.backend)
            except Failure as e:
                # Some models cannot reach this mean; the other rows do not depend on it.
                print(f"mixed: {e}", file=sys.stderr)
            else:
                table.measure("mixed", None, report["bits_per_weight"], made)
                shutil.rmtree(made)
        if a.llama_cpp:
            library = libraries(a.llama_cpp)
            for name, number in LLAMA_CPP.items():
                file = os.path.join(work, f"{name}.gguf")
                quantize_gguf(library, a.gguf, file, number)
                bits, types = bits_of(file)
                tlite("convert", file, "--float", "-o", made)
                table.measure(name, None, bits, made, ", ".join(types))
                shutil.rmtree(made)
                os.remove(file)
        if a.json:
            with open(a.json, "w") as file:
                json.dump(table.rows, file, indent=1)


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError) as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)
