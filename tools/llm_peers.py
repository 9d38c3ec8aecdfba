#!/usr/bin/env python3
"""Runs other engines for compare_llm.py, each in its own process and Python environment.

    llm_peers.py llama.cpp|vulkan|genai|openvino|mnn MODEL --context N --threads N [--llama-cpp DIR]
                 [--sequences N]
    llm_peers.py genai-model GGUF --builder FOLDER -o DIR
    llm_peers.py mnn-model GGUF -o DIR

An engine writes {"device": ..} when it is ready. For each line {"prefill": [..], "decode": N,
"sequences": [..]} of standard input it runs every test once after a warm-up, and writes {"pp128":
tokens/s, .., "tgN": tokens/s, "seqN": tokens/s}. After a failure it writes {"error": ..} and ends.
ppN feeds N tokens at once into an empty KV cache and computes the logits after the last one; tgN
feeds N tokens one by one. seqN is for llama.cpp only: N sequences share each step; each has a
random prompt of 128 tokens and then feeds 128 tokens, as in llama-batched-bench. --sequences is
the largest N.

MODEL is a GGUF file; for genai and mnn it is the folder that genai-model or mnn-model makes of one.
To do so, transformers reads the floats, and a converter quantizes them to 4 bits in groups of 32,
including the output head, with 8-bit activations. The converters are the model builder of ONNX
Runtime GenAI in FOLDER (accuracy level 4) and MNN's llmexport (asymmetric, its default).
"""

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time

from llama_cpp import Failure, LlamaCpp, libraries


# Tokens of the prompt of each of several sequences, and those after it.
PROMPT = AFTER = 128


class Library:
    """llama.cpp on the CPU, or through its Vulkan backend on the first Vulkan device."""

    def __init__(self, a):
        library = libraries(a.llama_cpp)
        devices = described(library)
        if a.peer == "vulkan":
            devices = {name: text for name, text in devices.items() if name.startswith("Vulkan")}
            if not devices:
                raise Failure(f"no Vulkan device found by the libraries in {a.llama_cpp}")
        self.device = f"llama.cpp: {', '.join(f'{name} {text}' for name, text in devices.items())}"
        library.llama_backend_init()
        self.model = LlamaCpp(library, a.model, a.context, a.threads)
        self.several = LlamaCpp(library, a.model, a.sequences * (PROMPT + AFTER), a.threads, a.sequences) if a.sequences else None

    def prefill(self, count):
        self.model.clear()
        return lambda: self.model.feed([1] * count)

    def decode(self, count):
        self.model.clear()
        return lambda: [self.model.feed([1]) for _ in range(count)]

    def sequences(self, count):
        self.several.clear()
        token = lambda: random.randrange(self.several.size)
        prompts = [(token(), i, s, i == PROMPT - 1) for s in range(count) for i in range(PROMPT)]
        steps = [[(token(), i, s, True) for s in range(count)] for i in range(PROMPT, PROMPT + AFTER)]
        return lambda: [self.several.feed_rows(rows) for rows in (prompts, *steps)]


def described(library):
    """The names of llama.cpp's devices, with their descriptions."""
    import ctypes

    base = ctypes.CDLL(None)
    base.ggml_backend_dev_count.restype = ctypes.c_size_t
    base.ggml_backend_dev_get.restype, base.ggml_backend_dev_get.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    for name in ("ggml_backend_dev_name", "ggml_backend_dev_description"):
        function = getattr(base, name)
        function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    all = [base.ggml_backend_dev_get(i) for i in range(base.ggml_backend_dev_count())]
    return {base.ggml_backend_dev_name(d).decode(): base.ggml_backend_dev_description(d).decode() for d in all}


class Genai:
    """ONNX Runtime GenAI on the CPU."""

    def __init__(self, a):
        import onnxruntime
        import onnxruntime_genai as og

        self.og, self.context = og, a.context
        config = og.Config(a.model)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": a.threads}}}}))
        self.model = og.Model(config)
        self.device = f"ONNX Runtime GenAI {og.__version__}, ONNX Runtime {onnxruntime.__version__}"

    def generator(self):
        params = self.og.GeneratorParams(self.model)
        # Ignore end tokens.
        params.set_search_options(max_length=self.context, min_length=self.context, do_sample=False)
        return self.og.Generator(self.model, params)

    def prefill(self, count):
        generator = self.generator()
        return lambda: generator.append_tokens([1] * count)

    def decode(self, count):
        generator = self.generator()

        # The first token is chosen from the logits of the appended one.
        def run():
            generator.append_tokens([1])
            for _ in range(count):
                generator.generate_next_token()

        return run


class OpenVino:
    """OpenVINO GenAI on the CPU in f32; its own default is bfloat16 if the CPU supports that."""

    def __init__(self, a):
        import numpy
        import openvino
        import openvino_genai as genai

        self.genai, self.numpy, self.tensor = genai, numpy, openvino.Tensor
        # The other attention backend caches prompts, so that repeating one would cost nothing.
        options = {"ATTENTION_BACKEND": "SDPA", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": a.threads}
        self.pipeline = genai.LLMPipeline(a.model, "CPU", **options)
        self.device = f"OpenVINO GenAI {genai.__version__.split('-')[0]}, f32"

    def generate(self, prompt, new):
        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        ones = self.numpy.ones((1, prompt), dtype=self.numpy.int64)
        inputs = self.genai.TokenizedInputs(self.tensor(ones), self.tensor(ones))
        return lambda: self.pipeline.generate(inputs, config)

    def prefill(self, count):
        return self.generate(count, 1)

    def decode(self, count):
        return self.generate(1, count)


class Mnn:
    """MNN on the CPU with 8-bit activations, which it quantizes as the model runs."""

    def __init__(self, a):
        import MNN.llm

        self.llm = MNN.llm.create(os.path.join(a.model, "config.json"))
        # With low memory, weights stay at 4 bits and activations have 8. Low precision permits
        # 16-bit floats, which MNN uses on Arm only.
        self.llm.set_config({"backend_type": "cpu", "thread_num": a.threads, "memory": "low", "precision": "low"})
        self.llm.load()
        # Running a model that is not loaded ends the process.
        if self.llm.context.status == MNN.llm.LlmStatus.NOT_LOADED:
            raise Failure(f"MNN could not load {a.model}")
        self.device = f"MNN {MNN.version()}"

    def prefill(self, count):
        self.llm.reset()
        return lambda: self.llm.forward([1] * count)

    def decode(self, count):
        self.llm.reset()

        def run():
            for _ in range(count):
                self.llm.forward([1])

        return run


def speed(count, prepare, tokens=1):
    """Tokens/s in the second of two runs that process `count` times `tokens`."""
    for _ in range(2):
        run = prepare(count)
        start = time.perf_counter()
        run()
        seconds = time.perf_counter() - start
    return count * tokens / seconds


def serve(a, write):
    """Answers each line of standard input."""
    peer = {"genai": Genai, "openvino": OpenVino, "mnn": Mnn}.get(a.peer, Library)(a)
    write({"device": peer.device})
    for line in sys.stdin:
        tests = json.loads(line)
        results = {f"pp{n}": speed(n, peer.prefill) for n in tests["prefill"]}
        results[f"tg{tests['decode']}"] = speed(tests["decode"], peer.decode)
        if hasattr(peer, "sequences"):
            results |= {f"seq{n}": speed(n, peer.sequences, PROMPT + AFTER) for n in tests["sequences"]}
        write(results)


def save_floats(path, target):
    """Saves a GGUF file in f32 as a Hugging Face folder; returns whether the output head is tied."""
    import gguf
    import torch
    import transformers

    folder, file = os.path.split(os.path.abspath(path))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, local_files_only=True, torch_dtype=torch.float32)
    # transformers does not detect in the file that the output head is tied to the embedding.
    if all(t.name != "output.weight" for t in gguf.GGUFReader(path).tensors):
        model.config.tie_word_embeddings = True
        model.tie_weights()
    model.save_pretrained(target)
    # The legacy format includes tokenizer.model, for which transformers would copy the GGUF file.
    transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file, local_files_only=True).save_pretrained(target, legacy_format=False)
    return model.config.tie_word_embeddings


def genai_model(a):
    """Converts a GGUF file to GenAI's format."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(a.output))) as work:
        floats, cache, made = (os.path.join(work, name) for name in ("floats", "cache", "made"))
        save_floats(a.model, floats)
        command = [sys.executable, os.path.join(a.builder, "builder.py"), "-i", floats, "-m", floats, "-o", made, "-p", "int4", "-e", "cpu", "-c", cache]
        command += ["--extra_options", "int4_block_size=32", "int4_accuracy_level=4"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise Failure(f"the model builder failed: {done.stdout.strip()[-800:]}")
        os.rename(made, a.output)


def mnn_model(a):
    """Converts a GGUF file to MNN's format."""
    # MNN's converter would install a package with this module, and send data about its use.
    sys.modules["MNN.tools.utils.log"] = None
    # The modules of llmexport import each other from its own folder.
    sys.path.insert(0, importlib.util.find_spec("llmexport").submodule_search_locations[0])
    import llmexport

    source, output = os.path.abspath(a.model), os.path.abspath(a.output)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(output)) as work:
        # llmexport writes its log to the current folder, and chooses the kind of model by the path.
        os.chdir(work)
        tied = save_floats(source, "floats")
        # llmexport saves an embedding of its own in bfloat16 by default, which needs PyTorch 2.
        llmexport.export("floats", export="mnn", dst_path="made", quant_bit=4, quant_block=32, embed_bit=16 if tied else 8)
        os.rename("made", output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=["llama.cpp", "vulkan", "genai", "openvino", "mnn", "genai-model", "mnn-model"])
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sequences", type=int, default=0)
    parser.add_argument("--llama-cpp")
    parser.add_argument("--builder")
    parser.add_argument("-o", "--output")
    a = parser.parse_args()
    # Redirect the output of libraries to standard error.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def write(message):
        print(json.dumps(message), file=out, flush=True)

    try:
        if a.peer == "genai-model":
            genai_model(a)
        elif a.peer == "mnn-model":
            mnn_model(a)
        else:
            serve(a, write)
    except Exception as e:
        write({"error": f"{type(e).__name__}: {e}" if not isinstance(e, Failure) else str(e)})
        sys.exit(1)


if __name__ == "__main__":
    main()
