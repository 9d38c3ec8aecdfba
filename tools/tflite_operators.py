"""How tflite_of.py writes each operator of ONNX.

Each function takes the converter and a node. It adds the operator, and what it takes with it of the
nodes that follow.
"""

import numpy as np

from onnx_graph import Failure, Quantization, attributes, named
from tflite_writer import Activation, Op, Padding

AXIS_NHWC = {0: 0, 1: 3, 2: 1, 3: 2}
FUNCTIONS = {"Softmax": Op.SOFTMAX, "LeakyRelu": Op.LEAKY_RELU, "Sigmoid": Op.LOGISTIC, "Tanh": Op.TANH, "HardSwish": Op.HARD_SWISH}
# Operators that TensorFlow Lite computes with one output quantization only: scale and zero point.
FIXED_OUTPUT = {"Softmax": (1 / 256, -128), "Sigmoid": (1 / 256, -128), "Tanh": (1 / 128, 0)}


# Windows.


def windows(node, given, kernel):
    """Strides, dilations and pads (top, left, bottom, right) of a window over an NCHW tensor."""
    values = attributes(node)
    if len(given.shape) != 4:
        raise Failure(f"{named(node)}: expected 4 dimensions, found {len(given.shape)}")
    strides, dilations = values.get("strides", [1, 1]), values.get("dilations", [1, 1])
    pads, auto = values.get("pads", [0, 0, 0, 0]), values.get("auto_pad", b"NOTSET").decode()
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        total = same_pads(given.shape[2:], kernel, strides, dilations)
        low = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in total]
        pads = [*low, *(t - b for t, b in zip(total, low))]
    return list(strides), list(dilations), list(pads)


def same_pads(sizes, kernel, strides, dilations):
    """Rows and columns that padding of kind SAME adds in total."""
    return [max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0) for n, k, s, d in zip(sizes, kernel, strides, dilations)]


def padded(c, node, given, kernel, strides, dilations, pads, lowest=False, count=False):
    """The kind of padding, and the tensor, around which other pads were added by an operator. They
    are the lowest value or zeros, which a mean may have to count."""
    total = same_pads(given.shape[2:], kernel, strides, dilations)
    if not any(pads):
        return Padding.VALID, given
    if not count and pads == [t // 2 for t in total] + [t - t // 2 for t in total]:
        return Padding.SAME, given
    if min(pads) < 0:
        raise Failure(f"{named(node)}: negative pads {pads} are not supported")
    n, ch, h, w = given.shape
    shape = (n, ch, h + pads[0] + pads[2], w + pads[1] + pads[3])
    made = c.tensor(f"{node.output[0]}/padded", shape, True, given.quantization)
    amounts = c.ints(f"{node.output[0]}/pads", [[0, 0], [pads[0], pads[2]], [pads[1], pads[3]], [0, 0]])
    if lowest:
        data = np.array([-128], dtype=np.int8) if given.quantization else np.array([np.finfo(np.float32).min])
        value = c.writer.constant(f"{node.output[0]}/pad", data if given.quantization else data.astype(np.float32), given.quantization)
        c.writer.operator(Op.PADV2, [given.index, amounts, value], [made.index], "PadV2Options")
    else:
        c.writer.operator(Op.PAD, [given.index, amounts], [made.index], "PadOptions")
    return Padding.VALID, made


def conv(c, node):
    group, kernel = attributes(node).get("group", 1), c.graph.shape(node.input[1])
    if len(kernel) != 4:
        raise Failure(f"{named(node)}: expected a convolution in two dimensions, found {len(kernel) - 2}")
    quantized, ending = c.start(node, node.input[:1])
    given = c.operand(node.input[0], quantized, nhwc=True)
    strides, dilations, pads = windows(node, given, kernel[2:])
    depthwise = group == given.shape[1] and group > 1
    weights, scales = c.weights(node, 1, quantized, 0, (1, 2, 3, 0) if depthwise else (0, 2, 3, 1))
    constant = c.graph.constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if constant is None and len(node.input) > 2 and node.input[2]:
        raise Failure(f"{named(node)}: its bias must be a constant")
    bias = c.bias(node, constant, kernel[0], given, scales)
    padding, given = padded(c, node, given, kernel[2:], strides, dilations, pads)
    fields = dict(padding=padding, strideH=strides[0], strideW=strides[1],
                  dilationHFactor=dilations[0], dilationWFactor=dilations[1])

    def emit(index, activation):
        if depthwise:
            c.writer.operator(Op.DEPTHWISE_CONV_2D, [given.index, weights, bias], [index], "DepthwiseConv2DOptions",
                              depthMultiplier=kernel[0] // group, fusedActivationFunction=activation, **fields)
        else:
            c.writer.operator(Op.CONV_2D, [given.index, weights, bias], [index], "Conv2DOptions",
                              fusedActivationFunction=activation, **fields)

    c.finish(ending, c.graph.shape(node.output[0]), True, emit)


def conv_transpose(c, node):
    kernel = c.graph.shape(node.input[1])
    values = attributes(node)
    if len(kernel) != 4 or values.get("group", 1) != 1 or any(d != 1 for d in values.get("dilations", [])):
        raise Failure(f"{named(node)}: expected two dimensions, one group and no dilation")
    quantized, ending = c.start(node, node.input[:1])
    given, shape = c.operand(node.input[0], quantized, nhwc=True), c.graph.shape(node.output[0])
    strides, _, pads = windows(node, given, kernel[2:])
    if values.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or "output_shape" in values:
        raise Failure(f"{named(node)}: auto_pad and output_shape are not supported")
    total = [max((n - 1) * s + k - o, 0) for n, s, k, o in zip(given.shape[2:], strides, kernel[2:], shape[2:])]
    whole = [(n - 1) * s + k for n, s, k in zip(given.shape[2:], strides, kernel[2:])]
    same = pads[:2] == [t // 2 for t in total] and all(-(-o // s) == n for o, s, n in zip(shape[2:], strides, given.shape[2:]))
    if list(shape[2:]) == whole and not any(pads):
        padding = Padding.VALID
    elif same:
        padding = Padding.SAME
    else:
        raise Failure(f"{named(node)}: pads {pads} are not expressible as padding SAME or VALID")
    weights, scales = c.weights(node, 1, quantized, 1, (1, 2, 3, 0))
    constant = c.graph.constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    bias = c.bias(node, constant, kernel[1], given, scales)
    size = c.ints(f"{node.output[0]}/shape", [shape[i] for i in (0, 2, 3, 1)])

    def emit(index, _):
        c.writer.operator(Op.TRANSPOSE_CONV, [size, weights, given.index, bias], [index], "TransposeConvOptions",
                          padding=padding, strideH=strides[0], strideW=strides[1])

    c.finish(ending, shape, True, emit, fuses=False)


def pool(c, node):
    values, maximum = attributes(node), node.op_type == "MaxPool"
    kernel = values["kernel_shape"]
    if len(node.output) > 1 and node.output[1]:
        raise Failure(f"{named(node)}: indices are not supported")
    given = c.moved_operand(node.input[0], nhwc=True)
    strides, dilations, pads = windows(node, given, kernel)
    shape = c.graph.shape(node.output[0])
    floors = tuple((n + pads[i] + pads[i + 2] - kernel[i]) // strides[i] + 1 for i, n in enumerate(given.shape[2:]))
    if shape[2:] != floors or any(d != 1 for d in dilations):
        raise Failure(f"{named(node)}: ceil_mode and dilations are not supported")
    count = not maximum and values.get("count_include_pad", 0) == 1
    padding, given = padded(c, node, given, kernel, strides, dilations, pads, lowest=maximum, count=count)
    if not maximum and not count and any(pads) and padding != Padding.SAME:
        raise Failure(f"{named(node)}: pads {pads} are not those of TensorFlow's padding SAME, and must not be counted")

    def emit(index, activation=Activation.NONE):
        c.writer.operator(Op.MAX_POOL_2D if maximum else Op.AVERAGE_POOL_2D, [given.index], [index], "Pool2DOptions",
                          padding=padding, strideH=strides[0], strideW=strides[1], filterHeight=kernel[0],
                          filterWidth=kernel[1], fusedActivationFunction=activation)

    if maximum:
        c.moved(node, shape, True, given, emit)
        return
    ending = c.ending(node, given.quantization is not None)
    if ending is None:
        raise Failure(f"{named(node)}: expected a QuantizeLinear after it")
    if given.quantization and not given.quantization.same(ending.quantization):
        raise Failure(f"{named(node)}: its input and output must have the same scale and zero point")
    c.finish(ending, shape, True, emit)


def mean(c, node):
    values, rank = attributes(node), len(c.graph.shape(node.input[0]))
    if node.op_type == "GlobalAveragePool":
        axes, keep = list(range(2, rank)), 1
    else:
        given_axes = values.get("axes")
        if given_axes is None:
            given_axes = c.graph.optional(node, 1)
        axes = sorted(int(a) % rank for a in (range(rank) if given_axes is None or len(given_axes) == 0 else given_axes))
        keep = values.get("keepdims", 1)
    quantized, ending = c.start(node, node.input[:1])
    given = c.operand(node.input[0], quantized)
    spatial = given.nhwc and (keep or axes == [2, 3])
    if given.nhwc and not spatial:
        given = c.laid_out(given, False)
    where = c.ints(f"{node.output[0]}/axes", sorted(AXIS_NHWC[a] for a in axes) if given.nhwc else axes)
    nhwc = given.nhwc and bool(keep)
    c.finish(ending, c.graph.shape(node.output[0]), nhwc, lambda index, _: c.writer.operator(
        Op.MEAN, [given.index, where], [index], "ReducerOptions", keepDims=bool(keep)), fuses=False)


def resize(c, node):
    values = attributes(node)
    mode, where = values.get("mode", b"nearest").decode(), values.get("coordinate_transformation_mode", b"half_pixel").decode()
    nearest = values.get("nearest_mode", b"round_prefer_floor").decode()
    given = c.moved_operand(node.input[0], nhwc=True)
    shape = c.graph.shape(node.output[0])
    if mode != "nearest" or len(shape) != 4 or shape[:2] != given.shape[:2]:
        raise Failure(f"{named(node)}: expected nearest neighbours over height and width, found mode {mode}")
    whole = all(o % n == 0 for o, n in zip(shape[2:], given.shape[2:]))
    half = where == "half_pixel" and (nearest == "round_prefer_ceil" or nearest == "round_prefer_floor" and whole)
    if not half and not (where == "asymmetric" and nearest == "floor"):
        raise Failure(f"{named(node)}: coordinates {where} with nearest_mode {nearest} are not supported")
    size = c.ints(f"{node.output[0]}/size", shape[2:])
    c.moved(node, shape, True, given, lambda index: c.writer.operator(
        Op.RESIZE_NEAREST_NEIGHBOR, [given.index, size], [index], "ResizeNearestNeighborOptions",
        alignCorners=False, halfPixelCenters=half))


# Matrices.


def fully_connected(c, node, transposed, constant):
    """A matmul with constant weights, whose rows are output channels if `transposed`."""
    quantized, ending = c.start(node, node.input[:1], bias=constant is None)
    given, kernel = c.operand(node.input[0], quantized, nhwc=False), c.graph.shape(node.input[1])
    if len(kernel) != 2:
        raise Failure(f"{named(node)}: expected weights of 2 dimensions, found {len(kernel)}")
    if constant is None:
        constant = ending.bias
    weights, scales = c.weights(node, 1, quantized, 0 if transposed else 1, (0, 1) if transposed else (1, 0))
    bias = c.bias(node, constant, kernel[0 if transposed else 1], given, scales)
    shape = c.graph.shape(node.output[0])

    def emit(index, activation):
        c.writer.operator(Op.FULLY_CONNECTED, [given.index, weights, bias], [index], "FullyConnectedOptions",
                          fusedActivationFunction=activation, keepNumDims=len(shape) > 2)

    c.finish(ending, shape, False, emit)


def gemm(c, node):
    values = attributes(node)
    if values.get("transA", 0) or values.get("alpha", 1.0) != 1.0 or values.get("beta", 1.0) != 1.0:
        raise Failure(f"{named(node)}: transA, alpha and beta are not supported")
    constant = None
    if len(node.input) > 2 and node.input[2]:
        constant = c.graph.constants.get(node.input[2])
        if constant is None or constant.data.size not in (1, c.graph.shape(node.output[0])[-1]):
            raise Failure(f"{named(node)}: its bias must be a constant of one value for each column")
    fully_connected(c, node, bool(values.get("transB", 0)), constant)


def matmul(c, node):
    if node.input[1] in c.graph.constants:
        fully_connected(c, node, False, None)
        return
    if node.input[0] in c.graph.constants:
        raise Failure(f"{named(node)}: a constant on the left is not supported")
    quantized, ending = c.start(node, node.input[:2])
    given = [c.operand(name, quantized, nhwc=False) for name in node.input[:2]]
    if min(len(v.shape) for v in given) < 2:
        raise Failure(f"{named(node)}: vectors are not supported")
    c.finish(ending, c.graph.shape(node.output[0]), False, lambda index, _: c.writer.operator(
        Op.BATCH_MATMUL, [v.index for v in given], [index], "BatchMatMulOptions", adjX=False, adjY=False), fuses=False)


# Elementwise.


def operand_constant(c, node, name, quantized, nhwc, rank):
    """The index of a constant operand that is broadcast."""
    found = c.graph.constants[name]
    if quantized and found.quantization is None:
        raise Failure(f'{named(node)}: the constant "{name}" is not quantized')
    if not quantized:
        data, q = found.floats().astype(np.float32), None
    else:
        data, q = (found.data, found.quantization) if found.data.dtype == np.int8 else (
            (found.data.astype(np.int16) - 128).astype(np.int8), Quantization(found.quantization.scale, found.quantization.zero - 128))
        if not q.per_tensor() or found.data.dtype not in (np.int8, np.uint8):
            raise Failure(f'{named(node)}: the constant "{name}" must be int8 or uint8 with one scale')
    if nhwc and data.ndim:
        data = data.reshape((1,) * (rank - data.ndim) + data.shape).transpose(0, 2, 3, 1)
    return c.writer.constant(f"{node.output[0]}/{name}", data, q)


def binary(c, node):
    names = list(node.input)
    variable = [n for n in names if n not in c.graph.constants]
    if not variable:
        raise Failure(f"{named(node)}: both operands are constants")
    fixed = [c.graph.constants[n] for n in names if n in c.graph.constants]
    if any(k.quantization is None for k in fixed):
        quantized, ending = False, c.ending(node, False)
    else:
        quantized, ending = c.start(node, variable)
    given = {n: c.operand(n, quantized) for n in variable}
    shape = c.graph.shape(node.output[0])
    nhwc = any(v.nhwc for v in given.values())
    if nhwc and any(len(v.shape) not in (0, 4) for v in given.values()):
        raise Failure(f"{named(node)}: operands of 4 and fewer dimensions are not supported together")
    given = {n: c.laid_out(v, nhwc).index for n, v in given.items()}
    inputs = [given[n] if n in given else operand_constant(c, node, n, quantized, nhwc, len(shape)) for n in names]
    code, options = {"Add": (Op.ADD, "AddOptions"), "Sub": (Op.SUB, "SubOptions"), "Mul": (Op.MUL, "MulOptions")}[node.op_type]
    c.finish(ending, shape, nhwc, lambda index, activation: c.writer.operator(
        code, inputs, [index], options, fusedActivationFunction=activation))


def unary(c, node):
    values = attributes(node)
    quantized, ending = c.start(node, node.input[:1])
    given = c.operand(node.input[0], quantized)
    options, fields = None, {}
    if node.op_type == "Softmax":
        rank = len(given.shape)
        if values.get("axis", -1) % rank != rank - 1:
            raise Failure(f"{named(node)}: expected the last axis, found {values['axis']}")
        given, options, fields = c.laid_out(given, False), "SoftmaxOptions", {"beta": 1.0}
    elif node.op_type == "LeakyRelu":
        options, fields = "LeakyReluOptions", {"alpha": values.get("alpha", 0.01)}
    wanted = FIXED_OUTPUT.get(node.op_type)
    if quantized and wanted and not ending.quantization.same(Quantization(*wanted)):
        raise Failure(f"{named(node)}: its result must have the scale {wanted[0]} and, as int8, the zero point {wanted[1]}")
    c.finish(ending, given.shape, given.nhwc, lambda index, _: c.writer.operator(
        FUNCTIONS[node.op_type], [given.index], [index], options, **fields), fuses=False)


def clip(c, node):
    """A Relu or Clip that no operator before it has taken along."""
    limits = c.limits(node)
    quantized, ending = c.start(node, node.input[:1])
    if ending.limits is not None:
        raise Failure(f"{named(node)}: one activation function after another is not supported")
    given = c.operand(node.input[0], quantized)
    ending = ending._replace(limits=limits)
    result = c.tensor(ending.name, given.shape, given.nhwc, ending.quantization)
    if quantized and not given.quantization.same(ending.quantization) and c.fused(limits) not in (Activation.RELU, Activation.RELU6):
        raise Failure(f"{named(node)}: its input and output must have the same scale and zero point")
    c.clamp(given, result, ending)
    c.values[ending.name] = result


# Moves.


def concat(c, node):
    names, shape = list(node.input), c.graph.shape(node.output[0])
    if any(n in c.graph.constants for n in names):
        raise Failure(f"{named(node)}: constants are not supported")
    quantized, ending = c.start(node, names)
    given = [c.operand(n, quantized) for n in names]
    nhwc = any(v.nhwc for v in given)
    given = [c.laid_out(v, nhwc) for v in given]
    if quantized:
        given = [c.rescaled(v, ending.quantization) for v in given]
    axis = attributes(node)["axis"] % len(shape)
    c.finish(ending, shape, nhwc, lambda index, _: c.writer.operator(
        Op.CONCATENATION, [v.index for v in given], [index], "ConcatenationOptions",
        axis=AXIS_NHWC[axis] if nhwc else axis), fuses=False)


def pad(c, node):
    values, given = attributes(node), c.moved_operand(node.input[0])
    rank = len(given.shape)
    if values.get("mode", b"constant") != b"constant":
        raise Failure(f"{named(node)}: expected constant values, found mode {values['mode'].decode()}")
    pads = [int(p) for p in c.graph.constant(node, 1)]
    axes = c.graph.optional(node, 3, np.arange(rank))
    amounts = np.zeros((rank, 2), dtype=np.int32)
    for i, axis in enumerate(axes):
        amounts[int(axis) % rank] = pads[i], pads[i + len(axes)]
    if amounts.min() < 0:
        raise Failure(f"{named(node)}: negative pads {pads} are not supported")
    if given.nhwc:
        amounts = amounts[[0, 2, 3, 1]]
    inputs, code = [given.index, c.ints(f"{node.output[0]}/pads", amounts)], Op.PAD
    found = c.graph.constants.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    value = 0.0 if found is None else float(found.floats().reshape(-1)[0])
    if value != 0:
        data, q = np.array([value], dtype=np.float32), given.quantization
        if q is not None:
            data = np.clip(np.rint(data / q.scale) + q.zero, -128, 127).astype(np.int8)
        inputs, code = [*inputs, c.writer.constant(f"{node.output[0]}/value", data, q)], Op.PADV2
    c.moved(node, c.graph.shape(node.output[0]), given.nhwc, given, lambda index: c.writer.operator(
        code, inputs, [index], "PadOptions" if code == Op.PAD else "PadV2Options"))


def reshape(c, node):
    given, shape = c.moved_operand(node.input[0]), c.graph.shape(node.output[0])
    if not (given.nhwc and given.shape[2:] == (1, 1)):
        given = c.laid_out(given, False)
    size = c.ints(f"{node.output[0]}/shape", shape)
    c.moved(node, shape, False, given, lambda index: c.writer.operator(
        Op.RESHAPE, [given.index, size], [index], "ReshapeOptions", newShape=np.array(shape, dtype=np.int32)))


def transpose(c, node):
    given = c.moved_operand(node.input[0], nhwc=False)
    rank = len(given.shape)
    perm = c.ints(f"{node.output[0]}/perm", attributes(node).get("perm", list(range(rank))[::-1]))
    c.moved(node, c.graph.shape(node.output[0]), False, given, lambda index: c.writer.operator(
        Op.TRANSPOSE, [given.index, perm], [index], "TransposeOptions"))


OPERATORS = {
    "Conv": conv, "ConvTranspose": conv_transpose, "Gemm": gemm, "MatMul": matmul, "Add": binary, "Sub": binary,
    "Mul": binary, "Concat": concat, "MaxPool": pool, "AveragePool": pool, "GlobalAveragePool": mean,
    "ReduceMean": mean, "Softmax": unary, "Sigmoid": unary, "Tanh": unary, "HardSwish": unary, "LeakyRelu": unary,
    "Relu": clip, "Clip": clip, "Pad": pad, "Resize": resize, "Reshape": reshape, "Flatten": reshape,
    "Squeeze": reshape, "Unsqueeze": reshape, "Transpose": transpose,
}
