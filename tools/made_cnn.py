#!/usr/bin/env python3
"""Writes convolutional networks with random weights, for tests and benchmarks.

usage: made_cnn.py mobilenet_v1 [--width W] [options] -o FILE.onnx
       made_cnn.py resnet --depth N [options] -o FILE.onnx

mobilenet_v1 has a width of 0.25 to 1.0. At resolutions up to 64, its first stride is 1. resnet has
the architecture of the ResNets for CIFAR-10; its depth is 8, 14, 20 or another 6 n + 2. Each
BatchNormalization gets statistics from random pictures, so that activations keep a realistic range.

--resolution N   height and width (default: 224 for mobilenet_v1, 32 for resnet)
--channels N     channels of each picture (default: 3)
--classes N      number of classes (default: 1000 for mobilenet_v1, 10 for resnet)
--batch N        pictures per run (default: 1)
--activation relu|relu6   (default: relu6)
--seed N         seed of weights and pictures (default: 0)
--int8           quantize to int8 with QuantizeLinear and DequantizeLinear: normalizations are
                 folded, and ranges are the minima and maxima over 8 random pictures
--per-tensor     with --int8, one scale per weight tensor instead of one per output channel

Needs numpy, onnx and onnxruntime. Without them, an environment is created in the cache folder.
"""

import argparse
import sys

import environments

if __name__ == "__main__":
    environments.need(__doc__, "numpy", "onnx", "onnxruntime")

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_graph import Failure, write_whole

OPSET, IR_VERSION = 17, 8
# Output channels at width 1.0 and stride of each block.
MOBILENET_V1 = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
CALIBRATION_PICTURES = 8
# Statistics are measured at this resolution at most, where they are nearly the same.
STATISTICS_RESOLUTION = 64


def model_of(nodes, inputs, outputs, constants, name="made"):
    """An ONNX model; inputs and outputs are (name, element type, shape)."""
    infos = [[helper.make_tensor_value_info(*v) for v in values] for values in (inputs, outputs)]
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, name, *infos, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def session(model, optimize=False):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def pictures(shape, seed):
    """Random float pictures in [-1, 1] with smooth areas, whose statistics are closer to those of
    photographs than those of noise are."""
    random = np.random.default_rng([seed, 77])
    n, channels, height, width = shape
    coarse = random.uniform(-1, 1, (n, channels, -(-height // 8), -(-width // 8)))
    smooth = coarse.repeat(8, axis=2).repeat(8, axis=3)[:, :, :height, :width]
    return np.clip(smooth + 0.5 * random.standard_normal(shape), -1, 1).astype(np.float32)


class Network:
    """A float network that is built node by node."""

    def __init__(self, shape, activation, seed):
        self.shape, self.activation = list(shape), activation
        self.random = np.random.default_rng(seed)
        self.nodes, self.constants, self.norms = [], {}, []
        self.last, self.count = "x", 0

    def add(self, kind, inputs, **attributes):
        self.count += 1
        name = f"{kind.lower()}_{self.count}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        self.last = name
        return name

    def constant(self, name, values):
        self.constants[name] = np.asarray(values, dtype=np.float32)
        return name

    def conv(self, given, channels, out, kernel, size, stride=1, group=1, activate=True):
        """Adds a convolution with TensorFlow's SAME padding, a normalization and an activation.
        Returns the name and the new size."""
        shape = (out, channels // group, kernel, kernel)
        scale = np.sqrt(2.0 / (shape[1] * kernel * kernel))
        weights = self.constant(f"conv_{self.count + 1}.weight", scale * self.random.standard_normal(shape))
        made = -(-size // stride)
        total = max((made - 1) * stride + kernel - size, 0)
        pads = [total // 2, total // 2, total - total // 2, total - total // 2]
        name = self.add("Conv", [given, weights], kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads, group=group)
        name = self.norm(name, out)
        return (self.activated(name) if activate else name), made

    def norm(self, given, channels):
        name, values = f"norm_{self.count + 1}", {
            "scale": self.random.uniform(0.4, 1.2, channels), "bias": 1.2 + 0.9 * self.random.standard_normal(channels),
            "mean": np.zeros(channels), "var": np.ones(channels)}
        names = [self.constant(f"{name}.{key}", value) for key, value in values.items()]
        self.norms.append((given, names[2], names[3]))
        return self.add("BatchNormalization", [given, *names])

    def activated(self, given):
        if self.activation == "relu":
            return self.add("Relu", [given])
        for name, value in (("zero", 0.0), ("six", 6.0)):
            self.constant(name, value)
        return self.add("Clip", [given, "zero", "six"])

    def classified(self, given, channels, classes):
        name = self.add("GlobalAveragePool", [given])
        name = self.add("Flatten", [name], axis=1)
        weights = self.constant("dense.weight", self.random.standard_normal((classes, channels)) / np.sqrt(channels))
        bias = self.constant("dense.bias", 0.2 * self.random.standard_normal(classes))
        return self.add("Gemm", [name, weights, bias], transB=1)

    def finished(self, output, classes, name):
        """The model, with measured statistics in its normalizations."""
        self.measure()
        self.nodes[-1].output[0] = "y"
        return model_of(self.nodes, [("x", TensorProto.FLOAT, self.shape)],
                        [("y", TensorProto.FLOAT, [self.shape[0], classes])], self.constants, name)

    def measure(self):
        """Sets the mean and variance of each normalization, in order."""
        side = min(self.shape[2], STATISTICS_RESOLUTION)
        given = {"x": pictures((CALIBRATION_PICTURES, self.shape[1], side, side), 1)}
        used, start = {"x": given["x"]}, 0
        for name, mean, var in self.norms:
            end = next(i for i, n in enumerate(self.nodes) if n.output[0] == name) + 1
            nodes = self.nodes[start:end]
            read = {i for n in nodes for i in n.input} | {n.output[0] for n in nodes}
            later = {i for n in self.nodes[end:] for i in n.input}
            results = [n.output[0] for n in nodes if n.output[0] in later]
            inputs = [(k, TensorProto.FLOAT, v.shape) for k, v in used.items() if k in read]
            part = model_of(nodes, inputs, [(r, TensorProto.FLOAT, None) for r in results],
                            {k: v for k, v in self.constants.items() if k in read})
            values = session(part).run(results, {k: used[k] for k, _, _ in inputs})
            used = {k: v for k, v in {**used, **dict(zip(results, values))}.items() if k in later}
            self.constant(mean, used[name].mean(axis=(0, 2, 3)))
            self.constant(var, used[name].var(axis=(0, 2, 3)) + 1e-3)
            start = end


def mobilenet_v1(width=1.0, resolution=224, channels=3, classes=1000, batch=1, activation="relu6", seed=0):
    net = Network((batch, channels, resolution, resolution), activation, seed)
    last = max(int(32 * width), 8)
    name, size = net.conv("x", channels, last, 3, resolution, stride=1 if resolution <= 64 else 2)
    for out, stride in MOBILENET_V1:
        out = max(int(out * width), 8)
        name, size = net.conv(name, last, last, 3, size, stride, group=last)
        name, size = net.conv(name, last, out, 1, size)
        last = out
    return net.finished(net.classified(name, last, classes), classes, "mobilenet_v1")


def resnet(depth=8, resolution=32, channels=3, classes=10, batch=1, activation="relu6", seed=0):
    if depth < 8 or depth % 6 != 2:
        raise Failure(f"depth {depth}: expected 6 n + 2, such as 8 or 20")
    net = Network((batch, channels, resolution, resolution), activation, seed)
    name, size = net.conv("x", channels, 16, 3, resolution)
    last = 16
    for out in (16, 32, 64):
        for block in range((depth - 2) // 6):
            stride = 2 if block == 0 and out > 16 else 1
            around, before = name, size
            name, size = net.conv(name, last, out, 3, before, stride)
            name, size = net.conv(name, out, out, 3, size, activate=False)
            if out != last:
                around, _ = net.conv(around, last, out, 1, before, stride, activate=False)
            name = net.activated(net.add("Add", [name, around]))
            last = out
    return net.finished(net.classified(name, last, classes), classes, f"resnet{depth}")


def folded(model):
    """The model with each BatchNormalization folded into the Conv before it, if nothing else reads
    that Conv or its weights."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph = model.graph
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    makers, nodes, renamed = {n.output[0]: n for n in graph.node if n.op_type == "Conv"}, [], {}
    read = [name for n in graph.node for name in n.input] + [v.name for v in graph.output]
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = renamed.get(name, name)
        conv = makers.get(node.input[0]) if node.op_type == "BatchNormalization" else None
        if conv is None or not {*conv.input[1:], *node.input[1:]} <= values.keys() or max(map(read.count, [conv.input[1], node.input[0]])) > 1:
            nodes.append(node)
            continue
        gamma, beta, mean, var = (values[n].astype(np.float64) for n in node.input[1:5])
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        factor = gamma / np.sqrt(var + epsilon)
        bias = values[conv.input[2]] if len(conv.input) > 2 else 0.0
        weight = conv.input[1]
        values[weight] = (values[weight] * factor[:, None, None, None]).astype(np.float32)
        values[weight + ".bias"] = (beta + (bias - mean) * factor).astype(np.float32)
        del conv.input[2:]
        conv.input.append(weight + ".bias")
        renamed[node.output[0]] = node.input[0]
    used = {name for n in nodes for name in n.input}
    given = [v for v in graph.input if v.name not in values or v.name in used]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(nodes)
    graph.input.extend(given)
    graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in values.items() if k in used)
    return model


# Quantization.


def range_of(low, high, dtype=np.int8):
    """Scale and zero point of activations in [low, high], a range that is widened to contain 0."""
    low, high, limits = min(float(low), 0.0), max(float(high), 0.0), np.iinfo(dtype)
    if low == high:
        return np.float32(1), dtype(limits.min)
    scale = np.float32((high - low) / (limits.max - limits.min))
    zero = limits.min - low / float(scale)
    return scale, dtype(np.clip(np.floor(zero + 0.5), limits.min, limits.max))


def int8_weights(weights, per_channel, axis=0):
    """Symmetric int8 weights in [-127, 127], and their scales."""
    axes = tuple(a for a in range(weights.ndim) if a != axis) if per_channel else None
    scale = np.maximum(np.abs(weights).max(axis=axes) / 127, 2.0**-24).astype(np.float32)
    wide = scale.reshape([-1 if a == axis else 1 for a in range(weights.ndim)]) if per_channel else scale
    return np.clip(np.rint(weights / wide), -127, 127).astype(np.int8), scale


def exposed(model, names):
    """The model with these tensors as outputs."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names)
    return model


def with_batch(model, batch):
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return model


class Quantizer:
    """Adds QuantizeLinear and DequantizeLinear around the operators of a network of this module."""

    def __init__(self, model, per_channel, dtype, real):
        self.model, self.per_channel, self.dtype, self.real = folded(model), per_channel, dtype, real
        graph = self.model.graph
        self.values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.nodes, self.constants, self.known = [], {}, {}
        # No quantization between an operator and its activation.
        readers = {}
        for node in graph.node:
            readers.setdefault(node.input[0], []).append(node)
        self.open = {n.output[0] for n in graph.node if n.op_type in ("Conv", "Add")
                     and [r.op_type for r in readers.get(n.output[0], [])] in (["Relu"], ["Clip"])}

    def ranges(self, given):
        """Sets the scale and zero point of each tensor from these pictures."""
        names = ["x", *(n.output[0] for n in self.model.graph.node if n.output[0] not in self.open)]
        found = session(exposed(with_batch(self.model, len(given)), names[1:]), True).run(None, {"x": given})
        self.known = {n: range_of(v.min(), v.max(), self.dtype) for n, v in zip(names, [given, *found])}
        for node in self.model.graph.node:
            if node.op_type == "Flatten":
                self.known[node.output[0]] = self.known[node.input[0]]

    def parameters(self, name):
        for key, value in zip(("scale", "zero"), self.known[name]):
            self.constants[f"{name}.{key}"] = value
        return [f"{name}.scale", f"{name}.zero"]

    def weight(self, name, data, scale, zero, axis=0):
        self.constants.update({f"{name}.q": data, f"{name}.scale": scale, f"{name}.zero": zero})
        kind = {"axis": axis} if np.ndim(scale) else {}
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}.{k}" for k in ("q", "scale", "zero")], [f"{name}.real"], **kind))
        return f"{name}.real"

    def weights(self, node):
        """The weight and bias operands of a Conv or Gemm."""
        data, scale = int8_weights(self.values[node.input[1]], self.per_channel)
        names = [self.weight(node.input[1], data, scale, np.zeros(scale.shape, dtype=np.int8))]
        sums = (scale.astype(np.float64) * float(self.known[node.input[0]][0])).astype(np.float32)
        whole = np.rint(self.values[node.input[2]] / sums.astype(np.float64)).astype(np.int32)
        return [*names, self.weight(node.input[2], whole, sums, np.zeros(sums.shape, dtype=np.int32))]

    def quantized(self):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        given, made = self.model.graph.input[0], self.model.graph.output[0]
        shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in (given, made)]
        if self.real:
            self.nodes.append(helper.make_node("QuantizeLinear", ["x", *self.parameters("x")], ["x.q"]))
        self.dequantize("x", "x.q" if self.real else "x")
        for node in self.model.graph.node:
            inputs = [self.real_of(node.input[0])]
            if node.op_type in ("Conv", "Gemm"):
                inputs += self.weights(node)
            elif node.op_type == "Clip":
                inputs += node.input[1:]
                self.constants.update({n: self.values[n] for n in node.input[1:]})
            else:
                inputs += [self.real_of(n) for n in node.input[1:]]
            name = node.output[0]
            copy = onnx.NodeProto.FromString(node.SerializeToString())
            del copy.input[:]
            copy.input.extend(inputs)
            copy.output[0] = name if name in self.open else f"{name}.result"
            self.nodes.append(copy)
            if name not in self.open:
                whole = "y" if name == "y" and not self.real else f"{name}.q"
                self.nodes.append(helper.make_node("QuantizeLinear", [copy.output[0], *self.parameters(name)], [whole]))
                if whole != "y":
                    self.dequantize(name, whole)
        ends = [("x", TensorProto.FLOAT if self.real else kind, shapes[0]), ("y", TensorProto.FLOAT if self.real else kind, shapes[1])]
        return model_of(self.nodes, ends[:1], ends[1:], self.constants, self.model.graph.name)

    def real_of(self, name):
        return name if name in self.open else f"{name}.real"

    def dequantize(self, name, whole):
        result = "y" if name == "y" else f"{name}.real"
        self.nodes.append(helper.make_node("DequantizeLinear", [whole, *self.parameters(name)], [result]))


def quantized(model, given, per_channel=True, dtype=np.int8, real=True):
    """A network of this module with QuantizeLinear and DequantizeLinear. Ranges are measured on the
    pictures `given`. Inputs and outputs are floats if `real`, otherwise integers."""
    quantizer = Quantizer(model, per_channel, dtype, real)
    quantizer.ranges(given)
    return quantizer.quantized()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=["mobilenet_v1", "resnet"])
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--resolution", type=int)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--classes", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--activation", choices=["relu", "relu6"], default="relu6")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--per-tensor", action="store_true")
    args = parser.parse_args()
    if args.per_tensor and not args.int8:
        parser.error("--per-tensor needs --int8")
    shared = dict(channels=args.channels, batch=args.batch, activation=args.activation, seed=args.seed)
    try:
        if args.network == "resnet":
            model = resnet(args.depth, args.resolution or 32, classes=args.classes or 10, **shared)
        else:
            model = mobilenet_v1(args.width, args.resolution or 224, classes=args.classes or 1000, **shared)
        if args.int8:
            side = model.graph.input[0].type.tensor_type.shape.dim[2].dim_value
            model = quantized(model, pictures((CALIBRATION_PICTURES, args.channels, side, side), args.seed), not args.per_tensor)
        onnx.checker.check_model(model)
        write_whole(args.output, model.SerializeToString())
    except (Failure, OSError) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    main()
