#!/usr/bin/env python3
"""Writes the values that the tests compare with: fake quantization, and gradients of a small network,
as PyTorch computes them. Made with Debian's python3-torch 1.13.1.

usage: make.py FOLDER

fake.json   cases of fake quantization: inputs, results and gradients
net.onnx    a network with convolutions, batch normalization and pooling
net.json    pictures, labels, and the gradients and statistics of one training step of net.onnx
"""

import json
import os
import struct
import sys

import torch

BITS = [8, 7, 6, 5, 4]


def numbers(x):
    """The elements with the digits that identify a float32."""
    return [float(f"{v:.9g}") for v in x.flatten().tolist()]


def next_up(x, by):
    """The float32 that is `by` steps from x."""
    (bits,) = struct.unpack("<i", struct.pack("<f", x))
    return struct.unpack("<f", struct.pack("<i", bits + by))[0]


def far_from_ties(x, scale):
    """Whether rounding does not depend on how x / scale is computed."""
    fraction = torch.remainder(x.double() / scale, 1.0)
    return (fraction - 0.5).abs() > 1e-3


def activation(bits, scale, zero, ties):
    least, most = -128, 2**bits - 129
    low, high = (least - zero) * scale, (most - zero) * scale
    x = torch.empty(64).uniform_(low - 8 * scale, high + 8 * scale)
    x = x[far_from_ties(x, scale)]
    # The ends, what is just outside and inside, and zero.
    ends = [low, high, 0.0] + [next_up(e, by) for e in (low, high) if e for by in (-1, 1)]
    if ties:
        ends += [(k + 0.5) * scale for k in range(-3, 4)]
    x = torch.cat([x, torch.tensor(ends)]).requires_grad_()
    y = torch.fake_quantize_per_tensor_affine(x, scale, zero, least, most)
    weight = torch.linspace(0.5, 2.0, len(x))
    (y * weight).sum().backward()
    return {
        "kind": "activation",
        "bits": bits,
        "scale": scale,
        "zero": zero,
        "x": numbers(x),
        "weight": numbers(weight),
        "y": numbers(y),
        "gradient": numbers(x.grad),
    }


def weights(bits, axis):
    largest = 2 ** (bits - 1) - 1
    x = torch.randn(4, 3, 2, 2) * torch.tensor([1.0, 0.1, 10.0, 0.0]).reshape(4, 1, 1, 1)
    count = x.shape[axis] if axis is not None else 1
    rows = x.transpose(0, axis).reshape(count, -1) if axis is not None else x.reshape(1, -1)
    scales = (rows.abs().amax(1) / largest).clamp(min=2.0**-24)
    # Moves elements away from ties; the largest one of each row stays.
    wide = scales.reshape([-1 if i == axis else 1 for i in range(4)]) if axis is not None else scales
    fraction = torch.remainder(x / wide, 1.0) - 0.5
    x = torch.where(fraction.abs() < 1e-3, x * 0.99, x).requires_grad_()
    if axis is None:
        y = torch.fake_quantize_per_tensor_affine(x, float(scales[0]), 0, -largest, largest)
    else:
        zeros = torch.zeros(count, dtype=torch.int32)
        y = torch.fake_quantize_per_channel_affine(x, scales, zeros, axis, -largest, largest)
    weight = torch.linspace(0.5, 2.0, x.numel()).reshape(x.shape)
    (y * weight).sum().backward()
    return {
        "kind": "weights",
        "bits": bits,
        "axis": axis,
        "scales": numbers(scales),
        "x": numbers(x),
        "weight": numbers(weight),
        "y": numbers(y),
        "gradient": numbers(x.grad),
    }


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(4)
        self.wise = torch.nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4)
        self.norm2 = torch.nn.BatchNorm2d(4)
        self.fc = torch.nn.Linear(16, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x = torch.clamp(self.norm2(self.wise(x)), 0.0, 6.0)
        x = torch.nn.functional.max_pool2d(x, 2)
        return self.fc(x.flatten(1))


def net(folder):
    model = Net()
    with torch.no_grad():
        for norm in (model.norm, model.norm2):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.uniform_(-0.5, 0.5)
    x, labels = torch.randn(4, 2, 8, 8), torch.tensor([0, 2, 1, 1])
    model.eval()
    torch.onnx.export(
        model,
        x,
        os.path.join(folder, "net.onnx"),
        opset_version=13,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "batch"}, "y": {0: "batch"}},
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
    )
    model.train()
    y = model(x)
    loss = torch.nn.functional.cross_entropy(y, labels)
    loss.backward()
    return {
        "x": numbers(x),
        "labels": labels.tolist(),
        "logits": numbers(y),
        "loss": loss.item(),
        "gradients": {name: numbers(p.grad) for name, p in model.named_parameters()},
    }


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.manual_seed(0)
    cases = [activation(b, s, z, ties) for b in BITS for s, z, ties in
             [(0.0371, -128, False), (0.0113, -128 + 2 ** (b - 1), False), (0.25, -128 + 2 ** (b - 1), True)]]
    cases += [weights(b, axis) for b in BITS for axis in (None, 0, 1)]
    for name, made in (("fake.json", cases), ("net.json", net(sys.argv[1]))):
        with open(os.path.join(sys.argv[1], name), "w") as f:
            json.dump(made, f)
            f.write("\n")


if __name__ == "__main__":
    main()
