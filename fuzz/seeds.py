#!/usr/bin/env python3
"""Writes the seeds of all fuzz targets into a folder, one subfolder per target.

    fuzz/seeds.py FOLDER ONNX_DATA TLITE

ONNX_DATA is the folder with ONNX's node tests, and TLITE the command, which converts small GGUF files
to decoders.
"""

import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import zlib

# Larger models are slow to mutate.
MAX_MODEL = 6000
# The target "opencl" gets every 50th model, since compiling kernels takes long.
SOME = 50
# Separates responses in an input of the target "hub", and parts in others.
RESPONSES, PARTS = b"\n~~~\n", bytes(4)
# GGUF's types of tensors: weights and bytes of a block.
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34)}
K_QUANTS = {10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)}
DRAW = random.Random(1)


def byte_characters():
    """The characters that stand for the 256 bytes in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def gguf_text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(value):
    """A value with its type: the code of the type is chosen by the Python type."""
    match value:
        case bool():
            return struct.pack("<IB", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + gguf_text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(gguf_text, value))
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)


def vocabulary(architecture, sentencepiece):
    if sentencepiece:
        words = ["▁", "a", "▁a", "b", "ab", "c"]
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words]
        return {
            "model": "llama",
            "tokens": tokens,
            "scores": [0.0] * 259 + [-float(i) for i in range(len(words))],
            "token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
            "bos_token_id": 1,
            "eos_token_id": 2,
            "unknown_token_id": 0,
        }
    merges = ["h e", "l l", "he ll"]
    tokens = ["<e>", "<s>", "</s>", *byte_characters(), *(m.replace(" ", "") for m in merges)]
    return {
        "model": "gpt2",
        "pre": "qwen2" if architecture.startswith("qwen") else "smollm",
        "tokens": tokens,
        "token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
    }


def gguf(architecture, dtype, hidden=32, inner=64, sentencepiece=False):
    heads, kv_heads = 4, 2
    head = hidden // heads
    keys = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": hidden,
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "rope.freq_base": 1e4,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    values = {"general.architecture": architecture, "general.name": "seed"}
    values |= {f"{architecture}.{name}": value for name, value in keys.items()}
    words = vocabulary(architecture, sentencepiece)
    values |= {f"tokenizer.ggml.{name}": value for name, value in words.items()}
    values["tokenizer.chat_template"] = "{{ messages }}"
    narrow = kv_heads * head
    matrices = {
        "attn_q": [hidden, hidden],
        "attn_k": [hidden, narrow],
        "attn_v": [hidden, narrow],
        "attn_output": [hidden, hidden],
        "ffn_gate": [hidden, inner],
        "ffn_up": [hidden, inner],
        "ffn_down": [inner, hidden],
    }
    tensors = [("token_embd.weight", [hidden, len(words["tokens"])], dtype)]
    tensors += [(f"blk.0.{name}.weight", dims, dtype) for name, dims in matrices.items()]
    tensors += [(f"{name}.weight", [hidden], 0) for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")]
    if architecture == "qwen2":
        biases = [("attn_q", hidden), ("attn_k", narrow), ("attn_v", narrow)]
        tensors += [(f"blk.0.{name}.bias", [width], 0) for name, width in biases]
    if architecture == "llama":
        tensors.append(("rope_freqs.weight", [head // 2], 0))
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    out += b"".join(gguf_text(name) + gguf_value(value) for name, value in values.items())
    offset, parts = 0, []
    for name, dims, kind in tensors:
        weights, size = (BLOCKS | K_QUANTS)[kind]
        data = bytes(DRAW.randrange(40, 60) for _ in range(math.prod(dims) // weights * size))
        out += gguf_text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        data += bytes(-len(data) % 32)
        offset += len(data)
        parts.append(data)
    return out + bytes(-len(out) % 32) + b"".join(parts)


def halves(*shape):
    return "F16", list(shape), bytes([0, 48]) * math.prod(shape)


def safetensors(config, tensors):
    header, data = {}, b""
    for name, (dtype, shape, part) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    return json.dumps(config).encode() + PARTS + struct.pack("<Q", len(text)) + text + data


def checkpoint(method=None, **changes):
    hidden, words = 32, 24
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": words,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
    } | changes
    layer = "model.layers.0."
    tensors = {"model.embed_tokens.weight": halves(words, hidden), "model.norm.weight": halves(hidden)}
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{layer}{name}.weight"] = halves(hidden)
    codes = bytes(range(256)) * (hidden * hidden // 2 // 256)
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                 "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        prefix = layer + name
        if method is None:
            tensors[f"{prefix}.weight"] = halves(hidden, hidden)
            continue
        packed = [hidden // 8, hidden] if method == "gptq" else [hidden, hidden // 8]
        tensors[f"{prefix}.qweight"] = "I32", packed, codes
        tensors[f"{prefix}.qzeros"] = "I32", [1, hidden // 8], b"\x11" * (hidden // 2)
        tensors[f"{prefix}.scales"] = halves(1, hidden)
        if method == "gptq":
            tensors[f"{prefix}.g_idx"] = "I32", [hidden], bytes(4 * hidden)
    if method is not None:
        config["quantization_config"] = {
            "quant_method": method, "bits": 4, "group_size": hidden, "desc_act": False, "sym": False,
            "zero_point": True, "version": "gemm",
        }
    return safetensors(config, tensors)


def png(width, height, color=2, depth=8):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = width * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color] * depth // 8
    pixels = b"".join(b"\0" + bytes(DRAW.randrange(256) for _ in range(row)) for _ in range(height))
    palette = chunk(b"PLTE", bytes(range(192)) * 4) if color == 3 else b""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + palette
            + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b""))


def npy(dtype, shape, data, order=False):
    header = f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + data


def tokenizers():
    words = {"[UNK]": 0, "a": 1, "b": 2, "##b": 3, "Hello": 4}
    plain = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
             "post_processor": None, "decoder": None}
    added = {"id": 5, "content": "<s>", "special": True, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}}
    split = {"type": "Split", "pattern": {"Regex": r"\p{L}+|\s+(?!\S)"}, "behavior": "Isolated", "invert": False}
    yield plain | {"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                             "max_input_chars_per_word": 100, "vocab": words},
                   "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##",
                                                                              "cleanup": True}}
    yield plain | {"model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
                   "pre_tokenizer": split, "added_tokens": [added], "post_processor": template}
    yield plain | {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.0], ["b", -2.0]],
                             "byte_fallback": False},
                   "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Prepend",
                                                                                        "prepend": "▁"}]},
                   "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
                                                               {"type": "Strip", "content": " ", "start": 1,
                                                                "stop": 0}]}}
    yield json.loads((FUZZ / "src/byte_tokenizer.json").read_text())


def cache_entry():
    key = json.dumps({"device": "d", "driver": "v", "build": "b", "text": "t"}).encode()
    return b"TLITE\0CA" + struct.pack("<IIQQ", 1, 0, len(key), 4) + key + b"data"


def prompt_cache():
    header = json.dumps({"model": "1234", "float": "f16", "states": [{"name": "k", "row": 2},
                         {"name": "v", "row": 1, "window": 4}], "tokens": 5, "rows": [5, 3]}).encode()
    return b"TLITEKV2" + struct.pack("<I", len(header)) + header + struct.pack("<5I", *range(5)) + bytes(13)


def response(body=b"", status="200 OK", **headers):
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    head += "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return head.encode() + b"\r\n" + body


def conversations():
    """What a hub answers to the requests of the target "hub"."""
    model = gguf("llama", 8)
    files = ["c.gguf", "README.md"]
    listing = json.dumps({"sha": "abc", "siblings": [{"rfilename": name} for name in files]}).encode()
    head = response(ETag='"12ab"', X_Repo_Commit="abc", X_Linked_Size=len(model))
    body = response(model, ETag='"12ab"', X_Repo_Commit="abc")
    yield [response(listing), head, body]
    yield [response(status="429 Too Many", Retry_After="1"), response(status="302 Found", Location="/x"), head]
    yield [response(status="404 Not Found", X_Error_Code="RepoNotFound")]
    half = response(model[:100], "206 Partial Content", Content_Range="bytes 0-99/200", ETag='"12ab"')
    yield [response(listing), head, half, half]
    files = ["config.json", "tokenizer.json", "model.safetensors"]
    listing = json.dumps({"sha": "abc", "siblings": [{"rfilename": name} for name in files]}).encode()
    config, weights = checkpoint().split(PARTS, 1)
    answers = [response(listing)]
    for number, part in enumerate((config, b"{}", weights)):
        tags = {"ETag": f'"{number}a"', "X_Repo_Commit": "abc"}
        answers += [response(X_Linked_Size=len(part), **tags), response(part, **tags)]
    yield answers


SCHEMAS = [
    '{"type":"object","properties":{"a":{"type":"integer","minimum":1},"b":{"enum":["x","y"]}},"required":["a"]}',
    '{"type":"array","items":{"type":"string","pattern":"^[a-z]+$"},"maxItems":3}',
    '{"anyOf":[{"type":"number","multipleOf":0.5},{"$ref":"#/$defs/n"}],"$defs":{"n":{"type":"null"}}}',
]
GRAMMARS = ['start: "a" b* | /[0-9]{2,4}/\nb: "b" "c"?\n', 'start: %json {"type":"boolean"}\n']
DIMS = ["n", "2*n+1", "(n+3)//4*4", "max(n, m)", "min(n*m, 128)", "n%8", "n<=128", "1<=n<=4096, m=2*n", "past+sequence=total"]
TEMPLATES = ["{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}{% endfor %}",
             "{% if tools %}{{ tools | tojson }}{% endif %}{{ raise_exception('no') }}",
             "{% macro f(x) %}{{ x * 2 }}{% endmacro %}{{ f(3) }}{% set ns = namespace(a=1) %}{{ ns.a }}"]
CONFIGS = [
    {"model_type": "llama", "max_position_embeddings": 64, "vocab_size": 10, "eos_token_id": [1, 2]},
    {"model_type": "mistral", "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
]
TOKENIZER_CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ messages }}"}
GENERATION_CONFIG = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "do_sample": True, "eos_token_id": 2}

FUZZ = pathlib.Path(__file__).resolve().parent


def models(onnx_data, tlite):
    for path in sorted(onnx_data.rglob("model.onnx")):
        if path.stat().st_size < MAX_MODEL:
            yield path.read_bytes()
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        for name in ("llama", "qwen2"):
            source, out = folder / f"{name}.gguf", folder / name
            source.write_bytes(gguf(name, 8))
            subprocess.run([tlite, "convert", source, "-o", out], check=True, capture_output=True)
            yield (out / "model.onnx").read_bytes()


def main():
    out, onnx_data, tlite = map(pathlib.Path, sys.argv[1:])
    onnx = list(models(onnx_data, tlite))
    tensors = [p.read_bytes() for p in sorted(onnx_data.rglob("*.pb")) if p.stat().st_size < 1000]
    numbers = [npy("<f4", (2, 3), bytes(24)), npy("|u1", (4,), bytes(4)), npy("<i8", (), bytes(8)),
               npy("<f2", (2, 2), bytes(8), True), npy(">f8", (1,), bytes(8)), npy("|b1", (2,), bytes(2))]
    ggufs = [gguf("llama", 8), gguf("qwen2", 2), gguf("qwen3", 3), gguf("llama", 6, sentencepiece=True),
             gguf("gemma", 8, sentencepiece=True), gguf("phi3", 8, sentencepiece=True), gguf("llama", 1, 8, 16),
             gguf("llama", 7), *(gguf("llama", kind, 256, 256) for kind in K_QUANTS)]
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}
    configs = [json.dumps(c).encode() for c in CONFIGS]
    others = json.dumps(TOKENIZER_CONFIG).encode() + PARTS + json.dumps(GENERATION_CONFIG).encode()
    seeds = {
        "plan": onnx,
        "run": onnx,
        "cpu": onnx,
        "opencl": onnx[::SOME],
        "gguf": ggufs,
        "safetensors": [checkpoint(), checkpoint(rope_scaling=scaling), checkpoint("gptq"), checkpoint("awq")],
        "npy": numbers,
        "pb": tensors[:200],
        "picture": [png(5, 4), png(3, 3, 0), png(2, 2, 6, 16), png(4, 4, 3), png(40, 2, 4)],
        "tokenizer": [json.dumps(t).encode() for t in tokenizers()],
        "template": [t.encode() for t in TEMPLATES],
        "config": [c + PARTS + others for c in configs],
        "schema": [s.encode() for s in SCHEMAS],
        "lark": [g.encode() for g in GRAMMARS],
        "dim": [d.encode() for d in DIMS],
        "cache": [cache_entry()],
        "prompt_cache": [prompt_cache()],
        "hub": [RESPONSES.join(c) for c in conversations()],
    }
    seeds["template"] += [p.read_bytes() for p in sorted((FUZZ.parent / "tests/data/templates").glob("*.jinja"))]
    for target, inputs in seeds.items():
        folder = out / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(inputs):
            (folder / f"seed-{number}").write_bytes(data)


main()
