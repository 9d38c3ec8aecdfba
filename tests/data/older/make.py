"""Makes the files of this folder with version e9667f7b of the command: `python3 make.py TLITE`.

They are what that version wrote: a model folder, prompt caches, and a kernel cache. The weights are
random. Tests load the files with the current version.
"""

import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
TLITE = sys.argv[1]
VOCAB, WIDTH, INNER, LAYERS, HEADS, KV_HEADS = 258, 32, 48, 2, 4, 2
BACKENDS = (("cpu", "float"), ("opencl", "q8"))
PROMPT = "A small model that an earlier version converted, with a prompt of more than one page of tokens."


def tensors():
    head = WIDTH // HEADS
    yield "model.embed_tokens.weight", (VOCAB, WIDTH)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (WIDTH,)
        yield layer + "post_attention_layernorm.weight", (WIDTH,)
        yield layer + "self_attn.q_proj.weight", (WIDTH, WIDTH)
        yield layer + "self_attn.k_proj.weight", (KV_HEADS * head, WIDTH)
        yield layer + "self_attn.v_proj.weight", (KV_HEADS * head, WIDTH)
        yield layer + "self_attn.o_proj.weight", (WIDTH, WIDTH)
        yield layer + "mlp.gate_proj.weight", (INNER, WIDTH)
        yield layer + "mlp.up_proj.weight", (INNER, WIDTH)
        yield layer + "mlp.down_proj.weight", (WIDTH, INNER)
    yield "model.norm.weight", (WIDTH,)


def checkpoint(folder):
    numbers = random.Random(7)
    data, header = b"", {}
    for name, shape in tensors():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0 + numbers.uniform(-0.1, 0.1) if len(shape) == 1 else numbers.uniform(-0.5, 0.5) for _ in range(count)]
        part = struct.pack(f"<{count}e", *values)
        header[name] = dict(dtype="F16", shape=shape, data_offsets=[len(data), len(data) + len(part)])
        data += part
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=INNER,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, max_position_embeddings=256,
        rope_theta=10000.0, rms_norm_eps=1e-5, bos_token_id=256, eos_token_id=257, tie_word_embeddings=True, hidden_act="silu",
        torch_dtype="float16",
    )
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(HERE.parents[2] / "fuzz/src/byte_tokenizer.json", folder / "tokenizer.json")


def tlite(*arguments):
    run = subprocess.run([TLITE, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


with tempfile.TemporaryDirectory() as temporary:
    work = pathlib.Path(temporary)
    (work / "checkpoint").mkdir()
    checkpoint(work / "checkpoint")
    for name in ("model", "kernels"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    tlite("convert", work / "checkpoint", "-o", work / "model")
    tlite("quantize", work / "model", "-o", HERE / "model")
    answers = {}
    for backend, kv in BACKENDS:
        cache = HERE / f"{backend}.prompt"
        cache.unlink(missing_ok=True)
        options = ["--backend", backend, "--kv", kv, "--temperature", "0", "-n", "12", "--raw", "--json"]
        options += ["--cache-dir", work / "kernels", "--prompt-cache", cache]
        answers[backend] = json.loads(tlite("generate", "-m", HERE / "model", "-p", PROMPT, *options))
    answer = dict(prompt=PROMPT, **{key: answers["cpu"][key] for key in ("driver", "tokens")})
    (HERE / "answer.json").write_text(json.dumps(answer) + "\n")
    # The smallest file of each kind.
    (HERE / "kernels").mkdir()
    for kind in ("program", "verdict", "quarantine"):
        files = (work / "kernels").glob(f"{kind}-*")
        shutil.copy(min(files, key=lambda file: file.stat().st_size), HERE / "kernels")
