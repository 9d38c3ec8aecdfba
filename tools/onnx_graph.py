"""An ONNX graph whose constants are folded, with the quantization of its tensors.

Needs numpy and onnx.
"""

import os
import tempfile

import numpy as np
import onnx
from onnx import numpy_helper

from fetch_model import Failure

TYPES = {np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int32), np.dtype(np.float32)}


def named(node):
    return f"node {node.name or node.output[0]} ({node.op_type})"


def attributes(node):
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def round_half_away(x):
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


class Quantization:
    """Scales and zero points: one of each, or one for each slice along `axis`."""

    def __init__(self, scale, zero=0, axis=0):
        self.scale = np.atleast_1d(np.asarray(scale, dtype=np.float32))
        self.zero = np.broadcast_to(np.asarray(zero, dtype=np.int64), self.scale.shape)
        self.axis = axis

    def per_tensor(self):
        return self.scale.size == 1

    def same(self, other):
        return (other is not None and self.scale.tolist() == other.scale.tolist()
                and self.zero.tolist() == other.zero.tolist())


class Constant:
    """A constant array: floats, or integers with their quantization."""

    def __init__(self, data, quantization=None):
        self.data, self.quantization = data, quantization

    def floats(self):
        """The real values in f64."""
        if self.quantization is None:
            return self.data.astype(np.float64)
        q, shape = self.quantization, [1] * self.data.ndim
        if not q.per_tensor():
            shape[q.axis] = -1
        scale, zero = q.scale.astype(np.float64), q.zero
        if q.per_tensor():
            return (self.data.astype(np.float64) - zero[0]) * scale[0]
        return (self.data.astype(np.float64) - zero.reshape(shape)) * scale.reshape(shape)


class Graph:
    """Nodes in order, constants, and the shape of each tensor.

    `sizes` gives values to the symbols of inputs. Constant, Identity and Dropout are resolved, and
    Q and DQ of constants are folded.
    """

    def __init__(self, model, sizes=None):
        model = onnx.ModelProto.FromString(model.SerializeToString())
        self.set_sizes(model.graph, sizes or {})
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        graph = model.graph
        self.constants = {t.name: Constant(numpy_helper.to_array(t)) for t in graph.initializer}
        self.inputs = [v.name for v in graph.input if v.name not in self.constants]
        self.outputs = [v.name for v in graph.output]
        self.types, self.shapes, self.aliases = {}, {}, {}
        for value in [*graph.input, *graph.value_info, *graph.output]:
            kind = value.type.tensor_type
            self.types[value.name] = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            if kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim):
                self.shapes[value.name] = tuple(d.dim_value for d in kind.shape.dim)
        self.nodes = [n for n in graph.node if not self.resolved(n)]
        self.producers = {name: n for n in self.nodes for name in n.output}
        self.readers = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    @staticmethod
    def set_sizes(graph, sizes):
        constants = {t.name for t in graph.initializer}
        for value in graph.input:
            for axis, d in enumerate(value.type.tensor_type.shape.dim):
                if d.HasField("dim_param") and d.dim_param in sizes:
                    d.dim_value = sizes[d.dim_param]
                elif not d.HasField("dim_value") and value.name not in constants:
                    unknown = d.dim_param or f"of axis {axis}"
                    raise Failure(f'input "{value.name}" has the unknown size {unknown}; TensorFlow Lite needs fixed sizes')
        # Sizes that were inferred with symbols would contradict the new ones.
        del graph.value_info[:]
        for value in graph.output:
            value.type.tensor_type.ClearField("shape")

    def resolved(self, node):
        """Names of inputs are replaced. True if the node itself is not needed any more."""
        for i, name in enumerate(node.input):
            node.input[i] = self.aliases.get(name, name)
        if node.op_type == "Constant":
            values = attributes(node)
            if "value" in values:
                data = numpy_helper.to_array(values["value"])
            elif "value_float" in values or "value_floats" in values:
                data = np.array(values.get("value_float", values.get("value_floats")), dtype=np.float32)
            elif "value_int" in values or "value_ints" in values:
                data = np.array(values.get("value_int", values.get("value_ints")), dtype=np.int64)
            else:
                raise Failure(f"{named(node)}: expected numbers, found {', '.join(values)}")
            self.constants[node.output[0]] = Constant(data)
            return True
        if node.op_type in ("Identity", "Dropout") and node.output[0] not in self.outputs:
            self.aliases[node.output[0]] = node.input[0]
            return True
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[0] in self.constants:
            given = self.constants[node.input[0]]
            quantization, dtype = self.quantization(node, given.data.ndim)
            if node.op_type == "QuantizeLinear":
                given = quantized(given.floats(), quantization, dtype)
            self.constants[node.output[0]] = Constant(given.data, quantization)
            return True
        return False

    def quantization(self, node, rank):
        """Scales and zero points of a QuantizeLinear or DequantizeLinear, and the type that it has
        on its quantized side."""
        values = attributes(node)
        if values.get("block_size"):
            raise Failure(f"{named(node)}: quantization in blocks is not supported")
        scale = self.constant(node, 1)
        zero = self.constant(node, 2) if len(node.input) > 2 and node.input[2] else None
        if zero is not None:
            dtype = zero.dtype
        elif node.op_type == "DequantizeLinear":
            given = self.constants.get(node.input[0])
            dtype = given.data.dtype if given else np.dtype(self.types[node.input[0]])
        else:
            kind = values.get("output_dtype") or onnx.TensorProto.UINT8
            dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind))
        if dtype not in TYPES or dtype == np.float32:
            raise Failure(f"{named(node)}: expected int8, uint8 or int32, found {dtype}")
        axis = values.get("axis", 1)
        axis = (axis + rank) % rank if rank else 0
        return Quantization(scale.reshape(-1), 0 if zero is None else zero.reshape(-1), axis), dtype

    def constant(self, node, i):
        """The array of a constant operand."""
        found = self.constants.get(node.input[i])
        if found is None:
            raise Failure(f'{named(node)}: input "{node.input[i]}" must be a constant')
        return found.data

    def optional(self, node, i, default=None):
        return self.constant(node, i) if len(node.input) > i and node.input[i] else default

    def shape(self, name):
        if name in self.constants:
            return self.constants[name].data.shape
        if name not in self.shapes:
            raise Failure(f'the shape of "{name}" is not known; TensorFlow Lite needs fixed sizes')
        return self.shapes[name]

    def only_reader(self, name):
        """The node that reads a tensor, if nothing else does."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None


def quantized(floats, quantization, dtype):
    """Integers that are nearest to real values, ties to even."""
    shape = [1] * floats.ndim
    if not quantization.per_tensor():
        shape[quantization.axis] = -1
    scale, zero = (v if quantization.per_tensor() else v.reshape(shape) for v in (quantization.scale, quantization.zero))
    limits = np.iinfo(dtype)
    whole = np.rint(floats.astype(np.float32) / scale) + zero
    return Constant(np.clip(whole, limits.min, limits.max).astype(dtype).reshape(floats.shape), quantization)


def write_whole(path, content):
    """Writes a file, or leaves what was there."""
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".part-", delete=False) as part:
        try:
            part.write(content)
            part.close()
            os.chmod(part.name, 0o644)
            os.replace(part.name, path)
        except BaseException:
            os.unlink(part.name)
            raise
