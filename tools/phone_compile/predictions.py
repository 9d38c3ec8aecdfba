"""Speeds that phones should reach, predicted from plans, counts and published peaks.

Nothing here is measured, except the columns of the paper.
"""

# Chip, peak memory bandwidth in bytes/s and peak half-precision rate in FLOP/s; single precision
# has half of that rate. Adreno: measured by ArchProbe, as the paper quotes it. Mali: 12 cores with
# 512 operations per clock at 1.3 GHz.
PEAKS = {
    "adreno-750": ("Snapdragon 8 Gen 3", 76.8e9, 5.6e12),
    "mali-g720": ("Dimensity 9300", 76.8e9, 8.0e12),
}
# Share of the peak bandwidth that decoders reach on phones: published figures of several engines.
REACHED = 0.6
# Prefill and decode in tokens/s with a prompt of 128 tokens, as the paper measured them.
PAPER = {
    ("gemma-2b", "adreno-750"): (330, 30),
    ("gemma-2b", "mali-g720"): (275, None),
    ("chatglm2-6b", "adreno-750"): (121, 14),
    ("qwen1.5-14b", "mali-g720"): (54, 5),
}
# Names of models in folders that are called otherwise.
NAMES = {"e0m4": "smollm2-135m"}
# Encoders and image models, with their sequence length: costs are those of one position.
RUNS = {"mobilenetv2": 1, "clip-image": 1, "clip-text": 77}
# Run times of encoders in ms, as the paper measured them.
PAPER_RUNS = {
    ("clip-image", "adreno-750"): 19.2,
    ("clip-image", "mali-g720"): 29.5,
    ("clip-text", "adreno-750"): 13.9,
    ("clip-text", "mali-g720"): 27.2,
}
# Prompt length for which the paper's text gives speeds; for others it has only a picture.
TOLD = 128


def peaks():
    """Arguments for crates/tlite/examples/phone_predictions.rs: bytes/s, then FLOP/s in f32 and in f16.

    >>> peaks()[0]
    'adreno-750=46080000000,2800000000000,5600000000000'
    """
    return [f"{gpu}={b * REACHED:.0f},{h / 2:.0f},{h:.0f}" for gpu, (_, b, h) in PEAKS.items()]


def with_paper(ours, paper):
    """A prediction, with the paper's measurement in brackets if there is one."""
    return f"{ours} ({paper})" if paper else ours


def figure_4(lines):
    """Rows of the table for the paper's figure 4. `lines`: output of crates/tlite/examples/phone_predictions.rs.

    >>> line = {"model": "gemma-2b", "prefill_flops": 128e9, "decode_bytes": 2e9,
    ...     "prefill_tokens_per_s": 400.0, "decode_tokens_per_s": 25.0}
    >>> lines = [line | {"gpu": g, "prompt": n} for g in PEAKS for n in (128, 1024)]
    >>> for row in figure_4(lines)[1:]: print(row)
    ['gemma-2b', 128, '1.00', '2.00', '400 (330)', '25.0 (30)', '400 (275)', '25.0']
    ['gemma-2b', 1024, '0.12', '2.00', '400', '25.0', '400', '25.0']
    """
    head = ["model", "prompt", "GFLOP/token", "GB/token"]
    rows = {}
    for l in lines:
        at = (l["model"], l["prompt"])
        flop, bytes_ = l["prefill_flops"] / l["prompt"], l["decode_bytes"]
        row = rows.setdefault(at, [*at, f"{flop / 1e9:.2f}", f"{bytes_ / 1e9:.2f}"])
        prefill, decode = "", ""
        if l["prompt"] == TOLD:
            prefill, decode = PAPER.get((l["model"], l["gpu"]), ("", ""))
        row.append(with_paper(f"{l['prefill_tokens_per_s']:.0f}", prefill))
        row.append(with_paper(f"{l['decode_tokens_per_s']:.1f}", decode))
    return [head + [f"{g}: {w}" for g in PEAKS for w in ("prefill", "decode")], *rows.values()]


def decode_and_runs(models, compared):
    """Rows of two tables: a decode step, and a run of an encoder or image model.

    `models`: as crates/tlite/examples/phone_kernels.rs writes it; `compared`: as tables.compared returns it.

    >>> model = {"model": "m", "decoder": True, "weight_bytes": 768_000_000, "macs": 32_000_000}
    >>> pairs = [("opencl", gpu, "form", 140, 150) for gpu in PEAKS]
    >>> decode_and_runs([model], pairs)[0][1]
    ['m', '0.77', '10.0', '0.1', '60.0', '10.0', '0.1', '60.0']
    >>> model = {"model": "clip-image", "weight_bytes": 0, "macs": 28_000_000_000}
    >>> decode_and_runs([model], pairs)[1][1]
    ['clip-image', '56.0', '0', '20.0 (19.2)', '14.0 (29.5)']
    """
    cost = {}
    for backend, gpu, _, e0m4, _ in compared:
        if backend == "opencl":
            cost[gpu] = max(e0m4, cost.get(gpu, 0))
    what = ("ms, memory", "ms, instructions", "tokens/s")
    decoders = [["model", "GB/step", *(f"{g}: {w}" for g in PEAKS for w in what)]]
    runs = [["model", "GFLOP", "weights, MB", *(f"{g}: ms" for g in PEAKS)]]
    for m in models:
        name, weights = m["model"], m["weight_bytes"]
        if name in RUNS:
            flop = 2 * m["macs"] * RUNS[name]
            row = [name, f"{flop / 1e9:.1f}", f"{weights / 1e6:.0f}"]
            for gpu, (_, bandwidth, half) in PEAKS.items():
                ms = max(flop / (half / 2), weights / bandwidth) * 1e3
                row.append(with_paper(f"{ms:.1f}", PAPER_RUNS.get((name, gpu))))
            runs.append(row)
        elif m["decoder"] and weights:
            row = [NAMES.get(name, name), f"{weights / 1e9:.2f}"]
            for gpu, (_, bandwidth, half) in PEAKS.items():
                by_memory = weights / bandwidth * 1e3
                # A SIMD lane issues one instruction where it could do one multiply-add.
                by_counts = m["macs"] / 32 * cost.get(gpu, 0) / (half / 4) * 1e3
                step = max(by_memory / REACHED, by_counts)
                row += [f"{by_memory:.1f}", f"{by_counts:.1f}", f"{1e3 / step:.1f}"]
            decoders.append(row)
    return decoders, runs
