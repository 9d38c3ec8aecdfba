#!/usr/bin/env python3
"""Compares how fast a model runs here and in llama.cpp, on the same cores and lengths, in turns.

    tools/compare_llm.py GGUF (--llama-cpp DIR | --llama-bench PATH) [--backend opencl,wgpu] [--device TEXT] [--prefill 128,512] [--decode 64]
                         [--group-size 32] [--rounds 5] [--threads N] [--work DIR] [--json FILE]

`tlite` runs the weights of GGUF as E0M4, llama.cpp as Q4_0, which it makes of the same file. In each round every program does every test once,
after once to warm up: ppN feeds N tokens at once into an empty cache, tgN feeds N one by one. The table has the medians of tokens/s (smallest to
largest), and the median of the rounds' ratios, tlite over llama.cpp: other work on the machine moves the first, and the last less.

DIR holds llama.cpp's libraries (libllama, libggml), as the npm package @node-llama-cpp/linux-x64 3.22.1 has them in bins/linux-x64. PATH is
llama.cpp's own llama-bench, to be measured in place of the libraries; without DIR it needs a file q4_0.gguf in --work. Files are made in --work
and stay there; without it they go to a temporary folder. --threads is for llama.cpp; an OpenCL or Vulkan driver for CPUs takes all cores. Set TLITE to the command, else the one of the release build is taken.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from llama_cpp import Q4_0, Failure, LlamaCpp, libraries, quantize_gguf, tlite


def numbers(text):
    return [int(n) for n in text.split(",")]


class Tlite:
    """A folder on a backend."""

    def __init__(self, folder, backend, device):
        self.name = f"tlite, {backend}"
        self.options = [folder, "--backend", backend, *(["--device", device] if device else [])]

    def round(self, prefill, decode):
        lengths = ["--prefill", ",".join(map(str, prefill)), "--decode", decode, "--repeat", 1, "--context", max(*prefill, decode)]
        report = tlite("bench", *self.options, *lengths, "--json")
        self.device = f"{report['device']}, {report['driver']}"
        return {r["test"]: r.get("prefill_tokens_per_s") or r["decode_tokens_per_s"] for r in report["results"]}


class Library:
    """llama.cpp by its library."""

    name = device = "llama.cpp"

    def __init__(self, library, path, context, threads):
        self.model = LlamaCpp(library, path, context, threads)

    def round(self, prefill, decode):
        parts = {f"pp{n}": [[1] * n] for n in prefill} | {f"tg{decode}": [[1]] * decode}
        return {test: self.speed(p) for test, p in parts.items()}

    def speed(self, parts):
        for _ in range(2):
            self.model.clear()
            start = time.perf_counter()
            for part in parts:
                self.model.feed(part)
            seconds = time.perf_counter() - start
        return sum(map(len, parts)) / seconds


class Program:
    """llama.cpp by its llama-bench."""

    name = device = "llama-bench"

    def __init__(self, path, model, threads):
        self.command = [path, "-m", model, "-t", str(threads), "-r", "1", "-o", "json"]

    def round(self, prefill, decode):
        command = [*self.command, "-p", ",".join(map(str, prefill)), "-n", str(decode)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Failure(f"{' '.join(command)}: {done.stderr.strip()[-800:]}")
        rows = json.loads(done.stdout)
        return {f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}": r["avg_ts"] for r in rows}


def shown(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("--llama-cpp")
    parser.add_argument("--llama-bench")
    parser.add_argument("--backend", default="opencl,wgpu")
    parser.add_argument("--device")
    parser.add_argument("--prefill", type=numbers, default=[128, 512])
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work")
    parser.add_argument("--json")
    a = parser.parse_args()
    if not a.llama_cpp and not a.llama_bench:
        parser.error("one of --llama-cpp and --llama-bench is needed")
    if a.work:
        os.makedirs(a.work, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = a.work or temporary
        q4, plain, folder = (os.path.join(work, name) for name in ("q4_0.gguf", "onnx", f"e0m4-{a.group_size}"))
        library = libraries(a.llama_cpp) if a.llama_cpp else None
        if not os.path.isfile(q4):
            if library is None:
                raise Failure(f"there is no {q4}; --llama-cpp DIR makes it")
            quantize_gguf(library, a.gguf, q4, Q4_0)
        if not os.path.isdir(folder):
            if not os.path.isdir(plain):
                tlite("convert", a.gguf, "-o", plain)
            tlite("quantize", plain, "-o", folder, "--format", "e0m4", "--group-size", a.group_size)
        if a.llama_bench:
            peer = Program(a.llama_bench, q4, a.threads)
        else:
            library.llama_backend_init()
            peer = Library(library, q4, max(*a.prefill, a.decode) + 8, a.threads)
        ours = [Tlite(folder, backend, a.device) for backend in a.backend.split(",")]
        rounds = []
        for _ in range(a.rounds):
            rounds.append({p.name: p.round(a.prefill, a.decode) for p in (*ours, peer)})
    tests = [f"pp{n}" for n in a.prefill] + [f"tg{a.decode}"]
    print(f"{'test':<8}{peer.name:>32}" + "".join(f"{p.name:>32}{'ratio':>8}" for p in ours))
    for test in tests:
        line = f"{test:<8}{shown([r[peer.name][test] for r in rounds]):>32}"
        for p in ours:
            ratio = statistics.median(r[p.name][test] / r[peer.name][test] for r in rounds)
            line += f"{shown([r[p.name][test] for r in rounds]):>32}{ratio:>8.3f}"
        print(line)
    for p in ours:
        print(f"{p.name}: {p.device}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"devices": {p.name: p.device for p in ours}, "rounds": rounds}, f, indent=1)


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError, AttributeError, KeyError, ValueError) as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)
