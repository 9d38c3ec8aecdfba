#!/usr/bin/env python3
"""Measures the time from starting `tlite generate` to its first token, with cold and warm caches.

    tools/start_time.py MODEL [--backend opencl] [--device TEXT] [--raw] [--runs 5]

The caches of tlite, PoCL and Mesa are in a temporary folder, so your own caches are not touched.
"first" is the time until the answer of one token is on standard output; "cpu" is the CPU time of
the process over all cores. The exit code is 1 if a warm start compiles a kernel or generates
another token. The environment variable TLITE names the command; by default it is that of the
release build.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

from llama_cpp import COMMAND


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device")
    parser.add_argument("--prompt", default="Hello")
    parser.add_argument("--raw", action="store_true", help="feed the prompt without the chat template")
    parser.add_argument("--runs", type=int, default=5, help="number of warm starts")
    args = parser.parse_args()
    command = [COMMAND, "generate", args.model, "--prompt", args.prompt, "--max-tokens", "1", "--json"]
    command += ["--backend", args.backend] + ["--raw"] * args.raw
    command += ["--device", args.device] if args.device else []
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ)
        for variable, name in [("TLITE_CACHE_DIR", "tlite"), ("POCL_CACHE_DIR", "pocl"), ("MESA_SHADER_CACHE_DIR", "mesa")]:
            environment[variable] = os.path.join(folder, name)
            os.mkdir(environment[variable])
        runs = [start(command, environment) for _ in range(1 + args.runs)]
    if runs[0][2]["kernels_compiled"] is None:
        sys.exit("the reference interpreter compiles no kernels; choose a device with --backend")
    print("start   first s   cpu s  compiled  cached  prompt tokens")
    for number, (first, cpu, report) in enumerate(runs):
        counts = [report["kernels_compiled"], report["kernels_cached"], report["prompt_tokens"]]
        print(f"{'warm' if number else 'cold'}  {first:9.2f} {cpu:7.2f} {counts[0]:9} {counts[1]:7} {counts[2]:14}")
    cold, warm = runs[0], runs[1:]
    if any(report["kernels_compiled"] != 0 or report["tokens"] != cold[2]["tokens"] for _, _, report in warm):
        sys.exit("a warm start compiled a kernel or generated another token")


if __name__ == "__main__":
    main()
