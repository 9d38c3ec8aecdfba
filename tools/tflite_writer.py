"""Writes TensorFlow Lite files.

Needs numpy and the schema of the Python package ai-edge-litert; TensorFlow is not needed.
"""

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

Op = schema.BuiltinOperator
Activation = schema.ActivationFunctionType
Padding = schema.Padding

# The version of an operator that takes int8, if that is not 1, for versions of TensorFlow Lite that
# check it.
VERSIONS = {
    Op.ADD: 2, Op.AVERAGE_POOL_2D: 2, Op.BATCH_MATMUL: 2, Op.CONCATENATION: 2, Op.CONV_2D: 3, Op.DEPTHWISE_CONV_2D: 3,
    Op.DEQUANTIZE: 2, Op.FULLY_CONNECTED: 4, Op.LEAKY_RELU: 2, Op.LOGISTIC: 2, Op.MAXIMUM: 2, Op.MAX_POOL_2D: 2,
    Op.MEAN: 2, Op.MINIMUM: 2, Op.MUL: 2, Op.PAD: 2, Op.PADV2: 2, Op.QUANTIZE: 2, Op.RELU: 2, Op.RELU6: 2,
    Op.RESIZE_NEAREST_NEIGHBOR: 3, Op.SOFTMAX: 2, Op.SUB: 2, Op.TANH: 2, Op.TRANSPOSE: 2, Op.TRANSPOSE_CONV: 3,
}
TYPES = {
    np.dtype(np.float32): schema.TensorType.FLOAT32, np.dtype(np.int8): schema.TensorType.INT8,
    np.dtype(np.int32): schema.TensorType.INT32, np.dtype(np.uint8): schema.TensorType.UINT8,
}


class Writer:
    """A model with one graph. Tensors are known by their index."""

    def __init__(self):
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.description = "written from ONNX"
        self.model.buffers = [schema.BufferT()]
        self.model.operatorCodes = []
        self.graph = schema.SubGraphT()
        self.graph.tensors, self.graph.operators = [], []
        self.model.subgraphs = [self.graph]
        self.codes = {}

    def tensor(self, name, shape, dtype, quantization=None, data=None):
        """Adds a tensor, which is a constant if it has data. Returns its index."""
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.type = name, np.array(shape, dtype=np.int32), TYPES[np.dtype(dtype)]
        if quantization is not None:
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale = quantization.scale
            tensor.quantization.zeroPoint = np.array(quantization.zero, dtype=np.int64)
            tensor.quantization.quantizedDimension = quantization.axis
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data, dtype=dtype).tobytes(), dtype=np.uint8)
            tensor.buffer = len(self.model.buffers)
            self.model.buffers.append(buffer)
        self.graph.tensors.append(tensor)
        return len(self.graph.tensors) - 1

    def constant(self, name, data, quantization=None):
        return self.tensor(name, data.shape, data.dtype, quantization, data)

    def operator(self, code, inputs, outputs, options=None, **fields):
        """Adds an operator. `options` is the name of its table of options, and `fields` are its values."""
        if code not in self.codes:
            entry = schema.OperatorCodeT()
            entry.builtinCode, entry.deprecatedBuiltinCode = code, min(code, 127)
            entry.version = VERSIONS.get(code, 1)
            self.codes[code] = len(self.model.operatorCodes)
            self.model.operatorCodes.append(entry)
        operator = schema.OperatorT()
        operator.opcodeIndex = self.codes[code]
        operator.inputs, operator.outputs = np.array(inputs, dtype=np.int32), np.array(outputs, dtype=np.int32)
        if options is not None:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(schema, options + "T")()
            for name, value in fields.items():
                if not hasattr(operator.builtinOptions, name):
                    raise AttributeError(f"{options} has no field {name}")
                setattr(operator.builtinOptions, name, value)
        self.graph.operators.append(operator)

    def finish(self, inputs, outputs):
        """The bytes of the file."""
        self.graph.inputs, self.graph.outputs = np.array(inputs, dtype=np.int32), np.array(outputs, dtype=np.int32)
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
