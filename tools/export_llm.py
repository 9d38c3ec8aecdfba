#!/usr/bin/env python3
"""Exports decoders of language models with KV caches from PyTorch to ONNX.

usage: export_llm.py MODEL -o DIR [--form paper|plain|optimum|uncached]
       export_llm.py --gguf FILE -o DIR [--form ..]
       export_llm.py --config FAMILY --random-weights [--size true|small] [--seed N]
                     [--layers N] [--hidden N] .. -o DIR [--form ..]
       export_llm.py --list

MODEL is a folder in the format of transformers: config.json and *.safetensors or
pytorch_model*.bin. --gguf FILE reads architecture and weights from a GGUF file through transformers
instead. --random-weights generates the weights of a family from the seed, equal on every machine,
at the family's true size or at a small one for tests. Nothing is downloaded. DIR must not exist; it
gets model.onnx, config.json and the tokenizer files that exist.

--form plain      (default) The graph of transformers' own code. Inputs: attention_mask [batch,
                  keys], position_ids, past_key_values.N.key and .value [batch, heads, keys, size].
                  Outputs: logits, present.N.key and .value including the new rows. Families that
                  the installed transformers lacks come from llm_modules.py.
--form paper      The form of the paper, always from llm_modules.py. The mask [1, 1, N, sumN] is
                  added to the scores; past_key_inN and past_value_inN are [1, sumN - N, heads,
                  size] (ChatGLM2: [sumN - N, 1, heads, size]); past_keyN and past_valueN are only
                  the N new rows.
--form optimum    The output of `optimum-cli export onnx --task text-generation-with-past`.
--form uncached   The same with `--task text-generation`: without a KV cache.

Needs torch 1.13 or newer with a matching transformers (4.46 for torch 1.13), onnx and numpy, but no
GPU. If they are missing, a Python environment is created in the cache folder, with Debian's
python3-torch if that is installed. The modules of llm_modules.py are compared with transformers if
that has the family, and the file is compared with PyTorch if onnxruntime is installed.
"""

import argparse
import contextlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings

# True sizes, from the authors' config.json.
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
FAMILIES = {
    "llama2": dict(model_type="llama", vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
                   num_attention_heads=32, num_key_value_heads=32, max_position_embeddings=4096, rms_norm_eps=1e-5,
                   tie_word_embeddings=False),
    "llama3": dict(model_type="llama", vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                   num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072, rms_norm_eps=1e-5,
                   rope_theta=500000.0, rope_scaling=LLAMA3, tie_word_embeddings=True),
    "smollm": dict(model_type="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                   num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=100000.0,
                   tie_word_embeddings=True),
    "mistral": dict(model_type="mistral", vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                    num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=32768, rms_norm_eps=1e-5,
                    sliding_window=4096, tie_word_embeddings=False),
    "qwen1.5": dict(model_type="qwen2", vocab_size=151936, hidden_size=2560, intermediate_size=6912, num_hidden_layers=40,
                    num_attention_heads=20, num_key_value_heads=20, max_position_embeddings=32768, rms_norm_eps=1e-6,
                    rope_theta=5000000.0, use_sliding_window=False, tie_word_embeddings=False),
    "qwen2": dict(model_type="qwen2", vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
                  num_attention_heads=12, num_key_value_heads=2, max_position_embeddings=32768, rms_norm_eps=1e-6,
                  rope_theta=1000000.0, use_sliding_window=False, tie_word_embeddings=True),
    "qwen2.5": dict(model_type="qwen2", vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                    num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=32768, rms_norm_eps=1e-6,
                    rope_theta=1000000.0, use_sliding_window=False, tie_word_embeddings=True),
    "qwen3": dict(model_type="qwen3", vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                  num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, rms_norm_eps=1e-6,
                  rope_theta=1000000.0, tie_word_embeddings=True),
    "gemma": dict(model_type="gemma", vocab_size=256000, hidden_size=2048, intermediate_size=16384, num_hidden_layers=18,
                  num_attention_heads=8, num_key_value_heads=1, head_dim=256, max_position_embeddings=8192, rms_norm_eps=1e-6,
                  hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True),
    "gemma2": dict(model_type="gemma2", vocab_size=256000, hidden_size=2304, intermediate_size=9216, num_hidden_layers=26,
                   num_attention_heads=8, num_key_value_heads=4, head_dim=256, max_position_embeddings=8192, rms_norm_eps=1e-6,
                   hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
                   query_pre_attn_scalar=256, sliding_window=4096, tie_word_embeddings=True),
    "gemma3": dict(model_type="gemma3_text", vocab_size=262144, hidden_size=1152, intermediate_size=6912, num_hidden_layers=26,
                   num_attention_heads=4, num_key_value_heads=1, head_dim=256, max_position_embeddings=32768, rms_norm_eps=1e-6,
                   hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=256, rope_theta=1000000.0, rope_local_base_freq=10000.0,
                   sliding_window=512, sliding_window_pattern=6, tie_word_embeddings=True),
    "phi3": dict(model_type="phi3", vocab_size=32064, hidden_size=3072, intermediate_size=8192, num_hidden_layers=32,
                 num_attention_heads=32, num_key_value_heads=32, max_position_embeddings=4096, original_max_position_embeddings=4096,
                 rms_norm_eps=1e-5, sliding_window=2047, pad_token_id=32000, tie_word_embeddings=False),
    "phi4-mini": dict(model_type="phi3", vocab_size=200064, hidden_size=3072, intermediate_size=8192, num_hidden_layers=32,
                      num_attention_heads=24, num_key_value_heads=8, max_position_embeddings=131072,
                      original_max_position_embeddings=4096, rms_norm_eps=1e-5, partial_rotary_factor=0.75, pad_token_id=199999,
                      tie_word_embeddings=True),
    "chatglm2": dict(model_type="chatglm", padded_vocab_size=65024, hidden_size=4096, ffn_hidden_size=13696, num_layers=28,
                     num_attention_heads=32, multi_query_attention=True, multi_query_group_num=2, kv_channels=128, seq_length=32768,
                     layernorm_epsilon=1e-5, add_qkv_bias=True, tie_word_embeddings=False),
}
# Sizes for tests: the smallest that still have all features of a family.
SMALL = dict(vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, max_position_embeddings=512, sliding_window=24, pad_token_id=0)
SMALL_OF = {
    "llama2": dict(num_key_value_heads=4),
    "llama3": dict(rope_scaling={**LLAMA3, "factor": 4.0, "original_max_position_embeddings": 64}),
    "smollm": dict(hidden_size=48, num_attention_heads=3, num_key_value_heads=1),
    "qwen1.5": dict(num_key_value_heads=4),
    "gemma": dict(num_key_value_heads=1, head_dim=32),
    "gemma2": dict(query_pre_attn_scalar=24),
    "gemma3": dict(num_key_value_heads=1, head_dim=32, query_pre_attn_scalar=24, num_hidden_layers=4, sliding_window_pattern=3),
    "phi3": dict(num_key_value_heads=4, original_max_position_embeddings=512),
    "phi4-mini": dict(original_max_position_embeddings=512),
}
GLM_NAMES = {"vocab_size": "padded_vocab_size", "intermediate_size": "ffn_hidden_size", "num_hidden_layers": "num_layers",
             "num_key_value_heads": "multi_query_group_num", "head_dim": "kv_channels", "max_position_embeddings": "seq_length"}
# Options that change a size, with the entry of config.json that they set.
SIZES = {"layers": "num_hidden_layers", "hidden": "hidden_size", "inner": "intermediate_size", "heads": "num_attention_heads",
         "kv-heads": "num_key_value_heads", "head-dim": "head_dim", "vocab": "vocab_size", "context": "max_position_embeddings",
         "window": "sliding_window"}
TOKENIZER = ["tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
             "merges.txt", "chat_template.jinja", "generation_config.json"]
PACKAGES = ["transformers==4.46.3", "onnx>=1.16,<1.23", "numpy<2", "gguf", "accelerate<1.2", "onnxruntime"]
# Tasks of Optimum, by --form.
OPTIMUM_TASKS = {"optimum": "text-generation-with-past", "uncached": "text-generation"}
# The last version that takes torch 1.13.
OPTIMUM = ["optimum==1.23.3"]
# Optimum's default for these families.
OPTIMUM_OPSET = 14


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def fail(text):
    sys.exit(f"error: {text}")


def ensure_packages(optimum):
    """Continues in a Python environment with the packages, which is created on first use."""
    try:
        import numpy, onnx, torch, transformers  # noqa: E401, F401

        if optimum:
            import optimum.exporters.onnx  # noqa: F401
        return
    except ImportError as e:
        missing = e
    cache = os.environ.get("TLITE_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "transformer-lite")
    venv = os.path.join(cache, "llm-venv")
    python = os.path.join(venv, "bin", "python")
    ready = os.path.join(venv, "ready-optimum" if optimum else "ready")
    if os.path.exists(ready) and os.path.realpath(sys.prefix) == os.path.realpath(venv):
        fail(f"{missing}; remove {venv} and try again")
    if not os.path.exists(ready):
        say(f"Creating a Python environment in {venv}")
        system = "/usr/bin/python3"
        debian = os.path.exists(system) and subprocess.run([system, "-c", "import torch"], capture_output=True).returncode == 0
        make = [system, "-m", "venv", "--system-site-packages"] if debian else [sys.executable, "-m", "venv"]
        pip = [python, "-m", "pip", "-q", "install"]
        torch = [] if debian else [[*pip, "torch>=1.13,<2.6"]]
        for command in [[*make, venv], *torch, [*pip, *PACKAGES, *(OPTIMUM if optimum else [])]]:
            if subprocess.run(command, stdout=sys.stderr).returncode:
                fail(f"{' '.join(command)} failed; install Debian's python3-torch and python3-venv, or torch, transformers, onnx and numpy")
        open(ready, "w").close()
    os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])


def named(entries, glm):
    """Entries of config.json; for ChatGLM2 renamed, without those that it lacks."""
    if not glm:
        return entries
    known = {*GLM_NAMES, "hidden_size", "num_attention_heads"}
    return {GLM_NAMES.get(k, k): v for k, v in entries.items() if k in known}


def configured(args):
    """The config.json of a family at the requested size."""
    config = dict(FAMILIES[args.config])
    glm = config["model_type"] == "chatglm"
    if args.size == "small":
        small = {**SMALL, **SMALL_OF.get(args.config, {})}
        if "sliding_window" not in config:
            small.pop("sliding_window")
        config.update(named(small, glm))
    asked = {entry: getattr(args, option.replace("-", "_")) for option, entry in SIZES.items()}
    asked = {entry: value for entry, value in asked.items() if value is not None}
    unknown = [entry for entry in asked if entry == "sliding_window" and entry not in config]
    if unknown:
        fail(f"--window: {args.config} has no sliding window")
    config.update(named(asked, glm))
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads", config.get("multi_query_group_num"))
    if heads % groups:
        fail(f"--kv-heads: {groups} must divide the number of heads, {heads}")
    return config


def make_up(model, seed):
    """Sets random weights that give activations a realistic magnitude and uneven attention."""
    import numpy as np
    import torch

    random = np.random.RandomState(seed)
    layers = len(model.model.layers)
    plus_one = model.s.plus_one
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.from_numpy(random.standard_normal(tuple(p.shape)).astype(np.float32))
            if "norm" in name:
                p.copy_((0.0 if plus_one else 1.0) + 0.1 * noise)
            elif name.endswith("bias"):
                p.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                # Also the output head if tied. Gemma scales embeddings.
                p.copy_(noise * (model.s.hidden ** -0.5 if model.s.tied else 0.5))
            else:
                added = name.endswith(("o_proj.weight", "down_proj.weight"))
                sharp = 2.0 if name.endswith(("q_proj.weight", "k_proj.weight", "qkv_proj.weight")) else 1.0
                p.copy_(sharp * noise * (p.shape[1] * (2 * layers if added else 1)) ** -0.5)


def class_of(config):
    """The model from transformers without weights, or None if the installed version lacks the
    family."""
    import transformers

    if config["model_type"] == "chatglm" or config["model_type"] not in transformers.CONFIG_MAPPING:
        return None
    # Older versions ignore Phi's partial rotary factor.
    turned = config.get("partial_rotary_factor", 1.0)
    if turned != 1.0 and tuple(map(int, transformers.__version__.split(".")[:2])) < (4, 49):
        return None
    made = transformers.CONFIG_MAPPING[config["model_type"]](**{k: v for k, v in config.items() if k != "model_type"})
    # Eager attention exports as matmuls and a softmax.
    made._attn_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval()


def checkpoint(folder):
    """The tensors of a checkpoint folder, as f32."""
    import torch

    names = sorted(os.listdir(folder))
    files = [n for n in names if n.endswith(".safetensors")] or [n for n in names if n.startswith("pytorch_model") and n.endswith(".bin")]
    if not files:
        fail(f"{folder}: expected *.safetensors or pytorch_model*.bin, found neither")
    tensors = {}
    for name in files:
        path = os.path.join(folder, name)
        if name.endswith(".bin"):
            part = torch.load(path, map_location="cpu")
        else:
            from safetensors.torch import load_file

            part = load_file(path)
        tensors.update({k: v.float() if v.is_floating_point() else v for k, v in part.items()})
    return tensors


def loaded(model, tensors):
    """Loads `tensors` into `model`; all parameters of the model must be present."""
    wanted = dict(model.named_parameters())
    tied = "lm_head.weight" not in wanted or "lm_head.weight" not in tensors
    missing = [n for n in wanted if n not in tensors]
    if missing and not (tied and missing == ["lm_head.weight"]):
        fail(f"the checkpoint lacks {len(missing)} tensors, for example {missing[0]}")
    for name in wanted:
        if name in tensors and tensors[name].shape != wanted[name].shape:
            fail(f"{name}: expected {list(wanted[name].shape)}, found {list(tensors[name].shape)}")
    model.load_state_dict(tensors, strict=False)
    return model


def sources(args):
    """config.json, our module in the requested form, transformers' module or None, and the source
    of the weights."""
    import transformers
    from llm_modules import Decoder, glm_names

    paper = args.form == "paper"
    theirs = None
    if args.config:
        config = configured(args)
        ours = Decoder(config, paper).eval()
        make_up(ours, args.seed)
        theirs = class_of(config)
        if theirs is not None:
            loaded(theirs, ours.state_dict())
        return config, ours, theirs, f"random, seed {args.seed}"
    if args.gguf:
        if not os.path.isfile(args.gguf):
            fail(f"{args.gguf} not found")
        folder, file = os.path.split(os.path.abspath(args.gguf))
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, local_files_only=True, attn_implementation="eager")
        theirs = theirs.float().eval()
        from gguf import GGUFReader

        # Some versions of transformers initialize an output head randomly if the file has none.
        if all(t.name != "output.weight" for t in GGUFReader(args.gguf).tensors):
            theirs.config.tie_word_embeddings = True
            theirs.tie_weights()
        config = full = {k: v for k, v in theirs.config.to_dict().items() if not k.startswith("_")}
        tensors, source = theirs.state_dict(), file
    else:
        path = os.path.join(args.model, "config.json")
        if not os.path.isfile(path):
            fail(f"{args.model}: expected a folder with config.json")
        with open(path, encoding="utf-8") as f:
            config = full = json.load(f)
        if config.get("model_type") not in {f["model_type"] for f in FAMILIES.values()}:
            fail(f"{path}: model_type {config.get('model_type')} is not supported; see --list")
        tensors, source = checkpoint(args.model), os.path.basename(os.path.abspath(args.model))
        if config["model_type"] == "chatglm":
            tensors = glm_names(tensors)
        else:
            theirs = class_of(config)
            if theirs is not None:
                loaded(theirs, tensors)
    return config, loaded(Decoder(full, paper).eval(), tensors), theirs, f"from {source}"


def wrapped(theirs):
    """transformers' module with our inputs and outputs."""
    import torch
    from transformers import DynamicCache

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.theirs = theirs

        def forward(self, input_ids, attention_mask, position_ids, *past):
            pairs = tuple(zip(past[0::2], past[1::2]))
            cache = DynamicCache.from_legacy_cache(pairs)
            out = self.theirs(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache,
                              use_cache=True, return_dict=True)
            made = out.past_key_values
            made = made.to_legacy_cache() if hasattr(made, "to_legacy_cache") else made
            return (out.logits, *(t for pair in made for t in pair))

    return Wrapped().eval()


class Case:
    """Inputs of one call: `new` tokens after `past` others."""

    def __init__(self, ours, past, new, seed, cache=None):
        import torch

        generator = torch.Generator().manual_seed(seed)
        empty, self.axis = ours.cache_axes()
        ids = torch.randint(0, ours.s.vocab, (1, new), generator=generator)
        positions = torch.arange(past, past + new)[None]
        if ours.paper:
            from llm_modules import HIDDEN

            mask = torch.full((new, past + new), HIDDEN).triu(past + 1)[None, None]
        else:
            mask = torch.ones((1, past + new), dtype=torch.int64)
        sizes = [past if i == self.axis else n for i, n in enumerate(empty)]
        if cache is None:
            cache = [torch.randn(sizes, generator=generator) for _ in range(2 * ours.s.layers)]
        self.inputs = (ids, mask, positions, *cache)


def interface(ours):
    """Names of inputs and outputs, and their dynamic axes."""
    layers = range(ours.s.layers)
    if ours.paper:
        past = [f"past_{part}_in{i}" for i in layers for part in ("key", "value")]
        made = [f"past_{part}{i}" for i in layers for part in ("key", "value")]
        new, keys, old, batch = "N", "sumN", "sumN-N", {}
        mask = {2: new, 3: keys}
    else:
        past = [f"past_key_values.{i}.{part}" for i in layers for part in ("key", "value")]
        made = [f"present.{i}.{part}" for i in layers for part in ("key", "value")]
        new, keys, old, batch = "sequence_length", "past_sequence_length + sequence_length", "past_sequence_length", {0: "batch_size"}
        mask = {**batch, 1: keys}
    axis = ours.cache_axes()[1]
    cache_batch = {} if ours.paper else ({1: "batch_size"} if ours.s.glm else batch)
    axes = {"input_ids": {**batch, 1: new}, "attention_mask": mask, "position_ids": {**batch, 1: new}, "logits": {**batch, 1: new}}
    axes.update({n: {**cache_batch, axis: old} for n in past})
    axes.update({n: {**cache_batch, axis: new if ours.paper else keys} for n in made})
    return ["input_ids", "attention_mask", "position_ids", *past], ["logits", *made], axes


@contextlib.contextmanager
def gaps_filled(opset):
    """Fixes the exporter of old versions of torch: adds the logical or, and keeps it from exporting
    numbers in `where` as doubles."""
    import torch

    where = torch.where

    def of_tensors(condition, *values):
        kinds = [v.dtype for v in values if isinstance(v, torch.Tensor)]
        return where(condition, *(torch.tensor(v, dtype=kinds[0]) if kinds and not isinstance(v, torch.Tensor) else v for v in values))

    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 0):
        torch.onnx.register_custom_op_symbolic("aten::bitwise_or", lambda g, a, b: g.op("Or", a, b), opset)
    torch.where = of_tensors
    try:
        yield
    finally:
        torch.where = where


def export(module, ours, file, opset):
    import torch

    # Use the tracing exporter, which is no longer the default in newer versions of torch.
    kind = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    names, made, axes = interface(ours)
    with warnings.catch_warnings(), torch.no_grad(), gaps_filled(opset):
        warnings.simplefilter("ignore")
        torch.onnx.export(module, Case(ours, 5, 3, 0).inputs, file, input_names=names, output_names=made, dynamic_axes=axes,
                          opset_version=opset, do_constant_folding=True, **kind)


def export_by_optimum(theirs, task, folder, work):
    """Exports transformers' module with Optimum for a task to `folder`."""
    from optimum.exporters.onnx import main_export

    theirs.save_pretrained(work)
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr), gaps_filled(OPTIMUM_OPSET):
        warnings.simplefilter("ignore")
        try:
            main_export(work, folder, task=task, opset=OPTIMUM_OPSET, do_validation=False, local_files_only=True)
        except ValueError as e:
            fail(f"Optimum: {e}")


def finished(file, weights, ours):
    """Records the source of the weights in the file, and sets the symbolic sizes of inputs and
    outputs."""
    import onnx

    model = onnx.load(file)
    _, _, axes = interface(ours)
    for value in [*model.graph.input, *model.graph.output]:
        for axis, text in axes.get(value.name, {}).items():
            value.type.tensor_type.shape.dim[axis].dim_param = text
    onnx.helper.set_model_props(model, {"weights": weights})
    if model.ByteSize() > 1 << 30:
        onnx.save(model, file, save_as_external_data=True, location="model.onnx.data")
    else:
        onnx.save(model, file)
    onnx.checker.check_model(file)


def distance(found, wanted):
    """The largest difference relative to the range of `wanted`."""
    return float((found - wanted).abs().max() / (wanted.max() - wanted.min()))


def check_modules(ours, theirs):
    """Compares our module, in any form, with transformers'."""
    import torch

    for past, new in ((0, 12), (7, 5)):
        # Old versions of transformers start a sliding window at the first new row.
        if past and any(w and w < past + new for w in ours.s.windows):
            continue
        case = Case(ours, past, new, 1)
        ids, _, positions, *cache = case.inputs
        other = [t.transpose(1, 2) for t in cache] if ours.paper else cache
        with torch.no_grad():
            found = ours(*case.inputs)[0]
            wanted = wrapped(theirs)(ids, torch.ones((1, past + new), dtype=torch.int64), positions, *other)[0]
        error = distance(found, wanted)
        say(f"llm_modules.py: {new} tokens after {past}: difference to transformers {error:.1e} of the range")
        if not error <= 1e-4:
            fail("llm_modules.py differs from transformers")


def check_file(module, ours, file):
    """Compares a file with PyTorch if ONNX Runtime is installed."""
    import torch

    try:
        import onnxruntime
    except ImportError:
        say("onnxruntime is not installed; skipping the comparison with PyTorch")
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    cached = any("past" in v.name for v in session.get_inputs())
    for past, new in ((0, 37), (37, 1), (40, 2)) if cached else ((0, 37), (0, 1)):
        case = Case(ours, past, new, past)
        with torch.no_grad():
            wanted = module(*case.inputs)
        by_name = dict(zip(interface(ours)[0], case.inputs))
        feeds = {v.name: by_name[v.name].numpy() for v in session.get_inputs()}
        found = session.run(None, feeds)
        error = max(distance(torch.from_numpy(f), w) for f, w in zip(found, wanted))
        say(f"{os.path.basename(file)}: {new} tokens after {past}: difference to PyTorch {error:.1e} of the range")
        if not error <= 1e-4:
            fail(f"{file} differs from PyTorch")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", metavar="MODEL")
    parser.add_argument("--config", choices=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--list", action="store_true", help="print the families")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--size", choices=["true", "small"], default="true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gguf", metavar="FILE")
    parser.add_argument("-o", "--output", metavar="DIR")
    parser.add_argument("--form", choices=["paper", "plain", *OPTIMUM_TASKS], default="plain")
    parser.add_argument("--opset", type=int, default=17, help="ONNX opset of the forms paper and plain (default: 17)")
    for option in SIZES:
        parser.add_argument(f"--{option}", type=int, metavar="N")
    args = parser.parse_args()
    if args.list:
        print("\n".join(FAMILIES))
        return
    if sum(map(bool, (args.model, args.config, args.gguf))) != 1:
        parser.error("give exactly one of MODEL, --config FAMILY and --gguf FILE")
    if bool(args.config) != args.random_weights:
        parser.error("--config and --random-weights must be used together")
    if not args.config and any(getattr(args, o.replace("-", "_")) is not None for o in SIZES):
        parser.error("sizes can be changed only with --config")
    if not args.output:
        parser.error("-o DIR is needed")
    if os.path.exists(args.output):
        fail(f"{args.output} exists already")
    # Disable progress bars.
    os.environ.setdefault("TQDM_DISABLE", "1")
    ensure_packages(args.form in OPTIMUM_TASKS)
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(args.seed)
    config, ours, theirs, weights = sources(args)
    if theirs is not None:
        check_modules(ours, theirs)
    module = ours if theirs is None or ours.paper else wrapped(theirs)
    task = OPTIMUM_TASKS.get(args.form)
    if task and theirs is None:
        fail(f"--form {args.form}: transformers {transformers.__version__} does not support the family")
    output = os.path.abspath(args.output)
    os.makedirs(os.path.dirname(output), exist_ok=True)
    part = tempfile.mkdtemp(prefix=".export-", dir=os.path.dirname(output))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, part, ignore_errors=True)
        file = os.path.join(part, "model.onnx")
        if task:
            export_by_optimum(theirs, task, part, stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            export(module, ours, file, args.opset)
            finished(file, weights, ours)
            with open(os.path.join(part, "config.json"), "w", encoding="utf-8") as f:
                json.dump(config, f, indent=2)
        check_file(module, ours, file)
        for name in TOKENIZER if args.model else []:
            if os.path.isfile(os.path.join(args.model, name)):
                shutil.copyfile(os.path.join(args.model, name), os.path.join(part, name))
        if args.gguf:
            folder, gguf = os.path.split(os.path.abspath(args.gguf))
            transformers.AutoTokenizer.from_pretrained(folder, gguf_file=gguf, local_files_only=True).save_pretrained(part)
        os.chmod(part, 0o755)
        os.rename(part, output)
    print(os.path.join(output, "model.onnx"))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
