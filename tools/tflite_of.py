#!/usr/bin/env python3
"""Writes an ONNX model as a TensorFlow Lite file, for comparison with other engines.

usage: tflite_of.py MODEL.onnx -o OUT.tflite [--size NAME=N]...

The model is quantized to 8 bits with QuantizeLinear and DequantizeLinear around its operators, or
it is a float model. These operators are supported: Conv and ConvTranspose in two dimensions,
Gemm, MatMul, Add, Sub, Mul, Concat, MaxPool, AveragePool, GlobalAveragePool, ReduceMean, Softmax,
Relu, Clip, Sigmoid, Tanh, HardSwish, LeakyRelu, Pad, Resize (nearest), Reshape, Flatten, Squeeze,
Unsqueeze and Transpose. Anything else is an error that names the node.

Tensors with 4 dimensions become NHWC, including inputs and outputs. uint8 becomes int8: 128 is
subtracted from values and zero points. Symbolic sizes of inputs must be given with --size. A line
with the layout and type of each input and output is printed.

Needs numpy, onnx and ai-edge-litert. Without them, an environment is created in the cache folder.
"""

import argparse
import sys
from collections import namedtuple

import environments

if __name__ == "__main__":
    environments.need(__doc__, "numpy", "onnx", "ai_edge_litert")

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from onnx_graph import Constant, Failure, Graph, Quantization, attributes, named, round_half_away, write_whole
from tflite_operators import OPERATORS
from tflite_writer import Activation, Op, Writer

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)
# In models with any of these operators, inputs with 4 dimensions are pictures.
SPATIAL = {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "Resize"}
ACTIVATIONS = {Activation.RELU: Op.RELU, Activation.RELU6: Op.RELU6}

# A tensor: its index, its shape in ONNX, whether it is stored as NHWC, and its quantization.
Value = namedtuple("Value", "index shape nhwc quantization")
# An input or output: its name, ONNX type and shape, and whether it is stored as NHWC.
Port = namedtuple("Port", "name dtype shape nhwc")
# What follows an operator: the name of the result, its quantization, the limits of a Relu or Clip,
# and a constant that is added before these.
Ending = namedtuple("Ending", "name quantization limits bias")


def signed(data, quantization):
    """uint8 data as int8, with zero points to match; int8 stays as it is."""
    if data.dtype == np.uint8:
        shifted = (data.astype(np.int16) - 128).astype(np.int8)
        return shifted, Quantization(quantization.scale, quantization.zero - 128, quantization.axis)
    return data, quantization


def to_tflite(port, array):
    """Converts an array for the ONNX model to one for the TensorFlow Lite model."""
    if port.dtype == np.uint8:
        array = (array.astype(np.int16) - 128).astype(np.int8)
    return np.ascontiguousarray(array.transpose(TO_NHWC) if port.nhwc else array)


def to_onnx(port, array):
    """Converts an output of the TensorFlow Lite model to that of the ONNX model."""
    if port.dtype == np.uint8:
        array = (array.astype(np.int16) + 128).astype(np.uint8)
    return np.ascontiguousarray(array.transpose(TO_NCHW) if port.nhwc else array)


class Converter:
    """Converts one model. Afterwards `inputs` and `outputs` are its ports, and `data` is the file."""

    def __init__(self, model, sizes=None):
        self.graph, self.writer = Graph(model, sizes), Writer()
        self.values, self.dequantized, self.done = {}, {}, set()
        self.inputs, self.outputs = [], []
        self.pictures = any(n.op_type in SPATIAL for n in self.graph.nodes)
        for name in self.graph.inputs:
            self.add_input(name)
        for node in self.graph.nodes:
            if id(node) not in self.done:
                self.convert(node)
        results = [self.result(name) for name in self.graph.outputs]
        for name, value in zip(self.graph.outputs, results):
            self.outputs.append(Port(name, np.dtype(self.graph.types[name]), value.shape, value.nhwc))
        self.data = self.writer.finish([self.values[p.name].index for p in self.inputs], [v.index for v in results])

    def add_input(self, name):
        dtype, shape = np.dtype(self.graph.types[name]), self.graph.shape(name)
        nhwc = self.pictures and len(shape) == 4
        if dtype == np.float32:
            quantization = None
        elif dtype in (np.int8, np.uint8):
            quantization = self.input_quantization(name)
        else:
            raise Failure(f'input "{name}" has the unsupported type {dtype}')
        self.inputs.append(Port(name, dtype, shape, nhwc))
        self.values[name] = self.tensor(name, shape, nhwc, quantization)

    def input_quantization(self, name):
        for node in self.graph.readers.get(name, []):
            if node.op_type == "DequantizeLinear":
                return self.activation_quantization(node)
        raise Failure(f'input "{name}" has the type int8 or uint8, but no DequantizeLinear reads it')

    def activation_quantization(self, node):
        """The quantization that a node gives to a tensor, as int8."""
        quantization, dtype = self.graph.quantization(node, 1)
        if not quantization.per_tensor():
            raise Failure(f"{named(node)}: expected one scale, found {quantization.scale.size}")
        if dtype not in (np.int8, np.uint8):
            raise Failure(f"{named(node)}: expected int8 or uint8, found {dtype}")
        return signed(np.zeros(0, dtype=dtype), quantization)[1]

    def result(self, name):
        if name in self.dequantized:
            return self.real(name)
        if name not in self.values:
            raise Failure(f'output "{name}" is a constant or not computed')
        return self.values[name]

    # Tensors.

    def tensor(self, name, shape, nhwc, quantization):
        stored = tuple(shape[i] for i in TO_NHWC) if nhwc else tuple(shape)
        index = self.writer.tensor(name, stored, np.int8 if quantization else np.float32, quantization)
        return Value(index, tuple(shape), nhwc, quantization)

    def ints(self, name, values):
        return self.writer.constant(name, np.array(values, dtype=np.int32))

    def is_quantized(self, name):
        return name in self.dequantized

    def real(self, name):
        """A float tensor. DEQUANTIZE makes it if only its integers exist."""
        if name not in self.values:
            if name in self.graph.constants:
                data = self.graph.constants[name].floats().astype(np.float32)
                index = self.writer.constant(name, data)
                self.values[name] = Value(index, data.shape, False, None)
            else:
                given = self.dequantized[name]
                made = self.tensor(name, given.shape, given.nhwc, None)
                self.writer.operator(Op.DEQUANTIZE, [given.index], [made.index], "DequantizeOptions")
                self.values[name] = made
        return self.values[name]

    def operand(self, name, quantized, nhwc=None):
        """A tensor as an operand; with 4 dimensions, in the layout that `nhwc` asks for."""
        value = self.dequantized[name] if quantized else self.real(name)
        return value if nhwc is None else self.laid_out(value, nhwc)

    def laid_out(self, value, nhwc):
        if value.nhwc == nhwc or len(value.shape) != 4:
            return value
        name = f"transposed/{len(self.writer.graph.tensors)}"
        made = self.tensor(name, value.shape, nhwc, value.quantization)
        perm = self.ints(f"{name}/perm", TO_NHWC if nhwc else TO_NCHW)
        self.writer.operator(Op.TRANSPOSE, [value.index, perm], [made.index], "TransposeOptions")
        return made

    def rescaled(self, value, quantization):
        """A tensor of integers, requantized unless it has this quantization."""
        if value.quantization.same(quantization):
            return value
        made = self.tensor(f"rescaled/{len(self.writer.graph.tensors)}", value.shape, value.nhwc, quantization)
        self.writer.operator(Op.QUANTIZE, [value.index], [made.index], "QuantizeOptions")
        return made

    # What follows a node.

    def limits(self, node):
        """The limits of a Relu or Clip, or None for another node."""
        if node is None or node.op_type not in ("Relu", "Clip"):
            return None
        if node.op_type == "Relu":
            return 0.0, np.inf
        values = attributes(node)
        bounds = [values.get("min", -np.inf), values.get("max", np.inf)]
        for i in (1, 2):
            if len(node.input) > i and node.input[i]:
                bounds[i - 1] = float(self.graph.constants[node.input[i]].floats()) if node.input[i] in self.graph.constants else None
        if None in bounds:
            raise Failure(f"{named(node)}: its limits must be constants")
        return tuple(bounds)

    def ending(self, node, quantized, bias=False):
        """Follows the result of a node through an added constant (with `bias`), a Relu or Clip, and a
        QuantizeLinear. Returns None if `quantized`, but no QuantizeLinear follows."""
        passed, name, added = [], node.output[0], None
        reader = self.graph.only_reader(name)
        if bias and reader is not None and reader.op_type == "Add":
            other = reader.input[1 - list(reader.input).index(name)]
            if other in self.graph.constants and self.graph.constants[other].data.ndim <= 1:
                passed, name, added = [reader], reader.output[0], self.graph.constants[other]
                reader = self.graph.only_reader(name)
        limits = self.limits(reader)
        if limits is not None:
            passed, name = [*passed, reader], reader.output[0]
            reader = self.graph.only_reader(name)
        quantization = None
        if quantized:
            if reader is None or reader.op_type != "QuantizeLinear":
                return None
            passed, name = [*passed, reader], reader.output[0]
            quantization = self.activation_quantization(reader)
        self.done.update(id(n) for n in passed)
        return Ending(name, quantization, limits, added)

    def start(self, node, names, bias=False):
        """Whether a node is computed with integers, and what follows it."""
        quantized = all(self.is_quantized(n) for n in names)
        ending = self.ending(node, True, bias) if quantized else None
        if ending is None:
            return False, self.ending(node, False, bias)
        return True, ending

    def fused(self, limits):
        """The fused activation function with these limits, or None if there is none."""
        known = {(0.0, np.inf): Activation.RELU, (0.0, 6.0): Activation.RELU6, (-1.0, 1.0): Activation.RELU_N1_TO_1}
        return Activation.NONE if limits is None else known.get(limits)

    def finish(self, ending, shape, nhwc, emit, fuses=True):
        """Makes the result of an operator. `emit` writes the operator, given the index of its output
        and its activation function. Limits that cannot be fused become separate operators."""
        result = self.tensor(ending.name, shape, nhwc, ending.quantization)
        self.values[ending.name] = result
        activation = self.fused(ending.limits)
        if ending.limits is None or (fuses and activation is not None):
            emit(result.index, activation)
            return
        before = self.tensor(f"{ending.name}/before", shape, nhwc, ending.quantization)
        emit(before.index, Activation.NONE)
        self.clamp(before, result, ending)

    def clamp(self, value, result, ending):
        """Writes limits as operators."""
        activation = self.fused(ending.limits)
        if activation in ACTIVATIONS:
            self.writer.operator(ACTIVATIONS[activation], [value.index], [result.index])
            return
        bounds = [(Op.MAXIMUM, ending.limits[0]), (Op.MINIMUM, ending.limits[1])]
        bounds = [(code, bound) for code, bound in bounds if np.isfinite(bound)]
        for i, (code, bound) in enumerate(bounds):
            data, q = np.array([bound], dtype=np.float32), ending.quantization
            if q is not None:
                data = np.clip(np.rint(data / q.scale) + q.zero, -128, 127).astype(np.int8)
            limit = self.writer.constant(f"{ending.name}/bound/{i}", data, q)
            last = i == len(bounds) - 1
            made = result if last else self.tensor(f"{ending.name}/part/{i}", value.shape, value.nhwc, q)
            self.writer.operator(code, [value.index, limit], [made.index], "MaximumMinimumOptions")
            value = made

    def moved(self, node, shape, nhwc, given, emit):
        """Makes the result of an operator that moves values and keeps their quantization. QUANTIZE
        follows if the result has another one. Integers stay integers even if no QuantizeLinear
        follows."""
        ending = self.ending(node, True) if given.quantization else self.ending(node, False)
        if ending is None:
            made = self.tensor(f"{node.output[0]}/int8", shape, nhwc, given.quantization)
            emit(made.index)
            self.dequantized[node.output[0]] = made
            return
        if ending.limits is None and (ending.quantization is None or given.quantization.same(ending.quantization)):
            self.finish(ending, shape, nhwc, lambda index, _: emit(index))
            return
        made = self.tensor(f"{ending.name}/moved", shape, nhwc, given.quantization)
        emit(made.index)
        if ending.limits is not None:
            bounded = self.tensor(f"{ending.name}/bounded", shape, nhwc, given.quantization)
            self.clamp(made, bounded, ending._replace(quantization=given.quantization))
            made = bounded
        self.values[ending.name] = made
        if ending.quantization is not None:
            self.values[ending.name] = self.rescaled(made, ending.quantization)

    def moved_operand(self, name, nhwc=None):
        return self.operand(name, self.is_quantized(name), nhwc)

    # Weights.

    def weights(self, node, i, quantized, axis, perm):
        """Symmetric weights as a tensor, transposed by `perm`, and their scales in f64, or None for
        float weights. `axis` is the axis of output channels before that."""
        found = self.graph.constants.get(node.input[i])
        if found is None:
            raise Failure(f'{named(node)}: weights "{node.input[i]}" must be a constant')
        if not quantized:
            return self.writer.constant(node.input[i], found.floats().astype(np.float32).transpose(perm)), None
        if found.quantization is None:
            raise Failure(f'{named(node)}: weights "{node.input[i]}" are not quantized')
        data, q = signed(found.data, found.quantization)
        if data.dtype != np.int8:
            raise Failure(f'{named(node)}: weights "{node.input[i]}" must be int8 or uint8, found {data.dtype}')
        if q.zero.any():
            raise Failure(f'{named(node)}: weights "{node.input[i]}" must be symmetric, found zero point {q.zero.max()}')
        if not q.per_tensor() and q.axis != axis:
            raise Failure(f'{named(node)}: weights "{node.input[i]}" have scales along axis {q.axis}, expected {axis}')
        q = Quantization(q.scale, 0, perm.index(axis))
        return self.writer.constant(node.input[i], data.transpose(perm), q), q.scale.astype(np.float64)

    def bias(self, node, constant, count, given, scales):
        """A bias as int32, quantized again from real values unless it has the scale of the sums. It
        is float for float weights, and zeros if there is no bias."""
        name = f"{node.output[0]}/bias"
        if constant is None:
            constant = Constant(np.zeros(count, dtype=np.float32))
        q = constant.quantization
        flat = Constant(constant.data.reshape(-1), q and Quantization(q.scale, q.zero))
        if flat.data.size not in (1, count):
            raise Failure(f"{named(node)}: expected a bias of {count} values, found {flat.data.size}")
        if scales is None:
            return self.writer.constant(name, np.broadcast_to(flat.floats().astype(np.float32), count))
        product = scales * float(given.quantization.scale[0])
        exact = q is not None and not q.zero.any() and np.allclose(q.scale.astype(np.float64), product, rtol=1e-6, atol=0)
        whole = flat.data if exact and flat.data.dtype == np.int32 else round_half_away(flat.floats() / product)
        limits = np.iinfo(np.int32)
        data = np.broadcast_to(np.clip(whole, limits.min, limits.max).astype(np.int32), count)
        return self.writer.constant(name, data, Quantization(product.astype(np.float32)))

    # Nodes.

    def convert(self, node):
        if node.op_type == "DequantizeLinear":
            given = self.values[node.input[0]]
            q = self.activation_quantization(node)
            if given.quantization is None or not given.quantization.same(q):
                raise Failure(f"{named(node)}: its scale or zero point differs from that of \"{node.input[0]}\"")
            self.dequantized[node.output[0]] = given
        elif node.op_type == "QuantizeLinear":
            q, name = self.activation_quantization(node), node.output[0]
            given = self.moved_operand(node.input[0])
            made = self.tensor(name, given.shape, given.nhwc, q)
            self.writer.operator(Op.QUANTIZE, [given.index], [made.index], "QuantizeOptions")
            self.values[name] = made
        elif node.op_type in OPERATORS and node.domain in ("", "ai.onnx"):
            OPERATORS[node.op_type](self, node)
        else:
            domain = f" of {node.domain}" if node.domain else ""
            raise Failure(f"{named(node)}: the operator{domain} cannot be written as TensorFlow Lite")


def convert(model, sizes=None):
    """Converts an onnx.ModelProto. Raises Failure."""
    return Converter(model, sizes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N")
    args = parser.parse_args()
    sizes = {}
    for text in args.size:
        name, _, number = text.rpartition("=")
        if not name or not number.isdigit():
            parser.error(f"--size {text}: expected NAME=N")
        sizes[name] = int(number)
    try:
        made = convert(onnx.load(args.model), sizes)
        write_whole(args.output, made.data)
    except (Failure, OSError, DecodeError, onnx.shape_inference.InferenceError) as e:
        sys.exit(f"error: {args.model}: {e}")
    for kind, ports in (("input", made.inputs), ("output", made.outputs)):
        for p in ports:
            layout = "NHWC" if p.nhwc else "as in ONNX"
            print(f"{kind} {p.name} {list(p.shape)} {'int8, less 128' if p.dtype == np.uint8 else p.dtype}, {layout}")


if __name__ == "__main__":
    main()
