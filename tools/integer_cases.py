"""Small quantized models and their inputs, which integer_vectors.py runs.

Inputs and outputs of a model are integers. DequantizeLinear follows each input, and QuantizeLinear
precedes each output. Random numbers have a fixed seed per case.
"""

import zlib

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import made_cnn
from made_cnn import model_of

CODES = np.arange(256)
KINDS = {np.dtype(np.int8): TensorProto.INT8, np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.float32): TensorProto.FLOAT}


class Case:
    """A model that is built node by node, and its inputs."""

    def __init__(self, name):
        self.name, self.nodes, self.constants = name, [], {}
        self.inputs, self.outputs, self.model = {}, {}, None
        self.random = np.random.default_rng(zlib.crc32(name.encode()))

    def node(self, kind, inputs, **attributes):
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name, value):
        self.constants[name] = np.asarray(value)
        return name

    def integers(self, name, data, scale, zero, **kinds):
        """Adds a DequantizeLinear of a constant."""
        names = [self.constant(name, data), self.constant(f"{name}.scale", np.float32(scale)),
                 self.constant(f"{name}.zero", np.full(np.shape(scale), zero, dtype=data.dtype))]
        return self.node("DequantizeLinear", names, **kinds)

    def input(self, shape, scale, zero, dtype=np.int8, data=None):
        """Adds an input and its DequantizeLinear. Its values are random unless `data` is given."""
        name, limits = f"x{len(self.inputs)}", np.iinfo(dtype)
        if data is None:
            data = self.random.integers(limits.min, limits.max, shape, endpoint=True)
        self.inputs[name] = data.astype(dtype)
        self.constants.update({f"{name}.scale": np.float32(scale), f"{name}.zero": dtype(zero)})
        return self.node("DequantizeLinear", [name, f"{name}.scale", f"{name}.zero"])

    def output(self, name, scale, zero, dtype=np.int8):
        made = f"y{len(self.outputs)}"
        self.constants.update({f"{made}.scale": np.float32(scale), f"{made}.zero": dtype(zero)})
        self.nodes.append(helper.make_node("QuantizeLinear", [name, f"{made}.scale", f"{made}.zero"], [made]))
        self.outputs[made] = np.dtype(dtype)
        return self

    def finished(self):
        if self.model is None:
            ends = [[(k, KINDS[np.dtype(v.dtype)], v.shape) for k, v in self.inputs.items()],
                    [(k, KINDS[d], None) for k, d in self.outputs.items()]]
            self.model = model_of(self.nodes, *ends, self.constants, self.name)
        return self


# Scales and zero points of an operator's input and output. If scales are powers of two, multipliers
# are too, and many sums are ties, exactly halfway between two results.
USUAL = dict(sx=0.0217, zx=-7, sy=0.0531, zy=11)
TIES = dict(sx=2.0**-5, zx=-3, sy=2.0**-4, zy=5)


def weights_of(case, shape, axis, per_channel, ties, top=24):
    """Weights in [-top, top], and their scales."""
    data = case.random.integers(-top, top, shape, endpoint=True).astype(np.int8)
    count = shape[axis] if per_channel else 1
    scale = 2.0 ** case.random.integers(-5, -3, count, endpoint=True) if ties else case.random.uniform(0.02, 0.09, count)
    return data, (scale if per_channel else scale[0]).astype(np.float32)


def activated(case, name, activation):
    if activation == "relu":
        return case.node("Relu", [name])
    if activation is not None:
        bounds = (0.0, 6.0) if activation == "relu6" else activation
        return case.node("Clip", [name, *(case.constant(k, np.float32(v)) for k, v in zip(("low", "high"), bounds))])
    return name


def biased(case, scale, sx, count, bias):
    """The bias operand, if any: integers with the scale of the sums, or floats."""
    sums = np.float32(scale) * np.float32(sx)
    whole = case.random.integers(-400, 400, count, endpoint=True).astype(np.int32)
    if bias == "int32":
        kind = {"axis": 0} if np.ndim(sums) else {}
        return [case.integers("b", whole, sums, 0, **kind)]
    return [case.constant("b", (whole * sums).astype(np.float32))] if bias == "float" else []


def conv(name, channels, size, kernel=3, stride=1, pads=None, group=1, dilation=1, activation=None, per_channel=False,
         ties=False, top=24, bias="int32", dtype=np.int8, batch=1, weights=None, **given):
    """A convolution. `pads` is a list, or None for TensorFlow's SAME padding."""
    case, q = Case(name), {**(TIES if ties else USUAL), **given}
    if dtype == np.uint8:
        q = {**q, **{k: q[k] + 128 for k in ("zx", "zy") if k not in given}}
    last, out = channels
    kernel = [kernel, kernel] if np.ndim(kernel) == 0 else kernel
    if pads is None:
        total = [max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0) for k in kernel]
        pads = [t // 2 for t in total] + [t - t // 2 for t in total]
    x = case.input((batch, last, size, size), q["sx"], q["zx"], dtype)
    data, scale = weights_of(case, (out, last // group, *kernel), 0, per_channel, ties, top)
    if weights is not None:
        data, scale = weights(case, data, scale)
    operands = [x, case.integers("w", data, scale, 0, **({"axis": 0} if per_channel else {})),
                *biased(case, scale, q["sx"], out, bias)]
    y = case.node("Conv", operands, kernel_shape=kernel, strides=[stride, stride], pads=pads, group=group,
                  dilations=[dilation, dilation])
    return case.output(activated(case, y, activation), q["sy"], q["zy"], dtype)


def large_sums(case, data, scale):
    """Weights and inputs whose sums exceed 2^24, so that f32 does not represent all of them."""
    lowest = np.array([-100, 0, 60, 110]).reshape(2, 2)
    case.inputs["x0"] = case.random.integers(lowest, 127, case.inputs["x0"].shape, endpoint=True).astype(np.int8)
    return case.random.integers(60, 127, data.shape, endpoint=True).astype(np.int8), scale


def extreme_scales(case, data, scale):
    """Scales for multipliers from above 4 down to below 2^-32, and a channel of zero weights."""
    scale = (2.0 ** np.array([2, 1, 0, -2, -8, -16, -32, -24], dtype=np.float64) * 1.37).astype(np.float32)
    data[7] = 0
    return data, scale


def lowest_weights(case, data, scale):
    return np.where(case.random.random(data.shape) < 0.3, -128, data).astype(np.int8), scale


def convolutions():
    u8 = dict(dtype=np.uint8)
    yield conv("conv_1x1", (5, 10), 9, 1)
    yield conv("conv_1x1_ties", (5, 10), 9, 1, ties=True, top=8)
    yield conv("conv_1x1_per_channel", (10, 12), 8, 1, per_channel=True)
    yield conv("conv_3x3_same", (3, 8), 9, activation="relu")
    yield conv("conv_3x3_same_ties", (3, 8), 9, ties=True, top=6)
    yield conv("conv_3x3_per_channel_ties", (3, 10), 9, ties=True, top=6, per_channel=True)
    yield conv("conv_3x3_stride_2", (5, 14), 14, stride=2, per_channel=True, activation="relu6")
    yield conv("conv_3x3_stride_2_odd", (3, 12), 15, stride=2, ties=True, top=6)
    yield conv("conv_3x3_pads", (3, 12), 12, stride=2, pads=[1, 1, 1, 1], per_channel=True)
    yield conv("conv_3x3_pads_uneven", (5, 8), 8, pads=[0, 2, 1, 3], ties=True, top=5)
    yield conv("conv_3x3_valid", (4, 8), 11, pads=[0, 0, 0, 0], per_channel=True, activation="relu")
    yield conv("conv_3x3_dilated", (3, 8), 10, dilation=2, per_channel=True)
    yield conv("conv_3x1", (5, 8), 9, kernel=[3, 1], ties=True, top=8)
    yield conv("conv_5x5_stride_2", (3, 10), 15, kernel=5, stride=2, top=12, per_channel=True, ties=True)
    yield conv("conv_groups", (6, 10), 9, group=2, per_channel=True)
    yield conv("conv_groups_ties", (8, 12), 8, group=4, ties=True, top=8)
    yield conv("conv_zero_points_low_high", (5, 8), 9, zx=-128, zy=127, sx=0.01, per_channel=True)
    yield conv("conv_zero_points_high_low", (5, 8), 9, zx=127, zy=-128, sx=0.01, ties=False)
    yield conv("conv_relu6_ties", (3, 12), 8, ties=True, top=6, activation="relu6", zy=-120)
    yield conv("conv_clip", (3, 12), 8, per_channel=True, activation=(-1.0, 2.5))
    yield conv("conv_uint8", (3, 8), 9, activation="relu", per_channel=True, **u8)
    yield conv("conv_uint8_ties", (3, 8), 9, ties=True, top=6, **u8)
    yield conv("conv_uint8_zero_points", (5, 8), 9, zx=255, zy=0, sx=0.01, **u8)
    yield conv("conv_no_bias", (5, 8), 9, bias=None)
    yield conv("conv_float_bias", (5, 8), 9, bias="float", per_channel=True)
    yield conv("conv_weights_of_minus_128", (5, 8), 8, per_channel=True, weights=lowest_weights, sy=0.3)
    yield conv("conv_multipliers_from_4_to_none", (3, 8), 9, 1, per_channel=True, top=30, weights=extreme_scales,
               sx=2.0**-4, sy=2.0**-4, bias=None)
    yield conv("conv_sums_above_2_24", (700, 5), 2, 1, per_channel=True, weights=large_sums, zx=-120, sy=290.0, zy=-100)
    yield conv("conv_batch", (3, 5), 6, batch=3, per_channel=True, activation="relu6")


def depthwise():
    for ties in (False, True):
        end = "_ties" if ties else ""
        given = dict(ties=ties, top=14, per_channel=True)
        yield conv(f"depthwise_3x3{end}", (10, 10), 9, group=10, **given)
        yield conv(f"depthwise_3x3_stride_2{end}", (8, 8), 14, stride=2, group=8, activation="relu6", **given)
    yield conv("depthwise_3x3_multiplier_2", (3, 6), 10, group=3, top=14, per_channel=True, ties=True)
    yield conv("depthwise_3x3_dilated", (5, 5), 11, group=5, dilation=2, top=14, per_channel=True)
    yield conv("depthwise_3x3_pads", (6, 6), 12, stride=2, pads=[1, 1, 1, 1], group=6, top=14)
    yield conv("depthwise_3x3_uint8", (6, 6), 9, group=6, top=14, dtype=np.uint8, activation="relu", ties=True)


def conv_transpose(name, kernel, stride, pads, extra=0, ties=False, per_channel=False):
    case, q = Case(name), TIES if ties else USUAL
    x = case.input((1, 5, 6, 6), q["sx"], q["zx"])
    data, scale = weights_of(case, (5, 6, kernel, kernel), 1, per_channel, ties, 12)
    operands = [x, case.integers("w", data, scale, 0, **({"axis": 1} if per_channel else {})), *biased(case, scale, q["sx"], 6, "int32")]
    y = case.node("ConvTranspose", operands, kernel_shape=[kernel, kernel], strides=[stride, stride], pads=pads,
                  output_padding=[extra, extra])
    return case.output(y, q["sy"], q["zy"])


def matrices(name, shape, count, ties=False, per_channel=False, activation=None, bias="int32", gemm=True, top=20, dtype=np.int8, zero=None):
    """A matmul with constant weights."""
    case, q = Case(name), dict(TIES if ties else USUAL)
    if dtype == np.uint8:
        q.update(zx=q["zx"] + 128, zy=q["zy"] + 128)
    if zero is not None:
        q.update(zx=zero[0], zy=zero[1])
    x = case.input(shape, q["sx"], q["zx"], dtype)
    rows = (count, shape[-1]) if gemm else (shape[-1], count)
    axis = 0 if gemm else 1
    data, scale = weights_of(case, rows, axis, per_channel, ties, top)
    w = case.integers("w", data, scale, 0, **({"axis": axis} if per_channel else {}))
    b = biased(case, scale, q["sx"], count, bias)
    if gemm:
        y = case.node("Gemm", [x, w, *b], transB=1)
    else:
        y = case.node("MatMul", [x, w])
        y = case.node("Add", [y, *b]) if b else y
    return case.output(activated(case, y, activation), q["sy"], q["zy"], dtype)


def batch_matmul(name, left, right, ties=False, dtype=np.int8):
    """A matmul of two activations."""
    case = Case(name)
    shift = 128 if dtype == np.uint8 else 0
    s = (2.0**-5, 2.0**-5, 2.0**-3) if ties else (0.0173, 0.0291, 0.171)
    a = case.input(left, s[0], -9 + shift, dtype)
    b = case.input(right, s[1], 14 + shift, dtype)
    return case.output(case.node("MatMul", [a, b]), s[2], 3 + shift, dtype)


def products():
    yield matrices("gemm", (20, 24), 10, per_channel=True)
    yield matrices("gemm_ties", (20, 10), 10, ties=True, top=6)
    yield matrices("gemm_per_channel_ties", (20, 10), 10, ties=True, top=6, per_channel=True)
    yield matrices("gemm_relu", (16, 17), 13, activation="relu6")
    yield matrices("gemm_uint8", (16, 17), 13, dtype=np.uint8, ties=True, top=6)
    yield matrices("gemm_zero_points", (16, 16), 12, zero=(127, -128), bias=None)
    yield matrices("matmul_weights", (16, 24), 16, gemm=False, bias=None, per_channel=True)
    yield matrices("matmul_weights_bias", (2, 7, 10), 12, gemm=False, ties=True, top=6, activation="relu")
    yield batch_matmul("matmul", (2, 9, 11), (2, 11, 10))
    yield batch_matmul("matmul_ties", (2, 12, 4), (2, 4, 13), ties=True)
    yield batch_matmul("matmul_heads", (1, 3, 7, 8), (1, 3, 8, 7))
    yield batch_matmul("matmul_uint8", (2, 12, 4), (2, 4, 13), ties=True, dtype=np.uint8)
    for ties in (False, True):
        end = "_ties" if ties else ""
        yield conv_transpose(f"conv_transpose_2x2{end}", 2, 2, [0, 0, 0, 0], ties=ties, per_channel=True)
        yield conv_transpose(f"conv_transpose_3x3{end}", 3, 2, [0, 0, 1, 1], ties=ties)


def binary(name, kind, scales, zeros, shapes=((1, 5, 9, 8), (1, 5, 9, 8)), activation=None, dtype=np.int8, constant=False):
    case, shift = Case(name), 128 if dtype == np.uint8 else 0
    zeros = [z + shift for z in zeros]
    a = case.input(shapes[0], scales[0], zeros[0], dtype)
    if constant:
        limits = np.iinfo(dtype)
        data = case.random.integers(limits.min, limits.max, shapes[1], endpoint=True).astype(dtype)
        b = case.integers("c", data, scales[1], zeros[1])
    else:
        b = case.input(shapes[1], scales[1], zeros[1], dtype)
    return case.output(activated(case, case.node(kind, [a, b]), activation), scales[2], zeros[2], dtype)


def elementwise():
    picture, channel = (1, 5, 9, 8), (1, 5, 1, 1)
    other = {"Add": (0.0217, 0.0135, 0.0312), "Sub": (0.0217, 0.0135, 0.0312), "Mul": (0.0217, 0.0135, 0.0231)}
    even = {"Add": (2.0**-5, 2.0**-6, 2.0**-4), "Sub": (2.0**-5, 2.0**-6, 2.0**-4), "Mul": (2.0**-5, 2.0**-4, 2.0**-3)}
    for kind in ("Add", "Sub", "Mul"):
        name = kind.lower()
        yield binary(f"{name}_same_scales", kind, (0.05, 0.05, 0.05), (3, 3, 3))
        yield binary(f"{name}_other_scales", kind, other[kind], (-5, 17, 40))
        yield binary(f"{name}_ties", kind, even[kind], (-5, 17, 40))
        yield binary(f"{name}_channel", kind, even[kind], (-5, 17, 4), (picture, channel), constant=True)
        yield binary(f"{name}_scalar", kind, other[kind], (-128, 127, 0), (picture, ()), constant=True)
    yield binary("add_relu", "Add", other["Add"], (-5, 17, -100), activation="relu")
    yield binary("add_relu6_ties", "Add", even["Add"], (-128, -128, -128), activation="relu6")
    yield binary("add_uint8", "Add", even["Add"], (-5, 17, 4), dtype=np.uint8)
    yield binary("add_scales_far_apart", "Add", (0.9, 0.0031, 0.93), (0, 9, -3))
    yield binary("add_broadcast", "Add", other["Add"], (-5, 17, 4), ((2, 4, 6, 5), (2, 4, 1, 1)))
    yield binary("mul_uint8", "Mul", even["Mul"], (-5, 17, 4), dtype=np.uint8)
    yield binary("mul_gate", "Mul", (0.0217, 1 / 256, 0.0217), (-5, -128, -5), ((2, 6, 7, 7), (2, 6, 1, 1)))


def table(name, kind, given, made, dtype=np.int8, **attributes):
    """A function of one value, for all 256 integers; a rescaling if `kind` is None."""
    case = Case(name)
    x = case.input((1, 256), *given, dtype, CODES.reshape(1, 256) + np.iinfo(dtype).min)
    return case.output(x if kind is None else case.node(kind, [x], **attributes), *made, dtype)


def functions():
    sigmoid, tanh = (1 / 256, -128), (1 / 128, 0)
    yield table("sigmoid", "Sigmoid", (0.047, 9), sigmoid)
    yield table("sigmoid_power_of_two", "Sigmoid", (2.0**-4, 0), sigmoid)
    yield table("sigmoid_uint8", "Sigmoid", (0.031, 100), (1 / 256, 0), np.uint8)
    yield table("tanh", "Tanh", (0.0213, -4), tanh)
    yield table("tanh_power_of_two", "Tanh", (2.0**-5, 0), tanh)
    yield table("hardswish", "HardSwish", (0.0471, -9), (0.0283, -112))
    yield table("hardswish_power_of_two", "HardSwish", (2.0**-4, 0), (2.0**-4, -100))
    yield table("hardswish_narrow", "HardSwish", (0.0052, 5), (0.0041, -31))
    yield table("leaky_relu", "LeakyRelu", (0.0471, -9), (0.0383, -92), alpha=0.1)
    yield table("leaky_relu_ties", "LeakyRelu", (2.0**-4, 0), (2.0**-3, 3), alpha=0.125)
    yield table("relu", "Relu", (0.0471, -9), (0.0471, -9))
    yield table("relu_rescaled", "Relu", (0.0471, -9), (0.0283, -128))
    yield table("rescale", None, (0.0471, -9), (0.0383, 21))
    yield table("rescale_halves", None, (2.0**-5, 7), (2.0**-4, -2))
    yield table("rescale_eighths", None, (2.0**-7, -20), (2.0**-4, 4))
    yield table("rescale_doubles", None, (2.0**-4, -3), (2.0**-5, 10))
    yield table("rescale_zero_point", None, (0.05, -3), (0.05, 11))
    yield table("rescale_uint8", None, (0.0171, 200), (0.0383, 90), np.uint8)
    for name, scale, shape in (("softmax", 0.081, (24, 10)), ("softmax_steep", 0.41, (24, 10)), ("softmax_flat", 0.0041, (3, 5, 17)),
                               ("softmax_power_of_two", 2.0**-4, (24, 10))):
        case = Case(name)
        yield case.output(case.node("Softmax", [case.input(shape, scale, 4)], axis=-1), *sigmoid)


def moved(name, kind, shape, constants=(), made=None, dtype=np.int8, zero=-9, **attributes):
    """An operator whose operands after the first are `constants`, such as one that moves elements."""
    case, shift = Case(name), 128 if dtype == np.uint8 else 0
    x = case.input(shape, 0.0471, zero + shift, dtype)
    names = [case.constant(f"k{i}", k) if k is not None else "" for i, k in enumerate(constants)]
    return case.output(case.node(kind, [x, *names], **attributes), *(made or (0.0471, zero + shift)), dtype)


def concat(name, scales, zeros, axis, shapes):
    case = Case(name)
    names = [case.input(shape, s, z) for shape, s, z in zip(shapes, scales, zeros)]
    return case.output(case.node("Concat", names, axis=axis), scales[-1], zeros[-1])


def moves():
    window = dict(kernel_shape=[3, 3], strides=[2, 2])
    same = dict(kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    yield moved("max_pool_2x2", "MaxPool", (1, 6, 10, 10), kernel_shape=[2, 2], strides=[2, 2])
    yield moved("max_pool_3x3", "MaxPool", (1, 5, 9, 9), **same)
    yield moved("max_pool_pads", "MaxPool", (1, 5, 12, 12), pads=[1, 1, 1, 1], **window)
    yield moved("max_pool_rescaled", "MaxPool", (1, 5, 12, 12), made=(0.0311, 4), kernel_shape=[2, 2], strides=[2, 2])
    yield moved("max_pool_uint8", "MaxPool", (1, 5, 9, 9), dtype=np.uint8, **same)
    yield moved("average_pool_2x2", "AveragePool", (1, 6, 14, 14), kernel_shape=[2, 2], strides=[2, 2])
    yield moved("average_pool_3x3", "AveragePool", (1, 5, 9, 9), **same)
    yield moved("average_pool_stride_2", "AveragePool", (1, 5, 15, 15), pads=[1, 1, 1, 1], **window)
    yield moved("average_pool_padding_counts", "AveragePool", (1, 5, 9, 9), count_include_pad=1, **same)
    yield moved("average_pool_rescaled", "AveragePool", (1, 6, 12, 12), made=(0.0311, 4), kernel_shape=[2, 2], strides=[2, 2])
    yield moved("average_pool_uint8", "AveragePool", (1, 6, 12, 12), dtype=np.uint8, zero=90, kernel_shape=[2, 2], strides=[2, 2])
    yield moved("global_average_pool", "GlobalAveragePool", (4, 30, 4, 4))
    yield moved("global_average_pool_odd", "GlobalAveragePool", (4, 50, 3, 3))
    yield moved("global_average_pool_rescaled", "GlobalAveragePool", (4, 30, 4, 4), made=(0.0071, 30))
    yield moved("global_average_pool_ties", "GlobalAveragePool", (4, 30, 4, 4), made=(0.0471 / 8, 3))
    yield moved("reduce_mean", "ReduceMean", (4, 30, 4, 4), axes=[2, 3], keepdims=0)
    yield moved("reduce_mean_last", "ReduceMean", (4, 40, 12), axes=[-1], keepdims=1, made=(0.0213, 5))
    yield concat("concat", (0.05, 0.05, 0.05), (4, 4, 4), 1, [(1, c, 6, 6) for c in (3, 5, 4)])
    yield concat("concat_other_scales", (0.05, 0.031, 0.047), (4, -30, 9), 1, [(1, c, 6, 6) for c in (3, 5, 4)])
    yield concat("concat_ties", (2.0**-5, 2.0**-6, 2.0**-4), (4, -30, 9), 2, [(1, 5, 2, 6)] * 3)
    yield concat("concat_rows", (0.05, 0.04, 0.05), (4, 4, -4), -1, [(3, 20), (3, 31), (3, 13)])
    pads = np.array([0, 0, 1, 2, 0, 0, 3, 0], dtype=np.int64)
    yield moved("pad", "Pad", (1, 3, 6, 6), [pads])
    yield moved("pad_value", "Pad", (1, 3, 6, 6), [pads, np.float32(1.07)])
    sizes = np.array([1, 1, 2, 2], dtype=np.float32)
    floors = dict(mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    yield moved("resize_nearest", "Resize", (1, 5, 6, 6), [None, sizes], **floors)
    yield moved("resize_nearest_uneven", "Resize", (1, 5, 6, 6), [None, None, np.array([1, 5, 9, 14])], **floors)
    yield moved("transpose", "Transpose", (2, 3, 5, 7), perm=[0, 3, 1, 2])
    yield moved("flatten", "Flatten", (2, 3, 5, 4), axis=1)


def from_floats():
    """Quantization of floats, many of which are ties, and dequantization."""
    case = Case("quantize")
    grid = (np.arange(-200, 200) / 4).astype(np.float32) * np.float32(2.0**-4)
    case.inputs["x0"] = grid.reshape(1, -1)
    yield case.output("x0", 2.0**-4, -11)
    case = Case("quantize_rounded_scale")
    case.inputs["x0"] = (np.arange(-200, 200) / 2).astype(np.float32).reshape(1, -1) * np.float32(0.0471)
    yield case.output("x0", 0.0471, 21)
    case = Case("dequantize")
    name = case.input((1, 256), 0.0471, -9, np.int8, CODES.reshape(1, 256) - 128)
    case.nodes[-1].output[0] = "y0"
    assert name != "y0"
    case.outputs["y0"] = np.dtype(np.float32)
    yield case


def shortened(model):
    """Shortens the names of all tensors except inputs and outputs, to make files smaller."""
    names = {v.name: v.name for v in [*model.graph.input, *model.graph.output]}

    def short(name):
        return names.setdefault(name, f"t{len(names)}") if name else name

    for node in model.graph.node:
        for field in (node.input, node.output):
            for i, name in enumerate(field):
                field[i] = short(name)
    for tensor in model.graph.initializer:
        tensor.name = short(tensor.name)


def networks():
    """Whole networks with a batch of 8 pictures. Their outputs are logits."""
    shape = (8, 1, 32, 32)
    shared = dict(resolution=32, channels=1, classes=10, batch=8, seed=3)
    floats = {"resnet8": made_cnn.resnet(activation="relu", **shared), "mobilenet_v1": made_cnn.mobilenet_v1(0.25, **shared)}
    for name, network in floats.items():
        case = Case(name)
        case.model = made_cnn.quantized(network, made_cnn.pictures(shape, 3), per_channel=name == "resnet8", real=False)
        constants = {t.name: numpy_helper.to_array(t) for t in case.model.graph.initializer}
        whole = np.rint(made_cnn.pictures(shape, 4) / constants["x.scale"]) + constants["x.zero"]
        case.inputs["x"] = np.clip(whole, -128, 127).astype(np.int8)
        shortened(case.model)
        yield case


def cases():
    for group in (convolutions, depthwise, products, elementwise, functions, moves, from_floats, networks):
        for case in group():
            yield case.finished()
