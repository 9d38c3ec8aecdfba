#!/usr/bin/env python3
"""Measures the time from starting `tlite generate` to its first token, with cold and warm caches.

    tools/start_time.py MODEL [--backend opencl] [--device TEXT] [--raw] [--runs 5] [--threads N]
                        [--llama-cpp DIR]

The caches of tlite, PoCL and Mesa are in a temporary folder, so your own caches are not touched. If
MODEL is a file, the folder of converted models is there, too. "first" is the time until the answer
of one token is on standard output; "cpu" is the CPU time of the process over all cores. The exit
code is 1 if a warm start compiles a kernel or generates a different token. The environment variable
TLITE names the command; by default it is that of the release build.

With --llama-cpp, MODEL is a GGUF file. Each of --runs rounds has three starts: a cold one, in which
tlite converts the file; a warm one; and one of llama.cpp, which loads its library in a new Python
process. The last lines are the median times, and the median ratios to llama.cpp. DIR is as in
compare_llm.py. Read the file once before you start, so that the operating system has it cached.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from llama_cpp import COMMAND

CACHES = {"TLITE_CACHE_DIR": "tlite", "POCL_CACHE_DIR": "pocl", "MESA_SHADER_CACHE_DIR": "mesa"}
# The arguments are the folder of this file, DIR, the model, the prompt and the number of threads.
LLAMA_CPP = """
import json, sys
sys.path.insert(0, sys.argv[1])
from llama_cpp import LlamaCpp, libraries
library = libraries(sys.argv[2])
library.llama_backend_init()
model = LlamaCpp(library, sys.argv[3], 4096, int(sys.argv[5]))
ids = model.encode(sys.argv[4])
model.feed(ids)
model.lib.llama_get_logits_ith(model.context, -1)[0]
print(json.dumps({"prompt_tokens": len(ids)}), flush=True)
"""


def start(command, environment):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    line = process.stdout.readline()
    first = time.monotonic() - begin
    process.stdout.read()
    if process.wait() != 0:
        sys.exit(f"{' '.join(command)} ended with exit code {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return first, cpu, json.loads(line)


def starts(command, model, runs):
    """A cold start and then warm ones, with caches of their own."""
    with tempfile.TemporaryDirectory() as folder:
        caches = CACHES | ({"TLITE_MODELS": "models"} if os.path.isfile(model) else {})
        environment = os.environ | {variable: os.path.join(folder, name) for variable, name in caches.items()}
        for variable in caches:
            os.mkdir(environment[variable])
        return [start(command, environment) for _ in range(1 + runs)]


def line(name, first, cpu, report):
    counts = [report.get(key, "") for key in ("kernels_compiled", "kernels_cached", "prompt_tokens")]
    print(f"{name:<10}{first:9.2f} {cpu:7.2f} {counts[0]:9} {counts[1]:7} {counts[2]:14}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device")
    parser.add_argument("--prompt", default="Hello")
    parser.add_argument("--raw", action="store_true", help="feed the prompt without the chat template")
    parser.add_argument("--runs", type=int, default=5, help="number of warm starts, or of rounds")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads on the CPU")
    parser.add_argument("--llama-cpp", help="folder of llama.cpp's libraries; implies --raw")
    args = parser.parse_args()
    command = [COMMAND, "generate", args.model, "--prompt", args.prompt, "--max-tokens", "1", "--json", "--temperature", "0"]
    command += ["--backend", args.backend] + ["--raw"] * bool(args.raw or args.llama_cpp)
    command += ["--device", args.device] if args.device else []
    command += ["--threads", str(args.threads)] if args.backend == "cpu" else []
    print("start       first s   cpu s  compiled  cached  prompt tokens")
    runs, ratios = [], []
    for _ in range(args.runs if args.llama_cpp else 1):
        made = starts(command, args.model, 1 if args.llama_cpp else args.runs)
        for number, run in enumerate(made):
            if run[2]["kernels_compiled"] is None:
                sys.exit("the reference interpreter compiles no kernels; choose a device with --backend")
            line("warm" if number else "cold", *run)
        runs.append(made)
        if args.llama_cpp:
            here = os.path.dirname(os.path.abspath(__file__))
            theirs = start([sys.executable, "-c", LLAMA_CPP, here, args.llama_cpp, args.model, args.prompt, str(args.threads)], os.environ)
            line("llama.cpp", *theirs)
            ratios.append([first / theirs[0] for first, _, _ in made])
            made.append(theirs)
    if args.llama_cpp:
        for number, name in enumerate(("cold", "warm", "llama.cpp")):
            ratio = f", {statistics.median(r[number] for r in ratios):.2f} of llama.cpp's" if number < 2 else ""
            print(f"{name}: {statistics.median(made[number][0] for made in runs):.2f} s{ratio}")
    # On `cpu`, kernels are native code, which every process makes.
    for made in runs:
        cold, warm = made[0], made[1:2] if args.llama_cpp else made[1:]
        compiled = args.backend != "cpu" and any(report["kernels_compiled"] != 0 for _, _, report in warm)
        if compiled or any(report["tokens"] != cold[2]["tokens"] for _, _, report in warm):
            sys.exit("a warm start compiled a kernel or generated another token")


if __name__ == "__main__":
    main()
