#!/usr/bin/env python3
"""Converts a llama2.c checkpoint with an appended tokenizer to a GGUF file for `tlite convert`.

usage: llama2c_to_gguf.py CHECKPOINT OUTPUT.gguf

CHECKPOINT is in llama2.c's first format (seven integers, then all weights as f32), followed by the
contents of a tokenizer.bin, like the stories15M file that fetch_model.py downloads. Weights are
copied bit by bit. Needs only Python.
"""

import os
import struct
import sys

ALIGN = 32
U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
FIRST_BYTE, FIRST_PIECE = 3, 259


class Failure(Exception):
    """An error to report to the user."""


def tensors(header):
    """GGUF names, sizes (innermost first) and offsets of all weights, and the end of the last
    one."""
    dim, hidden, layers, heads, kv_heads, vocab, context = header
    shared, vocab = vocab > 0, abs(vocab)
    kv_dim = dim // heads * kv_heads
    at = struct.calcsize("<7i")
    out = []

    def take(name, *sizes, of_layers=True):
        nonlocal at
        for layer in range(layers if of_layers else 1):
            out.append((name.format(layer), sizes, at))
            count = 1
            for size in sizes:
                count *= size
            at += 4 * count

    take("token_embd.weight", dim, vocab, of_layers=False)
    take("blk.{}.attn_norm.weight", dim)
    take("blk.{}.attn_q.weight", dim, dim)
    take("blk.{}.attn_k.weight", dim, kv_dim)
    take("blk.{}.attn_v.weight", dim, kv_dim)
    take("blk.{}.attn_output.weight", dim, dim)
    take("blk.{}.ffn_norm.weight", dim)
    take("blk.{}.ffn_gate.weight", dim, hidden)
    take("blk.{}.ffn_down.weight", hidden, dim)
    take("blk.{}.ffn_up.weight", dim, hidden)
    take("output_norm.weight", dim, of_layers=False)
    # Skip cosines and sines of the rotary embedding, which the graph computes.
    at += 4 * context * (dim // heads)
    if not shared:
        take("output.weight", dim, vocab, of_layers=False)
    return out, at


def pieces(data, at, vocab):
    """Texts, scores and roles of the tokens."""
    at += 4
    texts, scores, roles = [], [], []
    for token in range(vocab):
        score, length = struct.unpack_from("<fi", data, at)
        at += 8
        text = data[at : at + length]
        at += length
        role = NORMAL
        if token < FIRST_BYTE:
            text, role = [(b"<unk>", UNKNOWN), (b"<s>", CONTROL), (b"</s>", CONTROL)][token]
        elif token < FIRST_PIECE:
            text, role = b"<0x%02X>" % (token - FIRST_BYTE), BYTE
        texts.append(text.replace(b" ", "\u2581".encode()))
        scores.append(score)
        roles.append(role)
    if at != len(data):
        raise Failure(f"found {len(data) - at} bytes after the tokenizer of {vocab} tokens, expected none")
    return texts, scores, roles


def string(text):
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text


def entry(key, kind, value):
    head = string(key) + struct.pack("<I", kind)
    if kind == STRING:
        return head + string(value)
    if kind == ARRAY:
        inner, values = value
        body = b"".join(map(string, values)) if inner == STRING else struct.pack(f"<{len(values)}{'f' if inner == F32 else 'i'}", *values)
        return head + struct.pack("<IQ", inner, len(values)) + body
    return head + struct.pack("<f" if kind == F32 else "<I", value)


def convert(data):
    """The contents of the GGUF file, in parts."""
    if len(data) < struct.calcsize("<7i"):
        raise Failure(f"not a checkpoint: the file has only {len(data)} bytes")
    header = struct.unpack_from("<7i", data)
    dim, hidden, layers, heads, kv_heads, vocab, context = header
    if min(dim, hidden, layers, heads, kv_heads, abs(vocab), context) < 1 or dim % heads or heads % kv_heads:
        raise Failure(f"not a checkpoint: invalid sizes {header}")
    weights, end = tensors(header)
    if end > len(data):
        raise Failure(f"expected at least {end} bytes for weights of these sizes, found {len(data)}")
    texts, scores, roles = pieces(data, end, abs(vocab))
    metadata = [
        entry("general.architecture", STRING, "llama"),
        entry("general.name", STRING, f"llama2.c {dim}x{layers}"),
        entry("llama.block_count", U32, layers),
        entry("llama.embedding_length", U32, dim),
        entry("llama.feed_forward_length", U32, hidden),
        entry("llama.context_length", U32, context),
        entry("llama.attention.head_count", U32, heads),
        entry("llama.attention.head_count_kv", U32, kv_heads),
        entry("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        entry("llama.rope.freq_base", F32, 10000.0),
        entry("tokenizer.ggml.model", STRING, "llama"),
        entry("tokenizer.ggml.tokens", ARRAY, (STRING, texts)),
        entry("tokenizer.ggml.scores", ARRAY, (F32, scores)),
        entry("tokenizer.ggml.token_type", ARRAY, (I32, roles)),
        entry("tokenizer.ggml.bos_token_id", U32, 1),
        entry("tokenizer.ggml.eos_token_id", U32, 2),
        entry("tokenizer.ggml.unknown_token_id", U32, 0),
    ]
    infos, blocks, offset = [], [], 0
    for name, sizes, at in weights:
        length = 4
        for size in sizes:
            length *= size
        infos.append(string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, offset))
        padding = -length % ALIGN
        blocks += [data[at : at + length], bytes(padding)]
        offset += length + padding
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(metadata)) + b"".join(metadata + infos)
    return [head, bytes(-len(head) % ALIGN), *blocks]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    source, target = sys.argv[1:]
    try:
        with open(source, "rb") as file:
            parts = convert(file.read())
        with open(target + ".part", "wb") as file:
            file.writelines(parts)
        os.replace(target + ".part", target)
    except (Failure, OSError, struct.error) as e:
        sys.exit(f"error: {source}: {e}")


if __name__ == "__main__":
    main()
