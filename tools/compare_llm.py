#!/usr/bin/env python3
"""Compares the speed of tlite with other engines, on the same cores and lengths, in turns.

    tools/compare_llm.py GGUF [--llama-cpp DIR] [--llama-bench PATH] [--vulkan DIR]
                         [--genai [PYTHON]] [--openvino [PYTHON]] [--mnn [PYTHON]]
                         [--backend cpu] [--device TEXT] [--act auto,int8]
                         [--prefill 128,512] [--decode 64] [--sequences 4,8,16]
                         [--group-size 32] [--rounds 5] [--quiet-wait 60] [--threads N]
                         [--work DIR] [--json FILE]

Every engine runs the format in which it is fastest; llama.cpp and tlite also run the same file. So
the table answers two questions: which engine is faster with the same weights, and which is faster
if each may choose.

same file       GGUF, or the Q4_K_M that llama.cpp makes of it if its weights are floats. tlite
                converts that file without quantizing it again.
Q4_0            llama.cpp's fastest format on CPUs, made of GGUF by llama.cpp. OpenVINO runs it too.
E0M4            tlite's fastest format, made of GGUF by tlite.

If GGUF is quantized already, Q4_0 and E0M4 are quantized a second time, which the output says: that
changes answers, but not speeds. If GGUF is Q4_0, llama.cpp runs only that file.

tlite runs with each backend and each precision of activations that are listed. Name at least one
other engine:

--llama-cpp     llama.cpp on the CPU. DIR holds its libraries (libllama, libggml): the folder `bin`
                of your own build, or bins/linux-x64 of the npm package @node-llama-cpp/linux-x64
                3.22.1. For comparisons to publish, build it for this processor (see below).
--llama-bench   llama.cpp through your own llama-bench, on the devices that it chooses.
--vulkan        llama.cpp's Vulkan backend on the first Vulkan device. DIR as above, of the package
                @node-llama-cpp/linux-x64-vulkan 3.22.1.
--genai         ONNX Runtime GenAI on the CPU, 4-bit weights in groups of 32.
--openvino      OpenVINO GenAI on the CPU, arithmetic in f32.
--mnn           MNN on the CPU, 4-bit weights in groups of 32, 8-bit activations.

Making Q4_0 or Q4_K_M takes the libraries of --llama-cpp or --vulkan, or a llama-quantize beside
llama-bench. Without any of these, llama-bench runs GGUF only. GenAI and MNN get what their
converters make of GGUF. To build llama.cpp from its source:

    cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=ON
    cmake --build build -j --target llama llama-bench llama-quantize
    tools/compare_llm.py GGUF --llama-cpp build/bin

PYTHON has the packages listed below. Without it, a Python environment with them is made in --work;
that needs PyTorch, and installs it unless Debian's python3-torch is there. If a named engine cannot
be had or cannot run the model, the comparison ends with exit code 1 and the reason.

In each round every engine runs every test once, after one warm-up, and another engine begins. ppN
feeds N tokens at once into an empty cache; tgN feeds N tokens one by one. With --sequences, tlite
and llama.cpp (not llama-bench) also run seqN: N sequences share each step, and each has a prompt of
128 tokens and decodes 128. Its speed counts all tokens of all sequences.

The table has the median tokens/s (smallest to largest), and the median over the rounds of tlite's
speed over that of the other engine. Light load from other processes affects the ratios less than
the speeds. On busy cores, threads wait for each other, and the ratios are meaningless, too. So, on
Linux, a round first waits until other processes use less than 5 % of the cores, for at most
--quiet-wait seconds. If they still use more, the round counts as disturbed. Do not publish
disturbed rounds.

Files are made in --work and stay there; without it they go to a temporary folder. --threads is for
engines on the CPU; OpenCL and Vulkan drivers for CPUs take all cores. The environment variable
TLITE names the command; by default it is that of the release build.
"""

import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

from llama_cpp import Q4_0, Q4_K_M, Failure, folder_for, libraries, quantize_gguf, tlite

PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llm_peers.py")
# What GenAI, OpenVINO and MNN need, with what makes the models of GenAI and MNN. BUILDER is GenAI's
# last one for the transformers that fits Debian's PyTorch.
PACKAGES = ["onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "openvino-genai==2026.4.1.0", "transformers==4.46.3", "onnx==1.22.0",
            "onnx-ir==1.1.0", "gguf==0.19.0", "accelerate==1.1.1", "MNN==3.6.1", "llmexport==0.0.5", "numpy<2"]
BUILDER = "onnxruntime-genai==0.8.3"
TORCH = "torch>=1.13,<2.6"
FLOATS = {"F32", "F16", "BF16"}
STAT = "/proc/stat"
# The largest share of the cores that other processes may use before a round.
BUSY = 0.05
NO_PEER = (Failure, OSError, AttributeError, KeyError, TypeError, ValueError)


def numbers(text):
    """
    >>> numbers("128,512")
    [128, 512]
    """
    return [int(n) for n in text.split(",")]


def cores(stat):
    """Busy time and all time of the cores, from the text of /proc/stat.

    >>> cores("cpu  10 1 5 80 4 0 0 2 3 0\\ncpu0 ..")
    (18, 102)
    """
    times = [int(n) for n in stat.split("\n", 1)[0].split()[1:9]]
    return sum(times) - times[3] - times[4], sum(times)


def busy():
    """The share of the cores that is in use for a second; the engines only wait meanwhile."""
    def read():
        with open(STAT) as f:
            return cores(f.read())

    before = read()
    time.sleep(1)
    after = read()
    return (after[0] - before[0]) / max(after[1] - before[1], 1)


def quiet(seconds, share=busy):
    """Waits for quiet cores, at most `seconds`. Returns the last share in use if they stay busy.

    >>> quiet(0, lambda: 0.5), quiet(0, lambda: 0.01)
    (0.5, None)
    """
    end = time.monotonic() + seconds
    while (used := share()) >= BUSY:
        if time.monotonic() >= end:
            return used
    return None


class Tlite:
    """A model folder on a backend."""

    def __init__(self, file, folder, backend, device, act, threads):
        self.name = f"tlite, {backend}{'' if act == 'auto' else f', {act}'}, {file}"
        self.options = [folder, "--backend", backend, "--act", act, *(["--device", device] if device else [])]
        if backend == "cpu":
            self.options += ["--threads", threads]

    def round(self, prefill, decode, sequences):
        lengths = ["--prefill", ",".join(map(str, prefill)), "--decode", decode, "--repeat", 1, "--context", max(*prefill, decode)]
        report = tlite("bench", *self.options, *lengths, "--json")
        self.device = f"{report['device']}, {report['driver']}"
        results = {r["test"]: r.get("prefill_tokens_per_s") or r["decode_tokens_per_s"] for r in report["results"]}
        if sequences:
            report = tlite("bench", *self.options, "--parallel", ",".join(map(str, sequences)), "--repeat", 1, "--json")
            results |= {f"seq{r['sequences']}": r["tokens_per_s"] for r in report["parallel"]}
        return results


class Process:
    """An engine of llm_peers.py, started when the object is created."""

    def __init__(self, name, python, peer, model, context, threads, folder=None, sequences=0):
        command = [python, PEERS, peer, model, "--context", str(context), "--threads", str(threads), *(["--llama-cpp", folder] if folder else [])]
        command += ["--sequences", str(sequences)]
        # Without this, llama.cpp's Vulkan backend ignores CPU drivers and runs on the CPU directly.
        environment = {"GGML_VK_VISIBLE_DEVICES": "0"} | os.environ
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment)
        self.device = self.answer()["device"]

    def answer(self):
        line = self.child.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise Failure(f"the process ended with exit code {self.child.wait()}: {self.errors.read().strip()[-800:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failure(answer["error"])
        return answer

    def round(self, prefill, decode, sequences):
        self.child.stdin.write(json.dumps({"prefill": prefill, "decode": decode, "sequences": sequences}) + "\n")
        self.child.stdin.flush()
        return self.answer()


class Program:
    """llama.cpp through llama-bench."""

    def __init__(self, name, path, model, threads):
        self.name = name
        self.command = [path, "-m", model, "-t", str(threads), "-r", "1", "-o", "json"]
        # Known after the first round.
        self.device = ""

    def round(self, prefill, decode, _):
        """
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "llama-bench")
        ...     rows = [{"n_prompt": 8, "n_gen": 0, "avg_ts": 2.5}, {"n_prompt": 0, "n_gen": 4, "avg_ts": 1.5, "cpu_info": "Z80", "model_type": "Q4_0"}]
        ...     with open(path, "w") as f: _ = f.write(f"#!/bin/sh\\ncat <<'END'\\n{json.dumps(rows)}\\nEND\\n")
        ...     os.chmod(path, 0o755)
        ...     program = Program("llama-bench", path, "m.gguf", 2)
        ...     print(program.round([8], 4, []), program.device)
        ...     with open(path, "w") as f: _ = f.write("#!/bin/sh\\necho no model >&2\\nexit 3\\n")
        ...     try: program.round([8], 4, [])
        ...     except Failure as e: print(str(e).rsplit(": ", 1)[-1])
        {'pp8': 2.5, 'tg4': 1.5} Z80, Q4_0
        no model
        """
        command = [*self.command, "-p", ",".join(map(str, prefill)), "-n", str(decode)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise Failure(f"{' '.join(command)}: {done.stderr.strip()[-800:]}")
        rows = json.loads(done.stdout)
        told = [rows[-1].get(key) for key in ("build_commit", "backends", "cpu_info", "gpu_info", "model_type")]
        self.device = ", ".join(str(text) for text in told if text)
        results = {f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}": r["avg_ts"] for r in rows}
        missing = {f"tg{decode}", *(f"pp{n}" for n in prefill)} - set(results)
        if missing:
            raise Failure(f"{' '.join(command)}: no result for {', '.join(sorted(missing))}")
        return results


def called(command):
    """Runs a command whose output is not needed; a failure includes it."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: {done.stdout.strip()[-800:]}")


def environment(work):
    """The Python of an environment with PACKAGES, created on first use and when they change."""
    folder = os.path.join(os.path.dirname(work), "peers")
    python, ready = os.path.join(folder, "bin", "python"), os.path.join(folder, "ready")
    packages = "\n".join(PACKAGES)
    if os.path.isfile(ready):
        with open(ready) as f:
            if f.read() == packages:
                return python
    print(f"==> Creating a Python environment in {folder}", file=sys.stderr, flush=True)
    system = "/usr/bin/python3"
    debian = os.path.exists(system) and subprocess.run([system, "-c", "import torch"], capture_output=True).returncode == 0
    called([system, "-m", "venv", "--system-site-packages", folder] if debian else [sys.executable, "-m", "venv", folder])
    called([python, "-m", "pip", "-q", "install", *PACKAGES, *([] if debian else [TORCH])])
    with open(ready, "w") as f:
        f.write(packages)
    return python


def genai_model(python, gguf, work):
    """The GGUF model in GenAI's format, converted on first use."""
    model, builder = os.path.join(work, "genai-int4"), os.path.join(os.path.dirname(work), "genai-builder")
    if os.path.isdir(model):
        return model
    folder = os.path.join(builder, "onnxruntime_genai", "models")
    if not os.path.isdir(folder):
        # Every wheel contains the builder, also one for another version of Python.
        called([python, "-m", "pip", "-q", "download", "--no-deps", "--only-binary", ":all:", "--python-version", "3.11", "-d", builder, BUILDER])
        with zipfile.ZipFile(glob.glob(os.path.join(builder, "*.whl"))[0]) as wheel:
            wheel.extractall(builder, [n for n in wheel.namelist() if n.startswith("onnxruntime_genai/models/")])
    print(f"==> Converting {model}", file=sys.stderr, flush=True)
    called([python, PEERS, "genai-model", gguf, "--builder", folder, "-o", model])
    return model


def mnn_model(python, gguf, work):
    """The GGUF model in MNN's format, converted on first use."""
    model = os.path.join(work, "mnn-int4")
    if not os.path.isdir(model):
        print(f"==> Converting {model}", file=sys.stderr, flush=True)
        called([python, PEERS, "mnn-model", gguf, "-o", model])
    return model


def quantized(a, work, name, number):
    """GGUF quantized by llama.cpp on first use; None if no llama.cpp can do that."""
    path = os.path.join(work, f"{name.lower()}.gguf")
    if os.path.isfile(path):
        return path
    folder, beside = a.llama_cpp or a.vulkan, os.path.join(os.path.dirname(a.llama_bench or ""), "llama-quantize")
    if folder:
        quantize_gguf(libraries(folder), a.gguf, path, number)
    elif a.llama_bench and os.path.isfile(beside):
        called([beside, "--allow-requantize", a.gguf, path + ".part", name])
        os.replace(path + ".part", path)
    else:
        return None
    return path


def main_type(types):
    """The type of most weights, of what `tlite inspect` reports.

    >>> main_type([{"name": "Q8_0", "parameters": 3}, {"name": "F32", "parameters": 1}])
    'Q8_0'
    """
    return max(types, key=lambda t: t["parameters"])["name"]


def llama_files(a, work):
    """The files that llama.cpp runs, by their name in the table, and what to say about them."""
    kind = main_type(tlite("inspect", a.gguf, "--json")["types"])
    floats = kind in FLOATS
    same = floats and quantized(a, work, "Q4_K_M", Q4_K_M) or a.gguf
    fast = None if kind == "Q4_0" else quantized(a, work, "Q4_0", Q4_0)
    files = {"same file": same} | ({"Q4_0": fast} if fast else {})
    notes = [f"same file: {os.path.basename(same)}"]
    if not floats:
        notes.append(f"{'Q4_0, ' if fast else ''}E0M4: quantized a second time, from {kind}")
    return files, notes


def needed_q4_0(files, work):
    """Q4_0 for engines that need it."""
    if "Q4_0" in files or main_type(tlite("inspect", files["same file"], "--json")["types"]) == "Q4_0":
        return files.get("Q4_0", files["same file"])
    raise Failure(f"{os.path.join(work, 'q4_0.gguf')} not found; give --llama-cpp DIR or --vulkan DIR to create it")


def folders(a, work, same):
    """The folders that tlite runs, by their name in the table, made on first use."""
    # By its name: with floats, the file depends on what can quantize them.
    stem = os.path.splitext(os.path.basename(same))[0]
    found = {"same file": os.path.join(work, f"same-{stem}"), "E0M4": os.path.join(work, f"e0m4-{a.group_size}")}
    if not os.path.isdir(found["same file"]):
        tlite("convert", same, "-o", found["same file"])
    if not os.path.isdir(found["E0M4"]):
        plain = os.path.join(work, "onnx")
        if not os.path.isdir(plain):
            tlite("convert", a.gguf, "--float", "-o", plain)
        tlite("quantize", plain, "-o", found["E0M4"], "--format", "e0m4", "--group-size", a.group_size)
    return found


def look(a):
    """Checks that the programs and libraries in the options exist."""
    if a.llama_bench and not os.access(a.llama_bench, os.X_OK):
        raise Failure(f"llama-bench: {a.llama_bench} is not executable")
    for name, folder in (("llama.cpp", a.llama_cpp), ("llama.cpp, Vulkan", a.vulkan)):
        if folder and not glob.glob(os.path.join(folder, "libllama.*so*")):
            raise Failure(f"{name}: {folder} has no libllama")
    for name, python in (("ONNX Runtime GenAI", a.genai), ("OpenVINO", a.openvino), ("MNN", a.mnn)):
        if python and not shutil.which(python):
            raise Failure(f"{name}: {python} not found")


def started(a, work, files):
    """Starts the other engines."""
    context = max(*a.prefill, a.decode) + 8
    rest = (context, a.threads)
    most = max(a.sequences, default=0)
    wanted = []
    for label, file in files.items():
        if a.llama_cpp:
            wanted.append((f"llama.cpp, {label}", lambda name, file=file: Process(name, sys.executable, "llama.cpp", file, *rest, a.llama_cpp, most)))
        if a.llama_bench:
            wanted.append((f"llama-bench, {label}", lambda name, file=file: Program(name, a.llama_bench, file, a.threads)))
        if a.vulkan:
            wanted.append((f"Vulkan, {label}", lambda name, file=file: Process(name, sys.executable, "vulkan", file, *rest, a.vulkan, most)))
    if a.genai is not None:
        def genai(name):
            python = a.genai or environment(work)
            return Process(name, python, "genai", genai_model(python, a.gguf, work), *rest)

        wanted.append(("ONNX Runtime GenAI", genai))
    if a.openvino is not None:
        wanted.append(("OpenVINO", lambda name: Process(name, a.openvino or environment(work), "openvino", needed_q4_0(files, work), *rest)))
    if a.mnn is not None:
        def mnn(name):
            python = a.mnn or environment(work)
            return Process(name, python, "mnn", mnn_model(python, a.gguf, work), *rest)

        wanted.append(("MNN", mnn))
    return [named(name, start, name) for name, start in wanted]


def named(name, do, *arguments):
    """Calls `do` with the arguments; a failure names the engine.

    >>> named("llama.cpp", Program("", "/nowhere/llama-bench", "m.gguf", 2).round, [8], 4, [])
    Traceback (most recent call last):
    llama_cpp.Failure: llama.cpp: [Errno 2] No such file or directory: '/nowhere/llama-bench'
    """
    try:
        return do(*arguments)
    except NO_PEER as e:
        raise Failure(f"{name}: {e}") from e


def turns(programs, number):
    """The order of a round: each program comes first in turn.

    >>> [turns(["a", "b", "c"], n) for n in range(4)]
    [['a', 'b', 'c'], ['b', 'c', 'a'], ['c', 'a', 'b'], ['a', 'b', 'c']]
    """
    first = number % len(programs)
    return programs[first:] + programs[:first]


def one_line(error):
    """
    >>> one_line(Failure("llama.cpp: it ended\\n  with 3 "))
    'error: llama.cpp: it ended with 3'
    """
    return f"error: {' '.join(str(error).split())}"


def shown(values):
    """
    >>> shown([3.0, 1.0, 2.0])
    '2.0 (1.0 to 3.0)'
    """
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def table(tests, ours, others, rounds):
    """The lines of the table; `rounds` has tokens/s by program and test.

    >>> rounds = [{"a": {"tg1": 2.0}, "b": {"tg1": 4.0}, "c": {}}, {"a": {"tg1": 3.0}, "b": {"tg1": 4.0}, "c": {}}]
    >>> for line in table(["tg1"], ["a"], ["b", "c"], rounds): print(" ".join(line.split()))
    test program tokens/s a / it
    tg1 a 2.5 (2.0 to 3.0)
    tg1 b 4.0 (4.0 to 4.0) 0.625
    """
    first = max(map(len, ["program", *ours, *others])) + 2
    width = max(map(len, ours)) + 7
    lines = [f"{'test':<8}{'program':<{first}}{'tokens/s':<32}" + "".join(f"{f'{p} / it':>{width}}" for p in ours)]
    for test in tests:
        # Not every engine runs every test.
        for name in (name for name in (*ours, *others) if test in rounds[0][name]):
            line = f"{test:<8}{name:<{first}}{shown([r[name][test] for r in rounds]):<32}"
            if name in others:
                line += "".join(f"{statistics.median(r[p][test] / r[name][test] for r in rounds):>{width}.3f}" for p in ours)
            lines.append(line)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("--llama-cpp")
    parser.add_argument("--llama-bench")
    parser.add_argument("--vulkan")
    parser.add_argument("--genai", nargs="?", const="")
    parser.add_argument("--openvino", nargs="?", const="")
    parser.add_argument("--mnn", nargs="?", const="")
    parser.add_argument("--backend", type=lambda text: text.split(","), default=["cpu"])
    parser.add_argument("--device")
    parser.add_argument("--act", type=lambda text: text.split(","), default=["auto"])
    parser.add_argument("--prefill", type=numbers, default=[128, 512])
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--sequences", type=numbers, default=[])
    parser.add_argument("--group-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quiet-wait", type=float, default=60)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work")
    parser.add_argument("--json")
    a = parser.parse_args()
    if not any((a.llama_cpp, a.llama_bench, a.vulkan, *(python is not None for python in (a.genai, a.openvino, a.mnn)))):
        parser.error("give at least one of --llama-cpp, --llama-bench, --vulkan, --genai, --openvino and --mnn")
    look(a)
    with tempfile.TemporaryDirectory() as temporary:
        work = folder_for(a.gguf, a.work or temporary)
        files, notes = llama_files(a, work)
        made = folders(a, work, files["same file"])
        others = started(a, work, files)
        ours = [Tlite(file, made[file], backend, a.device, act, a.threads) for file in made for backend in a.backend for act in a.act]
        rounds, disturbed = [], []
        for n in range(a.rounds):
            disturbed.append(quiet(a.quiet_wait) if os.path.exists(STAT) else None)
            rounds.append({p.name: named(p.name, p.round, a.prefill, a.decode, a.sequences) for p in turns([*ours, *others], n)})
    tests = [f"pp{n}" for n in a.prefill] + [f"tg{a.decode}"] + [f"seq{n}" for n in a.sequences]
    for line in table(tests, [p.name for p in ours], [p.name for p in others], rounds):
        print(line)
    shares = [f"{used:.0%}" for used in disturbed if used is not None]
    known = f"{len(shares)} of {len(rounds)}" if os.path.exists(STAT) else "not known"
    notes.append(f"disturbed rounds: {known}" + (f" (others used {', '.join(shares)} of the cores)" if shares else ""))
    for line in (*notes, *(f"{p.name}: {p.device}" for p in (*ours, *others))):
        print(line)
    if a.json:
        with open(a.json, "w") as f:
            devices = {p.name: p.device for p in (*ours, *others)}
            json.dump({"devices": devices, "notes": notes, "disturbed": disturbed, "rounds": rounds}, f, indent=1)


if __name__ == "__main__":
    try:
        main()
    except NO_PEER as e:
        sys.exit(one_line(e))
    except KeyboardInterrupt:
        sys.exit(130)
