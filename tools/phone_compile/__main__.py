#!/usr/bin/env python3
"""Compiles every kernel that the plans of models ask for to code of Adreno and Mali GPUs, and compares the counts with the stored ones.

    python3 tools/phone_compile --check         fails on a kernel that the stored table lacks, a build error, a spill, lost occupancy, twice the
                                                stored instructions, and where E0M4 weights in pairs cost no fewer than INT4 weights
    python3 tools/phone_compile --write         writes docs/phone_kernels.tsv and docs/phone_kernels.md anew
    .. --all                                    likewise, compiling also what has been compiled before

A text that the stored table has, of the same drivers, compiles to what it did: the others are compiled, and one in SAMPLE of these to
see that it is so.

Nothing runs on a GPU: Mesa's drivers compile over a kernel driver that does nothing. The drivers are Debian's packages, named with their
checksums in packages.txt, and are kept in the cache; --update-packages takes the current ones, which changes counts and is a commit
of its own. Without root this needs user namespaces.
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
import predictions  # noqa: E402
import tables  # noqa: E402
import tree  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TSV, PAGE = ROOT / "docs" / "phone_kernels.tsv", ROOT / "docs" / "phone_kernels.md"
# Folders of the cache that tools/setup.sh fills, and decoders at their true sizes without weights.
MODELS = ["smollm2-135m/e0m4", "minimind2-small", "minilm", "mobilenetv2", "clip-image", "clip-text", "yolo11n", "ppocr-det", "ppocr-rec", "ppocr-cls"]
# Exported here, which takes PyTorch: without it a check leaves them out.
EXPORTED = ["clip-image", "clip-text"]
DECODERS = ["llama2-7b"]
# Of these the paper tells speeds; their kernels are those of the others.
ONLY_COSTS = ["gemma-2b", "qwen1.5-4b", "chatglm2-6b", "qwen1.5-14b"]
# The models of the paper's figure 4.
FIGURE_4 = ["gemma-2b", "qwen1.5-4b", "chatglm2-6b", "llama2-7b", "qwen1.5-14b"]
# Of the texts that the table has, one in so many is compiled again.
SAMPLE = 16


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def cache_folder():
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TLITE_CACHE") or Path(home) / "transformer-lite")


def example(name, *arguments):
    subprocess.run(["cargo", "run", "-q", "--release", "--locked", "--example", name, "--", *map(str, arguments)], cwd=ROOT, check=True)


def write_kernels(cache, work, check):
    """Has the examples write all kernels to `work`. A stored table is of all models."""
    absent = [m for m in MODELS if not (cache / m / "model.onnx").is_file()]
    for name in absent:
        if not check or name not in EXPORTED:
            sys.exit(f"error: {cache / name} is not there; run tools/setup.sh")
        say(f"NOT COMPILED: kernels of {cache / name}, which is not there; tools/setup.sh makes it where PyTorch is")
    models = [cache / m for m in MODELS if m not in absent]
    for decoder in DECODERS + ONLY_COSTS:
        example("decoder_graph", decoder, work / decoder)
    models += [work / d for d in DECODERS]
    example("phone_kernels", work, *models, "--costs", *(work / d for d in ONLY_COSTS))


def predicted(work):
    """What the paper's figure 4 should be."""
    for decoder in (d for d in FIGURE_4 if not (work / d).is_dir()):
        example("decoder_graph", decoder, work / decoder)
    file = work / "predictions.json"
    example("phone_predictions", file, *predictions.peaks(), "--", *(work / d for d in FIGURE_4))
    return json.loads(file.read_text())


def known(work, entries, table, texts):
    """Entries to compile, and counts by GPU and backend of those whose text the stored table has."""
    left, found = [], defaultdict(dict)
    for e in entries:
        at = (e["backend"], e["key"])
        text = tables.text_of(work, e)
        if texts.get(at) != text or int(text, 16) % SAMPLE == 0 or not set(e["phones"]) <= set(table[at]):
            left.append(e)
            continue
        for gpu in e["phones"]:
            found[(gpu, e["backend"])][e["key"]] = table[at][gpu]
    return left, found


def compile_all(trees, work, entries, jobs):
    """Counts by key, by GPU and backend."""
    tasks = [(gpu, backend) for gpu in drivers.GPUS for backend in ("opencl", "wgpu")]
    # Those that take longest first: emulated ones.
    tasks.sort(key=lambda t: (not t[0].is_mali, t[1] != "opencl"))

    def one(task):
        gpu, backend = task
        start = time.monotonic()
        mine = [e for e in entries if e["backend"] == backend and gpu.name in e["phones"]]
        found = drivers.run(gpu, backend, trees, work, mine)
        say(f"{gpu.name}, {tables.LANGUAGE[backend]}: {len(found)} kernels in {time.monotonic() - start:.0f} s")
        return (gpu.name, backend), found

    with ThreadPoolExecutor(jobs) as pool:
        return dict(pool.map(one, tasks))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="compare with the stored table")
    what.add_argument("--write", action="store_true", help="write the stored table")
    what.add_argument("--update-packages", action="store_true", help="write packages.txt from Debian's current lists")
    parser.add_argument("--all", action="store_true", help="compile also the texts that the stored table has")
    parser.add_argument("--kernels", type=Path, help="kernels that the example phone_kernels has written")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="drivers that run at a time")
    args = parser.parse_args()
    models = cache_folder()
    cache = models / "phone_compile"
    cache.mkdir(parents=True, exist_ok=True)
    if args.update_packages:
        tree.update_lock(cache)
        return 0
    try:
        trees = tree.prepare(cache)
    except tree.Missing as e:
        say(f"NOT CHECKED: kernels are not compiled for phones, since Mesa's packages cannot be had: {e}")
        return 0 if args.check else 1
    work = args.kernels
    if work is None:
        work = cache / "kernels"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        write_kernels(models, work, args.check)
    entries = json.loads((work / "kernels.json").read_text())
    version = tree.mesa_version()
    texts = {(e["backend"], e["key"]): tables.text_of(work, e) for e in entries}
    stored, stored_texts, kept, left = {}, {}, {}, entries
    if TSV.is_file():
        stored_version, stored, stored_texts = tables.read_tsv(TSV)
        if stored_version != version and args.check:
            say(f"{TSV.name} is of Mesa {stored_version}, the packages are of {version}: write it anew")
            return 1
        if stored_version != version:
            stored, stored_texts = {}, {}
        if not args.all:
            left, kept = known(work, entries, stored, stored_texts)
            say(f"{len(left)} of {len(entries)} texts are compiled: new ones, and one in {SAMPLE} of those in {TSV.name}")
    results = compile_all(trees, work.resolve(), left, args.jobs)
    for task, counts in kept.items():
        results[task] |= counts
    table = tables.rows(results)
    found = tables.missing(texts, stored) if args.check else []
    found += tables.faults(table, stored)
    same = {at for at, text in texts.items() if stored_texts.get(at) == text}
    found += tables.unlike(table, stored, same)
    found += tables.dearer(entries, table)
    for line in tables.drift(table, stored):
        say(f"more instructions: {line}")
    for line in found:
        print(line)
    if args.write:
        tables.write_tsv(TSV, version, table, texts)
        models = json.loads((work / "models.json").read_text())
        page = predictions.page(models, tables.compared(entries, table), predicted(work), tables.markdown)
        tables.write_page(PAGE, version, entries, table, page)
        return 0
    say(f"{sum(map(len, table.values()))} counts of {len(table)} kernels, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
