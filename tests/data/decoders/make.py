"""Makes decoders.json and logits.f32: tiny random decoders of each family, and the logits that transformers computes of them.

    python3 -m venv v && v/bin/pip install torch==2.6.0 transformers==4.57.1 gguf==0.19.0 && v/bin/python make.py

Weights are not stored: both sides make them by `numbers`. The names in GGUF files are those of the package `gguf`; metadata, added tensors,
and what is done to weights follow llama.cpp's convert_hf_to_gguf.py.
"""

import json
import math
import pathlib

import gguf
import numpy as np
import torch
import transformers

VOCAB = 32
TOKENS = [(i * 11 + i * i * 7 + 5) % VOCAB for i in range(24)]
BASE = dict(
    vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=64, rope_theta=1000.0, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)


def family(name, of, architecture, gguf_keys=(), gguf_tensors=(), prefill=8, count=24, **config):
    """`of` is a class's stem; `gguf_keys` are those beyond the sizes, which all architectures have."""
    return dict(name=name, of=of, architecture=architecture, gguf_keys=dict(gguf_keys), gguf_tensors=dict(gguf_tensors),
                prefill=prefill, count=count, config={**BASE, **config})


def llama3_divisors(width, theta, factor, low, high, original):
    """As LlamaModel.generate_extra_tensors."""
    out = []
    for i in range(0, width, 2):
        frequency = 1.0 / theta ** (i / width)
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            out.append(1.0)
        elif wavelength > original / low:
            out.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return out


LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
SHORT, LONG = [1.0, 1.25, 1.5, 2.0], [1.5, 3.0, 5.0, 9.0]


def phi3(name, original, **more):
    magnitude = math.sqrt(1 + math.log(64 / original) / math.log(original))
    scaling = dict(type="longrope", short_factor=SHORT, long_factor=LONG)
    return family(
        name, "Phi3", "phi3",
        {"rope.dimension_count": 8, "rope.scaling.original_context_length": original, "rope.scaling.attn_factor": magnitude,
         "attention.sliding_window": 9},
        {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG},
        hidden_size=64, partial_rotary_factor=0.5, original_max_position_embeddings=original, rope_scaling=scaling, sliding_window=9,
        tie_word_embeddings=False, **more)


GEMMA = dict(hidden_activation="gelu_pytorch_tanh", head_dim=8, tie_word_embeddings=True)
FAMILIES = [
    family("llama", "Llama", "llama"),
    family("llama_3.1", "Llama", "llama", (), {"rope_freqs.weight": llama3_divisors(6, 1000.0, 8.0, 1.0, 4.0, 16)},
           rope_scaling=dict(rope_type="llama3", **LLAMA3), tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    family("llama_linear", "Llama", "llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
           rope_scaling=dict(rope_type="linear", factor=4.0)),
    family("llama_yarn", "Llama", "llama",
           {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}, hidden_size=64,
           rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
    family("qwen2", "Qwen2", "qwen2", tie_word_embeddings=True),
    family("qwen3", "Qwen3", "qwen3", {"attention.key_length": 10, "attention.value_length": 10}, head_dim=10),
    family("gemma", "Gemma", "gemma", {"attention.key_length": 8, "attention.value_length": 8}, num_key_value_heads=1, **GEMMA),
    family("gemma2", "Gemma2", "gemma2",
           {"attention.key_length": 8, "attention.value_length": 8, "attention.sliding_window": 5, "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.5},
           num_hidden_layers=3, sliding_window=5, query_pre_attn_scalar=8, attn_logit_softcapping=1.5, final_logit_softcapping=2.5,
           **GEMMA),
    family("gemma3", "Gemma3", "gemma3",
           {"attention.key_length": 8, "attention.value_length": 8, "attention.sliding_window": 5, "rope.scaling.type": "linear",
            "rope.scaling.factor": 2.0},
           num_hidden_layers=7, intermediate_size=24, sliding_window=5, query_pre_attn_scalar=8, rope_local_base_freq=10000.0,
           rope_scaling=dict(rope_type="linear", factor=2.0), **GEMMA),
    phi3("phi3_short", 32),
    phi3("phi3_long", 8, prefill=10),
]


def numbers(seed, count):
    """Numbers from -0.5 to 0.5, as `random` of tests/support/gguf.rs."""
    out, mask = [], (1 << 64) - 1
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) & mask
        out.append((seed >> 40) / (1 << 24) - 0.5)
    return np.array(out, np.float32), seed


def gguf_name(architecture, layers, name):
    arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture)
    found = gguf.get_tensor_name_map(arch, layers).get_name(name, try_suffixes=(".weight", ".bias"))
    assert found, name
    return found


def main():
    here, out, logits = pathlib.Path(__file__).parent, [], []
    torch.manual_seed(0)
    for f in FAMILIES:
        config_class = getattr(transformers, "Gemma3TextConfig" if f["of"] == "Gemma3" else f["of"] + "Config")
        config = config_class(**f["config"], attn_implementation="eager")
        with torch.device("cpu"):
            model = getattr(transformers, f["of"] + "ForCausalLM")(config).eval().float()
        seed, tensors = 7, []
        parameters = sorted(model.named_parameters())
        with torch.no_grad():
            for name, tensor in parameters:
                values, seed = numbers(seed, tensor.numel())
                # About 1 for those of norms; those of Gemma have the 1 added.
                norm = "norm" in name
                if norm and not f["of"].startswith("Gemma"):
                    values = values + np.float32(1)
                tensor.copy_(torch.from_numpy(values).reshape(tensor.shape))
                tensors.append([name, list(tensor.shape), gguf_name(f["architecture"], config.num_hidden_layers, name)])
            ids = torch.tensor([TOKENS[: f["count"]]])
            found = model(ids).logits[0].float().numpy()
        assert np.isfinite(found).all()
        print(f["name"], found.shape, float(np.abs(found).max()), float(found.std()))
        logits.append(found.astype("<f4").tobytes())
        keys = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                "max_position_embeddings", "rope_theta", "rms_norm_eps", "tie_word_embeddings", "model_type", "hidden_act",
                "hidden_activation", "head_dim", "rope_scaling", "rope_local_base_freq", "sliding_window", "layer_types",
                "use_sliding_window", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
                "partial_rotary_factor", "original_max_position_embeddings"]
        saved = json.loads(config.to_json_string(use_diff=False))
        out.append(dict(name=f["name"], architecture=f["architecture"], prefill=f["prefill"], count=f["count"],
                        config={k: saved[k] for k in keys if k in saved}, gguf_keys=f["gguf_keys"], gguf_tensors=f["gguf_tensors"],
                        tensors=tensors))
    text = ",\n".join(json.dumps(o) for o in out)
    (here / "decoders.json").write_text(f'{{"tokens": {TOKENS}, "decoders": [\n{text}\n]}}\n')
    (here / "logits.f32").write_bytes(b"".join(logits))


main()
