#!/usr/bin/env python3
"""Trains and measures the networks of docs/lab/qat.md.

usage: qat_experiments.py list
       qat_experiments.py train WORK --qat TLITE_QAT --data DIR [--device NAME] [--devices N]
                                [--jobs N] [--minutes F] [--only PATTERN]
       qat_experiments.py measure WORK --qat TLITE_QAT --tlite TLITE --data DIR [--only PATTERN]
       qat_experiments.py tables WORK

`train` runs `tlite-qat` for each network whose folder does not exist yet, several at a time, parents
before children, and stops all after --minutes; the next call continues from their checkpoints.
`measure` adds post-training quantization, runs each network in the engine over the test pictures,
and appends a line to WORK/results.jsonl for each. `tables` prints Markdown.

--data is the folder of Fashion-MNIST that tools/fetch_data.py makes. With --devices N, runs take
turns on N GPUs. PATTERN is a shell pattern of names, or several with commas between them. `measure`
and E10 need numpy and onnx.
"""

import argparse
import fnmatch
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SEEDS = (0, 1, 2)
RECIPE = ["--flip", "--shift", "2", "--batch", "128", "--schedule", "cosine"]
FLOAT_EPOCHS, QAT_EPOCHS, CELL_EPOCHS = 10, 3, 1
BITS = range(8, 3, -1)
# Height and width of the data set's pictures, and of most networks' after zeros are added.
PICTURE, PADDED = 28, 32
ANGLE, SSD_WIDTHS = "angle0.25", (1.0, 0.5)
# Options that say how pictures are made of the data set.
CLASSES, SCALED = ["--task", "classes"], ["--task", "classes", "--fit", "stretch"]


class Run:
    """A network: built-in, trained in floats, trained with fake quantization, or changed by E10."""

    def __init__(self, kind, parent=None, args=(), experiments=(), data=CLASSES):
        self.kind, self.parent, self.args, self.experiments = kind, parent, list(args), experiments
        self.data = data


def mobilenet(width, resolution=32, activation="relu6"):
    return f"mobilenet{width}-{resolution}-{activation}"


def quantized_name(float_name, w=8, a=8, tensor=False):
    return f"{float_name}-w{w}a{a}" + ("-tensor" if tensor else "")


def runs():
    """All runs by name, the most important first."""
    made = {}

    def add(name, *args, **options):
        run = made.setdefault(name, Run(*args, **options))
        run.experiments = sorted({*run.experiments, *options.get("experiments", ())})
        return name

    def trained(network, new, seed, experiments, data=CLASSES):
        add(network, "new", args=new, experiments=experiments)
        args = ["--epochs", str(FLOAT_EPOCHS), "--learning-rate", "0.1", "--seed", str(seed)]
        return add(f"{network}-s{seed}", "train", network, args, experiments=experiments, data=data)

    def quantized(parent, experiments, w=8, a=8, tensor=False, epochs=QAT_EPOCHS, name=None):
        seed = made[parent].args[-1] if made[parent].kind == "train" else "0"
        args = ["--epochs", str(epochs), "--learning-rate", "0.01", "--bits-w", str(w), "--bits-a", str(a)]
        args += ["--per-tensor"] * tensor + ["--seed", seed]
        name = name or quantized_name(parent, w, a, tensor)
        return add(name, "quantize-aware", parent, args, experiments=experiments, data=made[parent].data)

    def cells(parent, experiment):
        for w in BITS:
            for a in BITS:
                quantized(parent, [experiment], w, a, epochs=CELL_EPOCHS, name=f"{parent}-cell-w{w}a{a}")

    def mobile(width, seed, experiments, resolution=32, activation="relu6"):
        new = ["mobilenet_v1", "--dm", str(width), "--resolution", str(resolution), "--activation", activation]
        data = CLASSES if resolution >= PICTURE else SCALED
        return trained(mobilenet(width, resolution, activation), new, seed, experiments, data)

    for seed in SEEDS:
        parent = trained("resnet8", ["resnet8"], seed, ["E1"])
        quantized(parent, ["E1"])
        quantized(parent, ["E1"], tensor=True)
        parent = mobile(0.25, seed, ["E3", "E4", "E8"])
        quantized(parent, ["E3", "E4"])
        quantized(parent, ["E3"], w=7, a=7)
        if seed == 0:
            scaled = add("resnet8-s0-scaled", "scale", "resnet8-s0", experiments=["E10"])
            quantized(scaled, ["E10"], tensor=True)
            quantized(scaled, ["E10"])
        cells(parent, "E8")
    for seed in SEEDS:
        for depth in (20, 32):
            parent = trained(f"resnet{depth}", [f"resnet{depth}"], seed, ["E1"])
            quantized(parent, ["E1"])
            quantized(parent, ["E1"], tensor=True)
    for w in (8, 5, 4):
        quantized("resnet20-s0", ["E2"], w=w)
    for activation in ("relu", "relu6"):
        parent = mobile(0.5, 0, ["E3"], activation=activation)
        quantized(parent, ["E3"])
        quantized(parent, ["E3"], w=7, a=7)
    for width in (0.25, 0.5, 0.75, 1.0):
        for resolution in (32, 24, 16):
            quantized(mobile(width, 0, ["E4"], resolution), ["E4"])
    for seed in SEEDS:
        new = ["mobilenet_v1", "--dm", "0.25", "--activation", "relu6", "--classes", "1"]
        cells(trained(ANGLE, new, seed, ["E9"], ["--task", "angle"]), "E9")
    for width in SSD_WIDTHS:
        new = ["ssdlite", "--dm", str(width), "--activation", "relu6"]
        quantized(trained(f"ssdlite{width}", new, 0, ["E6"], ["--task", "scenes"]), ["E6"])
    return made


def chosen(args):
    """The runs that a pattern names, with their parents."""
    every = runs()
    wanted = {}

    def want(name):
        run = every[name]
        if run.parent:
            want(run.parent)
        wanted.setdefault(name, run)

    for name, run in every.items():
        if any(fnmatch.fnmatch(t, p) for p in args.only.split(",") for t in (name, *run.experiments)):
            want(name)
    return wanted


def scale_channels(source, target):
    """Multiplies the results of half the channels of a layer by 1/200, and the next layer's weights
    for them by 200. The function is the same, and one scale per tensor is no longer enough."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(os.path.join(source, "model.onnx"))
    weights = {t.name: t for t in model.graph.initializer}
    nodes = list(model.graph.node)
    # The first pair of convolutions with nothing but a normalization and Relu between them.
    for i, node in enumerate(nodes):
        chain = [n.op_type for n in nodes[i : i + 4]]
        if chain == ["Conv", "BatchNormalization", "Relu", "Conv"]:
            norm, after = nodes[i + 1], nodes[i + 3]
            used = [n for n in nodes if nodes[i + 2].output[0] in n.input]
            if used == [after]:
                break
    else:
        sys.exit(f"error: {source} has no two convolutions in a row")

    def change(name, factor):
        values = numpy_helper.to_array(weights[name]).copy()
        factor(values)
        weights[name].CopyFrom(numpy_helper.from_array(values, name))

    def less(values):
        values[::2] /= 200

    def more(values):
        values[:, ::2] *= 200

    change(norm.input[1], less)
    change(norm.input[2], less)
    change(after.input[1], more)
    os.makedirs(target + ".new")
    onnx.save(model, os.path.join(target + ".new", "model.onnx"))
    os.rename(target + ".new", target)


def command(run, name, args, device):
    out = ["-o", os.path.join(args.work, name)]
    if run.kind == "new":
        return [args.qat, "new", *run.args, *out]
    where = ["--data", args.data, *run.data, "--device", device, "--json", *RECIPE]
    return [args.qat, run.kind, os.path.join(args.work, run.parent), *where, *run.args, *out]


def train(args):
    os.makedirs(args.work, exist_ok=True)
    waiting, failed = dict(chosen(args)), set()
    for name in [n for n in waiting if os.path.exists(os.path.join(args.work, n))]:
        del waiting[name]
    running, lock, end = {}, threading.Condition(), time.monotonic() + 60 * args.minutes
    free = [i % args.devices for i in range(args.jobs)]

    def work(name, run, slot):
        env = dict(os.environ, CUBECL_WGPU_DEFAULT_DEVICE=f"DiscreteGpu({slot})") if args.devices > 1 else None
        began, ok = time.monotonic(), False
        try:
            if run.kind == "scale":
                scale_channels(os.path.join(args.work, run.parent), os.path.join(args.work, name))
                ok = True
            else:
                with open(os.path.join(args.work, name + ".log"), "a") as log:
                    cmd = command(run, name, args, args.device)
                    left = max(1.0, end - time.monotonic())
                    ok = subprocess.run(cmd, stdout=log, stderr=log, env=env, timeout=left).returncode == 0
        except subprocess.TimeoutExpired:
            pass
        with lock:
            if run.kind in ("train", "quantize-aware") or not ok:
                print(f"{'done' if ok else 'stopped'} {name}: {time.monotonic() - began:.0f} s", flush=True)
            if not ok:
                failed.add(name)
            del running[name]
            free.append(slot)
            lock.notify()

    with lock:
        while (waiting or running) and time.monotonic() < end:
            open_parents = waiting.keys() | running.keys() | failed
            ready = [n for n, r in waiting.items() if r.parent not in open_parents]
            if free and ready:
                name = ready[0]
                running[name] = waiting.pop(name)
                threading.Thread(target=work, args=(name, running[name], free.pop(0))).start()
            elif running:
                lock.wait(timeout=1)
            else:
                break
        while running:
            lock.wait(timeout=1)
    left = sorted(waiting.keys() | failed)
    print(f"{len(left)} left: {', '.join(left)}" if left else "all done")


def calibration_file(data, folder):
    """512 training pictures as networks for PADDED pixels get them."""
    import numpy as np

    with gzip.open(os.path.join(data, "train-images-idx3-ubyte.gz")) as f:
        pixels = np.frombuffer(f.read(16 + 512 * 784)[16:], np.uint8).reshape(512, 1, 28, 28)
    pixels = pixels.astype(np.float32) / 255
    pixels = np.pad(pixels, ((0, 0), (0, 0), *[((PADDED - PICTURE) // 2,) * 2] * 2))
    path = os.path.join(folder, "calibration.npy")
    np.save(path, pixels)
    return path


def evaluated(args, model, data, *more):
    cmd = [args.qat, "evaluate", model, "--data", args.data, *data, "--json", *more]
    return json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True).stdout)


def measure(args):
    path = os.path.join(args.work, "results.jsonl")
    known = {r["name"] for r in results(args)} if os.path.exists(path) else set()

    def put(name, report, **more):
        line = json.dumps({"name": name, **report, **more})
        print(line, flush=True)
        with open(path, "a") as out:
            out.write(line + "\n")

    for name, run in chosen(args).items():
        folder = os.path.join(args.work, name)
        if not os.path.exists(folder) or run.kind == "new":
            continue
        if name not in known:
            put(name, evaluated(args, folder, run.data))
        if run.kind == "quantize-aware" and name + "/same" not in known:
            put(name + "/same", evaluated(args, folder, run.data, "--items", "1000", "--trained", folder))
        if run.kind == "quantize-aware" or not {"E1", "E3", "E4", "E10"} & set(run.experiments):
            continue
        # Calibration pictures are not scaled.
        if run.data != CLASSES:
            continue
        for scheme, options in ("ptq", []), ("ptq-tensor", ["--per-tensor"]):
            if f"{name}/{scheme}" in known:
                continue
            with tempfile.TemporaryDirectory() as made:
                set_ = calibration_file(args.data, made)
                out = os.path.join(made, "int8")
                cmd = [args.tlite, "quantize", folder, "-o", out, "--format", "int8", "--calibration", set_]
                subprocess.run([*cmd, *options], check=True, capture_output=True)
                put(f"{name}/{scheme}", evaluated(args, out, run.data))


def results(args):
    with open(os.path.join(args.work, "results.jsonl")) as f:
        return [json.loads(line) for line in f]


def ranks(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    found = [0.0] * len(values)
    i = 0
    while i < len(order):
        j = i
        while j + 1 < len(order) and values[order[j + 1]] == values[order[i]]:
            j += 1
        for k in order[i : j + 1]:
            found[k] = (i + j) / 2
        i = j + 1
    return found


def spearman(xs, ys, shuffles=100_000):
    """Spearman's rho and the share of seeded random orders that reach it.

    >>> spearman([1, 2, 3, 4], [2, 4, 6, 9], shuffles=2000)[0]
    1.0
    """
    import random

    a, b = ranks(xs), ranks(ys)
    mean = (len(a) - 1) / 2

    def rho(b):
        sums = [sum((x - mean) * (y - mean) for x, y in zip(u, v)) for u, v in ((a, b), (a, a), (b, b))]
        return sums[0] / (sums[1] * sums[2]) ** 0.5 if sums[1] and sums[2] else 0.0

    found, draw, reached = rho(b), random.Random(0), 0
    for _ in range(shuffles):
        draw.shuffle(b)
        reached += abs(rho(b)) >= abs(found)
    return found, (reached + 1) / (shuffles + 1)


def main_number(result):
    """The number that stands for a result, in percent: top-1, within 5 degrees, or mAP."""
    return 100 * next(result[key] for key in ("top1", "within_5", "map") if key in result)


def tables(args):
    top1 = {r["name"]: main_number(r) for r in results(args)}
    compared = [r for r in results(args) if r["name"].endswith("/same")]
    same = [r for r in compared if "same_top1" in r["trained"]]

    def cell(names):
        found = [top1[n] for n in names if n in top1]
        if not found:
            return ""
        return f"{statistics.mean(found):.2f}" + (f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else "")

    def floats_and_others(title, networks):
        print(f"\n## {title}\n\n| network | float | PTQ, per tensor | PTQ, per channel | QAT, per tensor | QAT, per channel | QAT 7/7 |")
        print("|---|---|---|---|---|---|---|")
        for network in networks:
            floats = [n for n in (f"{network}-s{s}" for s in SEEDS) if n in top1]
            columns = [floats, [n + "/ptq-tensor" for n in floats], [n + "/ptq" for n in floats]]
            columns += [[quantized_name(n, tensor=True) for n in floats], [quantized_name(n) for n in floats]]
            columns += [[quantized_name(n, 7, 7) for n in floats]]
            if floats:
                print(f"| {network} | " + " | ".join(cell(c) for c in columns) + " |")

    resolutions = [mobilenet(w, r) for w in (0.25, 0.5, 0.75, 1.0) for r in (32, 24, 16)]
    floats_and_others("E1: depth", ["resnet8", "resnet20", "resnet32"])
    floats_and_others("E3, E4: MobileNets", [*resolutions, mobilenet(0.5, activation="relu")])
    rows = [(f"{w}", quantized_name("resnet20-s0", w=w)) for w in (8, 5, 4)]
    if any(n in top1 for _, n in rows):
        print("\n## E2: ResNet-20, weights of fewer bits\n\n| bits of weights | top-1 |\n|---|---|")
        for bits, name in rows:
            print(f"| {bits} | {cell([name])} |")
    scaled = "resnet8-s0-scaled"
    if scaled in top1:
        print("\n## E10: channels scaled apart\n\n| network | top-1 |\n|---|---|")
        for what, name in (
            ("float", scaled),
            ("PTQ, per tensor", scaled + "/ptq-tensor"),
            ("PTQ, per channel", scaled + "/ptq"),
            ("QAT, per tensor", quantized_name(scaled, tensor=True)),
            ("QAT, per channel", quantized_name(scaled)),
        ):
            print(f"| {what} | {cell([name])} |")

    def bits(title, network, what_is_measured):
        parents = [f"{network}-s{s}" for s in SEEDS]
        cells = {(w, a): [n for n in (f"{p}-cell-w{w}a{a}" for p in parents) if n in top1] for w in BITS for a in BITS}
        if not all(cells.values()):
            return
        print(f"\n## {title}, bits of weights (rows) and activations (columns)\n")
        print(f"Float: {cell(parents)}\n")
        print("| | " + " | ".join(str(a) for a in BITS) + " |\n|---|" + "---|" * len(BITS))
        for w in BITS:
            print(f"| {w} | " + " | ".join(cell(cells[w, a]) for a in BITS) + " |")
        mean = {k: statistics.mean(top1[n] for n in v) for k, v in cells.items()}
        for what, index in ("weights", 0), ("activations", 1):
            rho, p = spearman([k[index] for k in mean], list(mean.values()))
            print(f"\nBits of {what} and {what_is_measured}: Spearman's rho {rho:.2f}, p {p:.5f}")
        low = [statistics.mean(mean[k] for k in mean if k[i] == 4) for i in (0, 1)]
        print(f"\nMean with 4-bit weights {low[0]:.2f}, with 4-bit activations {low[1]:.2f}")
        drop = statistics.mean(mean[k] for k in ((8, 8), (8, 7), (7, 8))) - mean[7, 7]
        print(f"\n7/7 bits below the mean of 8/8, 8/7 and 7/8: {drop:.2f}")
        for total in range(9, 16):
            row = {k: v for k, v in mean.items() if sum(k) == total}
            best = max(row, key=row.get)
            print(f"\nSum {total}: best {best[0]}/{best[1]}" + ", the most equal split" * (abs(best[0] - best[1]) <= total % 2))

    bits("E8: top-1", mobilenet(0.25), "top-1")
    bits("E9: angles within 5 degrees", ANGLE, "precision")
    names = [f"ssdlite{w}-s0" for w in SSD_WIDTHS]
    if any(n in top1 for n in names):
        ap50 = {r["name"]: 100 * r["ap50"] for r in results(args) if "ap50" in r}
        print("\n## E6: detection, mAP (AP at IoU 0.5)\n\n| network | float | QAT, per channel |\n|---|---|---|")
        for name in names:
            pair = [f"{top1[n]:.2f} ({ap50[n]:.2f})" if n in top1 else "" for n in (name, quantized_name(name))]
            print(f"| {name} | {pair[0]} | {pair[1]} |")
    if same:
        worst = min(same, key=lambda r: r["trained"]["same_top1"])
        steps = max(r["trained"]["most_steps"] or 0 for r in compared)
        print(f"\nExported files and trained networks, 1000 pictures each: same top-1 for at least "
              f"{100 * worst['trained']['same_top1']:.1f} % ({worst['name']}), outputs within {steps:.1f} steps, {len(compared)} networks")


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n\n")[0])
    parser.add_argument("action", choices=["list", "train", "measure", "tables"])
    parser.add_argument("work", nargs="?", default=".")
    parser.add_argument("--qat", default=shutil.which("tlite-qat") or "tlite-qat")
    parser.add_argument("--tlite", default=shutil.which("tlite") or "tlite")
    parser.add_argument("--data")
    parser.add_argument("--device", default="flex")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--only", default="*")
    args = parser.parse_args()
    if args.action in ("train", "measure") and not args.data:
        parser.error("--data is needed")
    if args.action == "list":
        for name, run in chosen(args).items():
            print(f"{','.join(run.experiments):12} {run.kind:15} {name}")
    else:
        {"train": train, "measure": measure, "tables": tables}[args.action](args)


if __name__ == "__main__":
    main()
