"""Makes model.safetensors: matrices that the public packages AutoGPTQ and AutoAWQ quantized and packed, and what they make of them.

    python3 -m venv v
    v/bin/pip install torch==2.6.0 transformers==4.51.3 peft==0.11.1 "datasets<4" zstandard accelerate rouge gekko
    v/bin/pip install --no-deps autoawq==0.2.9 auto-gptq==0.7.1
    v/bin/python make.py

Nothing of it runs on a GPU. `NAME.dequantized` is `[outputs, inputs]`, as the packages themselves dequantize: AutoGPTQ's layer applied to
the rows of an identity matrix, AutoAWQ's `dequantize_gemm`.
"""

import pathlib

import torch
from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear
from auto_gptq.quantization import GPTQ
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.quantize.quantizer import AwqQuantizer
from awq.utils.packing_utils import dequantize_gemm
from safetensors.torch import save_file

K, N, GROUP = 64, 32, 16
torch.manual_seed(5)
torch.cuda.synchronize = lambda: None
tensors = {}


def linear():
    layer = torch.nn.Linear(K, N, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(N, K) * 0.05)
    return layer


def keep(name, module, parts):
    for part in parts:
        tensors[f"{name}.{part}"] = getattr(module, part).contiguous()


for name, bits, act_order, sym in [
    ("gptq_4", 4, False, True), ("gptq_4_act_order", 4, True, False), ("gptq_8_act_order", 8, True, False), ("gptq_2", 2, False, False),
    ("gptq_3_act_order", 3, True, False),
]:
    layer = linear()
    gptq = GPTQ(layer)
    gptq.quantizer.configure(bits, perchannel=True, sym=sym, mse=False)
    x = torch.randn(256, K) * torch.linspace(0.1, 3.0, K)[torch.randperm(K)]
    gptq.add_batch(x, layer(x))
    scale, zero, g_idx = gptq.fasterquant(percdamp=0.01, group_size=GROUP, actorder=act_order)
    packed = QuantLinear(bits, GROUP, K, N, False, weight_dtype=torch.float16)
    packed.pack(layer, scale, zero, g_idx)
    packed = packed.half()
    keep(name, packed, ["qweight", "qzeros", "scales", "g_idx"])
    tensors[f"{name}.dequantized"] = packed(torch.eye(K, dtype=torch.float16)).t().contiguous()

layer = linear().half()
quantizer = AwqQuantizer.__new__(AwqQuantizer)
quantizer.w_bit, quantizer.group_size, quantizer.zero_point = 4, GROUP, True
weight, scales, zeros = quantizer.pseudo_quantize_tensor(layer.weight.data)
layer.weight.data = weight
packed = WQLinear_GEMM.from_linear(layer, 4, GROUP, scales=scales.t().contiguous(), zeros=zeros.t().contiguous())
keep("awq", packed, ["qweight", "qzeros", "scales"])
tensors["awq.dequantized"] = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales, 4, GROUP).t().contiguous()

for name, tensor in tensors.items():
    print(name, tensor.dtype, list(tensor.shape))
save_file(tensors, pathlib.Path(__file__).with_name("model.safetensors"))
