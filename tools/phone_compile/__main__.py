#!/usr/bin/env python3
"""Compiles all kernels that plans ask for to Adreno and Mali code, and checks the counts.

    python3 tools/phone_compile --check          compile new texts and a sample of the others
    python3 tools/phone_compile --check --all    compile every text
    python3 tools/phone_compile --write          update the committed summary and its page

The check fails if a kernel

* does not compile or spills registers;
* is not in the summary (docs/benchmarks/phone_kernels.tsv);
* has fewer waves than the summary says, or more than 1.5 times its instructions;
* takes E0M4 weights in pairs and needs more than 1.1 times the instructions of its INT4 twin;
* compiles to other code than before from the same text: then the compilers changed.

texts.txt holds a checksum of every text that the summary counts. If a kernel has a text that is not
in that list, the check compiles all its forms; of the other kernels it compiles a fixed sample, one
text in 16. Counts are also kept in the cache, form by form, in phone_compile/phone_kernels.tsv:
a text that was compiled before is compiled again only if it is in the sample.

No GPU is needed: Mesa's compilers run on a kernel driver that does nothing. The drivers are Debian
packages, listed with their checksums in packages.txt and kept in the cache. --update-packages lists
the current versions instead; counts change then, so commit it on its own with a new summary.
Without root this needs user namespaces.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import drivers  # noqa: E402
import page  # noqa: E402
import predictions  # noqa: E402
import summary  # noqa: E402
import tables  # noqa: E402
import tree  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = ROOT / "docs" / "benchmarks" / "phone_kernels.tsv"
PAGE = ROOT / "docs" / "benchmarks" / "phone-kernels.md"
TEXTS = Path(__file__).resolve().parent / "texts.txt"
# Folders of the cache that tools/setup.sh fills.
MODELS = [
    "smollm2-135m/e0m4",
    "minimind2-small",
    "minilm",
    "mobilenetv2",
    "clip-image",
    "clip-text",
    "yolo11n",
    "ppocr-det",
    "ppocr-rec",
    "ppocr-cls",
]
# Quantized models of the repository: two networks, and operators that they lack.
INTEGERS = ["mobilenet_v1", "resnet8", "matmul_heads", "max_pool_2x2", "mul_ties", "sigmoid", "softmax", "sub_ties"]
# Exporting these takes PyTorch; a check without it leaves them out.
EXPORTED = ["clip-image", "clip-text"]
# Decoders at their true sizes, without weights.
DECODERS = ["llama2-7b"]
# One of them with K-quants of these bits, and of 6. Layers share their kernels.
K_QUANTS = [2, 3, 4, 5]
# For these the paper gives speeds. They use the kernels of the others.
ONLY_COSTS = ["gemma-2b", "qwen1.5-4b", "chatglm2-6b", "qwen1.5-14b"]
# The models of the paper's figure 4.
FIGURE_4 = ["gemma-2b", "qwen1.5-4b", "chatglm2-6b", "llama2-7b", "qwen1.5-14b"]


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def cache_folder():
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TLITE_CACHE") or Path(home) / "transformer-lite")


def example(name, *arguments):
    command = ["cargo", "run", "-q", "--release", "--locked", "--example", name, "--"]
    subprocess.run([*command, *map(str, arguments)], cwd=ROOT, check=True)


def commit():
    command = ["git", "describe", "--always", "--exclude=*", "--dirty"]
    return subprocess.run(
        command, cwd=ROOT, check=True, text=True, capture_output=True
    ).stdout.strip()


def write_kernels(cache, work, check):
    """Has the examples write all kernels to `work`. Only a check may leave out models."""
    absent = [m for m in MODELS if not (cache / m / "model.onnx").is_file()]
    for name in absent:
        if not check or name not in EXPORTED:
            sys.exit(f"error: no model in {cache / name}: run tools/setup.sh")
        say(
            f"NOT COMPILED: kernels of {name}, which tools/setup.sh exports if PyTorch is installed"
        )
    models = [cache / m for m in MODELS if m not in absent]
    models += [ROOT / "tests" / "data" / "integer" / m for m in INTEGERS]
    for decoder in DECODERS + ONLY_COSTS:
        example("decoder_graph", decoder, work / decoder)
    models += [work / d for d in DECODERS]
    for bits in K_QUANTS:
        folder = work / f"q{bits}_k"
        example("decoder_graph", DECODERS[0], folder, "--k-quants", bits, "--layers", 2)
        models.append(folder)
    example("phone_kernels", work, *models, "--costs", *(work / d for d in ONLY_COSTS))


def predicted(work):
    """Predictions for the paper's figure 4."""
    for decoder in (d for d in FIGURE_4 if not (work / d).is_dir()):
        example("decoder_graph", decoder, work / decoder)
    file = work / "predictions.json"
    example("phone_predictions", file, *predictions.peaks(), "--", *(work / d for d in FIGURE_4))
    return json.loads(file.read_text())


def read_full(path, compilers):
    """Counts of earlier runs with these compilers, and the texts they belong to."""
    try:
        stored_compilers, table, texts = tables.read_tsv(path)
    except FileNotFoundError:
        return {}, {}
    except (ValueError, IndexError) as e:
        say(f"{path}: ignored, since it cannot be read: {e}")
        return {}, {}
    return (table, texts) if stored_compilers == compilers else ({}, {})


def kept(entries, texts, table, stored_texts):
    """Counts of `entries` by GPU and backend, as far as `table` has them for the same texts."""
    found = defaultdict(dict)
    for e in entries:
        at = (e["backend"], e["key"])
        if stored_texts.get(at) == texts[at]:
            for gpu, counts in table[at].items():
                if gpu in e["phones"]:
                    found[(gpu, e["backend"])][e["key"]] = counts
    return found


def compile_all(trees, work, entries, jobs):
    """Counts by key, by GPU and backend."""
    tasks = [(gpu, backend) for gpu in drivers.GPUS for backend in ("opencl", "wgpu")]
    # The slowest first: those that run under emulation.
    tasks.sort(key=lambda t: (not t[0].is_mali, t[1] != "opencl"))

    def one(task):
        gpu, backend = task
        start = time.monotonic()
        mine = [e for e in entries if e["backend"] == backend and gpu.name in e["phones"]]
        found = drivers.run(gpu, backend, trees, work, mine)
        seconds = time.monotonic() - start
        say(f"{gpu.name}, {tables.LANGUAGE[backend]}: {len(found)} kernels in {seconds:.0f} s")
        return (gpu.name, backend), found

    with ThreadPoolExecutor(jobs) as pool:
        return dict(pool.map(one, tasks))


def arguments():
    parser = argparse.ArgumentParser(
        prog="tools/phone_compile",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="compare with the committed summary")
    what.add_argument(
        "--write", action="store_true", help="write the summary, its page and texts.txt"
    )
    what.add_argument(
        "--update-packages",
        action="store_true",
        help="write packages.txt from Debian's current lists",
    )
    parser.add_argument("--all", action="store_true", help="compile every text, known ones too")
    parser.add_argument(
        "--kernels",
        type=Path,
        metavar="DIR",
        help="use the kernels that crates/tlite/examples/phone_kernels wrote to DIR",
    )
    parser.add_argument(
        "--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="compilers to run at a time"
    )
    return parser.parse_args()


def main():
    args = arguments()
    models = cache_folder()
    cache = models / "phone_compile"
    cache.mkdir(parents=True, exist_ok=True)
    if args.update_packages:
        tree.update_lock(cache)
        return 0
    try:
        trees = tree.prepare(cache)
    except tree.Missing as e:
        say(f"NOT CHECKED: kernels are not compiled for phones: no Mesa packages: {e}")
        return 0 if args.check else 1
    work = args.kernels
    if work is None:
        work = cache / "kernels"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        write_kernels(models, work, args.check)
    entries = json.loads((work / "kernels.json").read_text())
    texts = {(e["backend"], e["key"]): tables.text_of(work, e) for e in entries}

    version, compilers = tree.mesa_version(), f"{tree.mesa_version()} {tree.stamp()}"
    stored, known = {}, {}
    if args.check:
        stored_version, stored = summary.read(SUMMARY)
        known = summary.read_texts(TEXTS)
        if stored_version != version:
            say(
                f"{SUMMARY.name} is of Mesa {stored_version}, packages.txt of {version}: run --write"
            )
            return 1
    full = cache / "phone_kernels.tsv"
    before, before_texts = read_full(full, compilers)
    results = {} if args.all else kept(entries, texts, before, before_texts)

    wanted = entries
    if args.check and not args.all:
        wanted = summary.selected(entries, texts, known)
    todo = []
    for e in wanted:
        counted = {g for g in e["phones"] if e["key"] in results.get((g, e["backend"]), {})}
        if counted != set(e["phones"]) or summary.is_sampled(texts[(e["backend"], e["key"])]):
            todo.append(e)
    say(f"compiling {len(todo)} of {len(entries)} texts")
    compiled = compile_all(trees, work.resolve(), todo, args.jobs)
    results = {task: results.get(task, {}) | counts for task, counts in compiled.items()}
    table = tables.rows(results)
    tables.write_tsv(full, compilers, table, texts)

    rows = summary.summarise(entries, table)
    pairs = tables.compared(entries, table)
    found = tables.faults(table) + tables.dearer(pairs)
    for line in tables.drift(table, before):
        say(f"dearer than in the last run: {line}")
    if args.check:
        worse, remarks = summary.regressions(rows, stored)
        found += summary.missing(rows, stored) + worse
        found += summary.unlike(todo, table, texts, known)
        for line in remarks:
            say(f"more instructions: {line}")
    for line in found:
        print(line)
    say(
        f"{sum(map(len, table.values()))} counts of {len(table)} texts, {len(found)} faults; see {full}"
    )
    if args.check:
        if found:
            say(
                "if a change is intended, run tools/phone_compile --write and commit what it writes"
            )
        return 1 if found else 0
    costs = json.loads((work / "models.json").read_text())
    decoders, runs = predictions.decode_and_runs(costs, pairs)
    figure = predictions.figure_4(predicted(work))
    # Files that this tool writes do not change the kernels.
    tree_of = commit()
    summary.write(SUMMARY, version, rows)
    summary.write_texts(TEXTS, entries, table, texts)
    page.write(PAGE, version, tree_of, entries, table, rows, pairs, decoders, runs, figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
