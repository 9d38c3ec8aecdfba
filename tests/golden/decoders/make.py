#!/usr/bin/env python3
"""Makes the small decoders beside this file, and what ONNX Runtime computes with them.

    tests/golden/decoders/make.py

NAME.onnx is a decoder of one or two layers with made-up weights; NAME.f32 its logits, little-endian, a row for each of TOKENS: a prefill of the first
PREFILL, then one at a time. tests/references/exports.rs runs them. Needs what tools/export_llm.py needs, and onnxruntime.
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).resolve().parent
TOOLS = HERE.parents[2] / "tools"
TOKENS = [3, 17, 30, 4, 9, 9, 25, 1, 14, 28, 6, 19, 2, 2, 11, 31, 0, 8, 23, 5, 12, 29, 7, 16, 20]
PREFILL = 9
EXPORTED = {
    "llama2-paper": ["llama2", "paper", "--layers", "1"],
    "llama2-plain": ["llama2", "plain", "--layers", "1"],
    "llama3-paper": ["llama3", "paper", "--layers", "1"],
    "llama3-plain": ["llama3", "plain", "--layers", "1"],
    "mistral-paper": ["mistral", "paper", "--layers", "1", "--window", "4"],
    "mistral-plain": ["mistral", "plain", "--layers", "1", "--window", "4"],
    "qwen1.5-paper": ["qwen1.5", "paper", "--layers", "1"],
    "qwen1.5-plain": ["qwen1.5", "plain", "--layers", "1"],
    "qwen2.5-paper": ["qwen2.5", "paper", "--layers", "1"],
    "qwen2.5-plain": ["qwen2.5", "plain", "--layers", "1"],
    "gemma-paper": ["gemma", "paper", "--layers", "1"],
    "gemma-plain": ["gemma", "plain", "--layers", "1"],
    "gemma2-paper": ["gemma2", "paper", "--layers", "2", "--window", "4"],
    "gemma2-plain": ["gemma2", "plain", "--layers", "2", "--window", "4"],
    "gemma3-paper": ["gemma3", "paper", "--layers", "2", "--window", "4"],
    "gemma3-plain": ["gemma3", "plain", "--layers", "2", "--window", "4"],
    "qwen3-paper": ["qwen3", "paper", "--layers", "1"],
    "qwen3-plain": ["qwen3", "plain", "--layers", "1"],
    "phi3-paper": ["phi3", "paper", "--layers", "1"],
    "phi3-plain": ["phi3", "plain", "--layers", "1"],
    "phi4-mini-plain": ["phi4-mini", "plain", "--layers", "1"],
    "chatglm2-paper": ["chatglm2", "paper", "--layers", "1"],
    "chatglm2-plain": ["chatglm2", "plain", "--layers", "1"],
    "smollm-paper": ["smollm", "paper", "--layers", "1"],
    "smollm-optimum": ["smollm", "optimum", "--layers", "1"],
    "smollm-uncached": ["smollm", "uncached", "--layers", "1"],
    "mistral-optimum": ["mistral", "optimum", "--layers", "1", "--window", "4"],
}
SIZES = ["--hidden", "16", "--inner", "16", "--heads", "2", "--kv-heads", "1", "--head-dim", "8", "--vocab", "32", "--context", "64"]


def reference():
    """The class of tools/compare_logits.py that runs decoders in ONNX Runtime."""
    spec = importlib.util.spec_from_file_location("compare_logits", TOOLS / "compare_logits.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Reference


def shortened(model):
    """Without what nobody reads: notes, inner shapes, long names."""
    graph = model.graph
    del graph.value_info[:]
    kept = {v.name for v in [*graph.input, *graph.output]}
    names = {}

    def short(name):
        return name if not name or name in kept else names.setdefault(name, f"v{len(names)}")

    for i, node in enumerate(graph.node):
        node.name, node.doc_string = f"n{i}", ""
        node.input[:], node.output[:] = map(short, node.input), map(short, node.output)
    for tensor in graph.initializer:
        tensor.name, tensor.doc_string = short(tensor.name), ""
    return model


class Build:
    """A decoder as onnxruntime-genai writes it, or one of opset 24."""

    def __init__(self, seed):
        self.random = np.random.RandomState(seed)
        self.nodes, self.constants = [], []

    def constant(self, array, name):
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape, scale=None):
        w = self.random.standard_normal(shape) * (scale or shape[0] ** -0.5)
        return self.constant(w.astype(np.float32), f"w{len(self.constants)}")

    def node(self, op, inputs, count=1, domain="", **attributes):
        outputs = [f"{op}{len(self.nodes)}_{i}" for i in range(count)] if isinstance(count, int) else count
        self.nodes.append(helper.make_node(op, inputs, outputs, f"{op}{len(self.nodes)}", domain=domain, **attributes))
        return outputs if len(outputs) > 1 else outputs[0]


def tables(places, size):
    angles = np.outer(np.arange(places), 10000.0 ** (-np.arange(0, size, 2) / size))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def alibi(b, q, k, v, names, made, heads, size):
    """Attention with a bias that grows with the place of the key, by a slope for each head, as BLOOM has it (Press et al., 2022)."""
    number = lambda n, *values: b.constant(np.array(values, np.int64) if n else np.array(values[0], np.int64), f"i{len(b.constants)}")
    real = lambda v: b.constant(np.array(v, np.float32), f"f{len(b.constants)}")
    rows = [b.node("Transpose", [b.node("Reshape", [x, number(4, 0, 0, -1, size)])], perm=[0, 2, 1, 3]) for x in (q, k, v)]
    for name, row, out in zip(names, rows[1:], made):
        b.node("Concat", [name, row], [out], axis=2)
    scores = b.node("MatMul", [rows[0], b.node("Transpose", [made[0]], perm=[0, 1, 3, 2])])
    scores = b.node("Mul", [scores, real(size ** -0.5)])
    ones = b.node("Cast", ["attention_mask"], to=TensorProto.FLOAT)
    places = b.node("Sub", [b.node("CumSum", [ones, number(0, 1)]), real(1.0)])
    places = b.node("Unsqueeze", [places, number(2, 1, 2)])
    slopes = real([[[2.0 ** -(8 * (i + 1) / heads)]] for i in range(heads)])
    length = lambda name: b.node("Gather", [b.node("Shape", [name]), number(0, 1)], axis=0)
    new, total = length("input_ids"), length("attention_mask")
    own = b.node("Unsqueeze", [b.node("Range", [b.node("Sub", [total, new]), total, number(0, 1)]), number(1, 1)])
    keys = b.node("Range", [number(0, 0), total, number(0, 1)])
    hidden = b.node("Where", [b.node("Greater", [keys, own]), real(-65504.0), real(0.0)])
    scores = b.node("Add", [b.node("Add", [scores, b.node("Mul", [places, slopes])]), hidden])
    y = b.node("MatMul", [b.node("Softmax", [scores], axis=-1), made[1]])
    return b.node("Reshape", [b.node("Transpose", [y], perm=[0, 2, 1, 3]), number(3, 0, 0, heads * size)])


def built(kind, layers=1, hidden=16, heads=2, kv=1, size=16, vocab=32):
    """`gqa`, `gqa-packed` with a window, `mha`: operators of com.microsoft; `attention`: the standard's with a cache; `alibi`: a bias for each head."""
    b = Build(len(kind))
    cos, sin = (b.constant(t, n) for t, n in zip(tables(64, size), ("cos_cache", "sin_cache")))
    one = b.constant(np.ones(hidden, np.float32), "one")
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"]),
              helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", vocab])]
    table = b.weight(vocab, hidden, scale=0.5)
    x = b.node("Gather", [table, "input_ids"])
    if kind.startswith("gqa"):
        axis = b.constant(np.array([1], np.int64), "axis")
        live = b.node("Sub", [b.node("ReduceSum", ["attention_mask", axis], keepdims=0), b.constant(np.array([1], np.int64), "less")])
        live = b.node("Cast", [live], to=TensorProto.INT32)
        total = b.node("Gather", [b.node("Shape", ["attention_mask"]), b.constant(np.array(1, np.int64), "last")], axis=0)
        total = b.node("Cast", [total], to=TensorProto.INT32)
    for i in range(layers):
        names = [f"past_key_values.{i}.key", f"past_key_values.{i}.value"]
        made = [f"present.{i}.key", f"present.{i}.value"]
        sizes = ["batch_size", kv, "past_sequence_length", size]
        inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, sizes) for n in names]
        outputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, [*sizes[:2], "total_sequence_length", size]) for n in made]
        h = b.node("LayerNormalization", [x, one], axis=-1, epsilon=1e-5)
        y = f"attention{i}"
        if kind == "gqa-packed":
            qkv = b.node("MatMul", [h, b.weight(hidden, (heads + 2 * kv) * size, scale=0.5)])
            b.node("GroupQueryAttention", [qkv, "", "", *names, live, total, cos, sin], [y, *made], "com.microsoft", num_heads=heads,
                   kv_num_heads=kv, do_rotary=1, rotary_interleaved=1, local_window_size=4, softcap=3.0, scale=0.4)
        else:
            q = b.node("MatMul", [h, b.weight(hidden, heads * size, scale=0.5)])
            k, v = (b.node("MatMul", [h, b.weight(hidden, kv * size, scale=0.5)]) for _ in range(2))
            if kind == "gqa":
                b.node("GroupQueryAttention", [q, k, v, *names, live, total, cos, sin], [y, *made], "com.microsoft", num_heads=heads,
                       kv_num_heads=kv, do_rotary=1)
            elif kind == "alibi":
                y = alibi(b, q, k, v, names, made, heads, size)
            elif kind == "mha":
                b.node("MultiHeadAttention", [q, k, v, "", "", "", *names], [y, *made], "com.microsoft", num_heads=heads, unidirectional=1)
            else:
                b.node("Attention", [q, k, v, "", *names], [y, *made], q_num_heads=heads, kv_num_heads=kv, is_causal=1, softcap=4.0)
        x = b.node("Add", [x, b.node("MatMul", [y, b.weight(heads * size, hidden)])])
        h = b.node("LayerNormalization", [x, one], axis=-1, epsilon=1e-5)
        x = b.node("Add", [x, b.node("MatMul", [b.node("Tanh", [b.node("MatMul", [h, b.weight(hidden, hidden)])]), b.weight(hidden, hidden)])])
    b.node("MatMul", [b.node("LayerNormalization", [x, one], axis=-1, epsilon=1e-5), b.weight(hidden, vocab)], ["logits"])
    if kind in ("mha", "attention"):
        inputs = [v for v in inputs if v.name != "attention_mask"]
    graph = helper.make_graph(b.nodes, kind, inputs, outputs, b.constants)
    # A table that nothing reads is left out.
    read = {n for node in b.nodes for n in node.input}
    for t in [t for t in graph.initializer if t.name not in read]:
        graph.initializer.remove(t)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def main():
    runs = reference()
    with tempfile.TemporaryDirectory() as work:
        models = {}
        for name, (family, form, *more) in EXPORTED.items():
            folder = pathlib.Path(work) / name
            command = [sys.executable, str(TOOLS / "export_llm.py"), "--config", family, "--random-weights", "--size", "small"]
            subprocess.run([*command, "--form", form, *SIZES, *more, "-o", str(folder)], check=True, stdout=subprocess.DEVNULL)
            models[name] = shortened(onnx.load(str(folder / "model.onnx")))
        for kind in ("gqa", "gqa-packed", "mha", "attention", "alibi"):
            models[kind] = built(kind, kv=2 if kind in ("mha", "alibi") else 1)
        for name, model in models.items():
            file = HERE / f"{name}.onnx"
            onnx.save(model, str(file))
            session, rows, past = runs(file), [], 0
            for part in [TOKENS[:PREFILL], *([t] for t in TOKENS[PREFILL:])]:
                rows.append(session.run(part, past))
                past += len(part)
            np.concatenate(rows).astype("<f4").tofile(HERE / f"{name}.f32")
            print(f"{name}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
