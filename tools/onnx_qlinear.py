"""Replaces convolutions and matmuls between DequantizeLinear and QuantizeLinear by QLinearConv,
QLinearMatMul and ONNX Runtime's QGemm, which sum integers exactly.

Needs numpy and onnx.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnx_graph import Graph, Quantization, attributes, quantized


class Rewriter:
    """`count` operators are replaced; the rest of the model stays as it is."""

    def __init__(self, model):
        self.graph, self.count = Graph(model), 0
        self.model = onnx.ModelProto.FromString(model.SerializeToString())
        self.made = {}
        found = {"Conv": self.conv, "Gemm": self.gemm, "MatMul": self.matmul}
        ends, dropped = {}, set()
        for node in self.graph.nodes:
            if node.op_type in found:
                chain = self.chain(node)
                # Operands that are not constants.
                names = [n for n in node.input if n and n not in self.graph.constants]
                given = [self.graph.producers.get(n) for n in names]
                if chain is None or names[:1] != [node.input[0]] or any(g is None or g.op_type != "DequantizeLinear" for g in given):
                    continue
                replaced = found[node.op_type](node, given, chain)
                ends[chain[-1].output[0]] = replaced
                dropped.update(n.output[0] for n in (node, *chain))
                self.count += 1
        nodes = []
        for node in self.model.graph.node:
            if node.output[0] in ends:
                nodes += ends[node.output[0]]
            elif node.output[0] not in dropped:
                nodes.append(node)
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)
        self.model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in self.made.items())
        self.model.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    def chain(self, node):
        """The nodes up to the QuantizeLinear, with a Relu or Clip before it; None without it."""
        reader, passed = self.graph.only_reader(node.output[0]), []
        if reader is not None and reader.op_type in ("Relu", "Clip"):
            passed, reader = [reader], self.graph.only_reader(reader.output[0])
        return [*passed, reader] if reader is not None and reader.op_type == "QuantizeLinear" else None

    def constant(self, name, value):
        self.made[name] = np.asarray(value)
        return name

    def weights(self, node, given):
        """Names of the weights, their scale and zero point, and of the bias in i32."""
        found, base = self.graph.constants[node.input[1]], node.output[0]
        q = found.quantization
        # One scale, as a scalar or for each channel.
        scale = q.scale[0] if q.per_tensor() else q.scale
        names = [self.constant(f"{base}/w", found.data), self.constant(f"{base}/w.scale", scale),
                 self.constant(f"{base}/w.zero", np.full(np.shape(scale), 0, dtype=found.data.dtype) + found.data.dtype.type(q.zero[0]))]
        if len(node.input) < 3 or not node.input[2]:
            return names, None
        bias = self.graph.constants[node.input[2]]
        data = bias.data.reshape(-1)
        if bias.data.dtype != np.int32:
            product = Quantization(q.scale * self.graph.quantization(given, 1)[0].scale[0])
            data = quantized(bias.floats().reshape(-1), product, np.int32).data
        return names, self.constant(f"{base}/b", data)

    def limited(self, chain, made):
        """Nodes after one that writes `made`: a Clip of integers where there were limits."""
        end, name = chain[-1], chain[-1].output[0]
        if len(chain) == 1:
            return []
        q, dtype = self.graph.quantization(end, 1)
        values = attributes(chain[0])
        bounds = [0.0, np.inf] if chain[0].op_type == "Relu" else [values.get("min", -np.inf), values.get("max", np.inf)]
        for i in (1, 2):
            if len(chain[0].input) > i and chain[0].input[i]:
                bounds[i - 1] = float(self.graph.constant(chain[0], i))
        whole = quantized(np.array(bounds), q, dtype).data
        names = [self.constant(f"{name}/{k}", v) for k, v in zip(("low", "high"), whole)]
        return [helper.make_node("Clip", [made, *names], [name])]

    def conv(self, node, given, chain):
        names, bias = self.weights(node, given[0])
        name = chain[-1].output[0]
        made = name if len(chain) == 1 else f"{name}/whole"
        inputs = [*given[0].input[:3], *names, *chain[-1].input[1:3], *([bias] if bias else [])]
        kinds = {k: v for k, v in attributes(node).items() if v is not None}
        return [helper.make_node("QLinearConv", inputs, [made], **kinds), *self.limited(chain, made)]

    def gemm(self, node, given, chain):
        names, bias = self.weights(node, given[0])
        name = chain[-1].output[0]
        made = name if len(chain) == 1 else f"{name}/whole"
        inputs = [*given[0].input[:3], *names, bias or "", *chain[-1].input[1:3]]
        kinds = {k: v for k, v in attributes(node).items() if k in ("transA", "transB", "alpha")}
        return [helper.make_node("QGemm", inputs, [made], domain="com.microsoft", **kinds), *self.limited(chain, made)]

    def matmul(self, node, given, chain):
        name = chain[-1].output[0]
        made = name if len(chain) == 1 else f"{name}/whole"
        right = given[1].input[:3] if len(given) > 1 else self.weights(node, given[0])[0]
        inputs = [*given[0].input[:3], *right, *chain[-1].input[1:3]]
        return [helper.make_node("QLinearMatMul", inputs, [made]), *self.limited(chain, made)]


def with_qlinear(model):
    """The model with these operators, and how many there are."""
    made = Rewriter(model)
    return made.model, made.count
