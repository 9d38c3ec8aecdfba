#!/usr/bin/env python3
"""Exports the image and text encoders of CLIP from PyTorch to ONNX.

usage: export_clip.py --dir DIR [--weights DIR] [--size base|tiny] [--fp16] [--opset N] [--seed N]

Writes DIR/clip-image/model.onnx and DIR/clip-text/model.onnx (clip-image-f16 and clip-text-f16 with
--fp16) and prints their paths. The image encoder maps `pixel_values` [batch, 3, 224, 224] to
`image_embeds` [batch, 512]. The text encoder maps `input_ids` [batch, sequence], where each row
ends with the vocabulary's last token, to `text_embeds` [batch, 512]. Embeddings are not normalised.

--weights names a folder in the format of transformers: config.json and model.safetensors or
pytorch_model.bin of a CLIP model. Without it, random weights are generated from --seed, equal on
every machine, for the architecture of clip-vit-base-patch32 or, with --size tiny, for a small one
with the same vocabulary, for tests. Nothing is downloaded.

Needs torch 1.13 or newer with a matching transformers (4.39 for torch 1.13), onnx and numpy, but no
GPU. Debian's python3-torch works. If onnxruntime is installed, the exported files are compared with
PyTorch.
"""

import argparse
import inspect
import os
import sys

# The sizes of clip-vit-base-patch32.
BASE = {
    "vision": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
               "image_size": 224, "patch_size": 32},
    "text": {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8},
    "projection_dim": 512,
}
TINY = {
    "vision": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
               "image_size": 64, "patch_size": 16},
    "text": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
    "projection_dim": 32,
}
SIZES = {"base": BASE, "tiny": TINY}
# The largest f16 value.
HALF_MAX = 65504.0


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def configs(size):
    from transformers import CLIPTextConfig, CLIPVisionConfig

    of = SIZES[size]
    shared = {"hidden_act": "quick_gelu", "projection_dim": of["projection_dim"]}
    # OpenAI's models name token 2 as the end of a text; transformers then looks for the largest
    # token, like OpenAI's own code.
    text = CLIPTextConfig(vocab_size=49408, max_position_embeddings=77, eos_token_id=2, **shared, **of["text"])
    return CLIPVisionConfig(**shared, **of["vision"]), text


def make_up(model, seed):
    """Sets random weights that give activations a realistic magnitude and uneven attention."""
    import numpy as np
    import torch

    random = np.random.RandomState(seed)
    layers = model.config.num_hidden_layers
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.from_numpy(random.standard_normal(tuple(p.shape)).astype(np.float32))
            if "norm" in name:
                value = (1.0 if name.endswith("weight") else 0.0) + 0.1 * noise
            elif name.endswith("bias"):
                value = 0.05 * noise
            elif "embedding" in name and "patch" not in name:
                value = 0.3 * noise
            else:
                inputs = p[0].numel()
                # Added to the residual stream twice per layer.
                added = name.endswith(("out_proj.weight", "fc2.weight"))
                value = noise * (inputs * (2 * layers if added else 1)) ** -0.5
            p.copy_(value)


def encoders(args):
    from transformers import CLIPTextModelWithProjection, CLIPVisionModelWithProjection

    classes = (CLIPVisionModelWithProjection, CLIPTextModelWithProjection)
    # Eager attention exports as matmuls and a softmax.
    plain = {"attn_implementation": "eager"}
    if args.weights:
        if not os.path.isfile(os.path.join(args.weights, "config.json")):
            sys.exit(f"error: {args.weights}: expected a CLIP model with config.json")
        return [c.from_pretrained(args.weights, local_files_only=True, **plain).eval() for c in classes]
    models = []
    for i, (make, config) in enumerate(zip(classes, configs(args.size))):
        config._attn_implementation = "eager"
        model = make(config).eval()
        make_up(model, args.seed + i)
        models.append(model)
    return models


def wrapped(model, output):
    """A module with one input and one output tensor."""
    import torch

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return getattr(self.model(x), output)

    return Encoder().eval()


def export(module, example, file, names, axes, opset):
    import torch

    # Use the tracing exporter, which is no longer the default in newer versions of torch.
    kind = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    torch.onnx.export(module, (example,), file, input_names=names[:1], output_names=names[1:], dynamic_axes=axes,
                      opset_version=opset, do_constant_folding=True, **kind)


def halved(model):
    """Stores all floats of a model in 16 bits, including inputs and outputs."""
    import numpy as np
    from onnx import TensorProto, numpy_helper

    names = {TensorProto.FLOAT: TensorProto.FLOAT16}

    def convert(tensor):
        if tensor.data_type == TensorProto.FLOAT:
            value = np.clip(numpy_helper.to_array(tensor), -HALF_MAX, HALF_MAX).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))

    for tensor in model.graph.initializer:
        convert(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                convert(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to":
                attribute.i = names.get(attribute.i, attribute.i)
            # stash_type is not changed, so LayerNormalization accumulates in 32 bits.
    for value in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        kind = value.type.tensor_type
        kind.elem_type = names.get(kind.elem_type, kind.elem_type)


def finished(file, weights, half):
    """Records the source of the weights in the file, and converts it to 16 bits if `half`."""
    import onnx

    model = onnx.load(file)
    if half:
        halved(model)
    onnx.helper.set_model_props(model, {"weights": weights})
    onnx.checker.check_model(model)
    onnx.save(model, file)


def check(module, file, examples, half):
    """Compares a file with PyTorch if ONNX Runtime is installed."""
    try:
        import onnxruntime
    except ImportError:
        say("onnxruntime is not installed; skipping the comparison with PyTorch")
        return
    import numpy as np
    import torch

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for x in examples:
        with torch.no_grad():
            wanted = module(x).numpy()
        given = x.numpy()
        if half and given.dtype == np.float32:
            given = given.astype(np.float16)
        found = session.run(None, {session.get_inputs()[0].name: given})[0]
        error = np.abs(found.astype(np.float32) - wanted).max() / (wanted.max() - wanted.min())
        say(f"{file}: {list(x.shape)}: difference to PyTorch {error:.1e} of the range, mean magnitude {np.abs(wanted).mean():.2f}")
        if not error <= (2e-2 if half else 1e-4):
            sys.exit(f"error: {file} differs from PyTorch")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True)
    parser.add_argument("--weights", metavar="DIR")
    parser.add_argument("--size", choices=list(SIZES), default="base")
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--opset", type=int, default=17)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    try:
        import numpy  # noqa: F401
        import onnx  # noqa: F401
        import torch
        import transformers
    except ImportError as e:
        sys.exit(f"error: {e}; torch, transformers, onnx and numpy are needed (see python3 tools/export_clip.py --help)")
    transformers.logging.set_verbosity_error()
    vision, text = encoders(args)
    torch.manual_seed(args.seed)
    side = vision.config.image_size
    images = [torch.randn(n, 3, side, side) for n in (2, 1)]
    tokens = []
    for batch, length in ((2, 9), (1, 77)):
        ids = torch.randint(1, text.config.vocab_size - 2, (batch, length))
        ids[:, 0], ids[:, -1] = text.config.vocab_size - 2, text.config.vocab_size - 1
        tokens.append(ids)
    jobs = [
        ("clip-image", vision, images, "pixel_values", "image_embeds", {0: "batch"}),
        ("clip-text", text, tokens, "input_ids", "text_embeds", {0: "batch", 1: "sequence"}),
    ]
    for name, model, examples, given, made, axes in jobs:
        folder = os.path.join(args.dir, name + ("-f16" if args.fp16 else ""))
        os.makedirs(folder, exist_ok=True)
        file = os.path.join(folder, "model.onnx")
        part = file + ".part"
        module = wrapped(model, made)
        export(module, examples[0], part, [given, made], {given: axes, made: {0: "batch"}}, args.opset)
        trained = args.weights and f"from {os.path.basename(os.path.abspath(args.weights))}"
        finished(part, trained or f"random, seed {args.seed}", args.fp16)
        check(module, part, examples, args.fp16)
        os.replace(part, file)
        print(file)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
