"""Makes dequant.gguf: random blocks of each type and their values by the package `gguf`."""

import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, GGUFWriter
from gguf.quants import dequantize

# Byte positions of the half-precision scales of each block, which must be finite.
SCALES = {
    T.F16: [0], T.BF16: [], T.F32: [],
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.Q2_K: [80, 82], T.Q3_K: [108],
}

random = np.random.default_rng(20)
out = GGUFWriter(pathlib.Path(__file__).with_name("dequant.gguf"), "golden")
out.add_string("golden.text", "naïve")
out.add_array("golden.texts", ["a", "", "ccc"])
out.add_array("golden.numbers", [1, -2, 3])
out.add_uint64("golden.u64", 2**63 + 1)
out.add_int8("golden.i8", -5)
out.add_float64("golden.f64", 0.1)
out.add_bool("golden.bool", True)
for kind, positions in SCALES.items():
    per_block, size = GGML_QUANT_SIZES[kind]
    rows, blocks = 2, max(1, 64 // per_block)
    data = random.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in positions:
        scale = (random.standard_normal((rows, blocks)) * 0.1).astype(np.float16)
        data[:, :, at : at + 2] = scale[..., None].view(np.uint8)
    if kind in (T.F32, T.BF16):
        values = random.standard_normal((rows, blocks)).astype(np.float32)
        data = values.view(np.uint8).reshape(rows, blocks, 4)[:, :, 4 - size :]
    data = np.ascontiguousarray(data.reshape(rows, blocks * size))
    if kind == T.F32:
        expected = data.view(np.float32)
    elif kind == T.F16:
        expected = data.view(np.float16).astype(np.float32)
    else:
        expected = dequantize(data, kind)
    out.add_tensor(f"{kind.name}.blocks", data, raw_dtype=kind)
    out.add_tensor(f"{kind.name}.values", np.ascontiguousarray(expected, np.float32))
out.write_header_to_file()
out.write_kv_data_to_file()
out.write_tensors_to_file()
out.close()
