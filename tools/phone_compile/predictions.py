"""What phones should reach, from what models move and compute, the counts of the vector kernel, and published peaks. Nothing is measured."""

from drivers import GPUS

# Bytes a second that memory moves at most, and half-precision operations a second: by ArchProbe as the paper has it, and 12 cores of 512
# operations a clock at 1.3 GHz. Single precision has half of it.
PEAKS = {"adreno-750": ("Snapdragon 8 Gen 3", 76.8e9, 5.6e12), "mali-g720": ("Dimensity 9300", 76.8e9, 8.0e12)}
# The part of a memory's peak that decoders reach on phones, by published figures of several engines.
REACHED = 0.6
# Tokens a second of prefill and decoding with a prompt of 128, as the paper measured them.
PAPER = {
    ("gemma-2b", "adreno-750"): (330, 30),
    ("gemma-2b", "mali-g720"): (275, None),
    ("chatglm2-6b", "adreno-750"): (121, 14),
    ("qwen1.5-14b", "mali-g720"): (54, 5),
}
# Of folders that do not say what they hold.
NAMES = {"e0m4": "smollm2-135m"}
# Models that run at once, with the places of a sequence: costs are those of one.
RUNS = {"mobilenetv2": 1, "clip-image": 1, "clip-text": 77}
# Milliseconds of an encoder, as the paper measured them.
PAPER_RUNS = {
    ("clip-image", "adreno-750"): 19.2,
    ("clip-image", "mali-g720"): 29.5,
    ("clip-text", "adreno-750"): 13.9,
    ("clip-text", "mali-g720"): 27.2,
}


def page(models, compared, markdown):
    """The part of the page about predictions. `compared`: as tables.compared returns it."""
    cost = {}
    for backend, gpu, _, e0m4, _ in compared:
        if backend == "opencl":
            cost[gpu] = max(e0m4, cost.get(gpu, 0))
    decoders = [["model", "GPU", "GB a step", "ms by memory", "ms by instructions", "decode, tokens/s", "paper", "GFLOP a token", "prefill at the peak, tokens/s", "paper"]]
    runs = [["model", "GPU", "GFLOP", "MB of weights", "ms at the peak", "paper, ms"]]
    for m in models:
        for gpu in (g.name for g in GPUS if g.name in PEAKS):
            _, bandwidth, half = PEAKS[gpu]
            single = half / 2
            # The matrix kernel's.
            rate = half if gpu.startswith("mali") else single
            flop = 2 * m["macs"]
            if m["model"] in RUNS:
                flop *= RUNS[m["model"]]
                ms = max(flop / single, m["weight_bytes"] / bandwidth) * 1e3
                runs.append([m["model"], gpu, f"{flop / 1e9:.1f}", f"{m['weight_bytes'] / 1e6:.0f}", f"{ms:.1f}", PAPER_RUNS.get((m["model"], gpu), "")])
                continue
            # What is left are decoders with packed weights.
            if not m["decoder"] or not m["weight_bytes"]:
                continue
            by_memory = m["weight_bytes"] / bandwidth * 1e3
            # A lane does one instruction where it could do one multiply-add.
            by_counts = m["macs"] / 32 * cost.get(gpu, 0) / (single / 2) * 1e3
            step = max(by_memory / REACHED, by_counts)
            body = flop - 2 * m["head_macs"]
            paper = PAPER.get((m["model"], gpu), ("", ""))
            decoders.append(
                [
                    NAMES.get(m["model"], m["model"]), gpu, f"{m['weight_bytes'] / 1e9:.2f}", f"{by_memory:.1f}", f"{by_counts:.1f}", f"{1e3 / step:.1f}", paper[1] or "",
                    f"{body / 1e9:.2f}", f"{rate / body:.0f}", paper[0],
                ]
            )
    chips = "; ".join(f"{gpu}, {chip}: {b / 1e9:.1f} GB/s, {h / 1e12:.1f} half-precision TFLOP/s" for gpu, (chip, b, h) in PEAKS.items())
    return f"""## Predictions

**Nothing here was measured on a phone but the columns of the paper.** Peaks: {chips}; in single precision half of the operations.

A decode step reads all weights of products once. By memory: at the peak; by instructions: those of the vector kernel in OpenCL C, one a
lane a clock, be it of a half, a pair of them or a single. Predicted is the longer one, with {REACHED:.0%} of the memory's peak, which is what published figures of phones reach. Prefill is
an upper bound: all arithmetic at the peak of single precision, or on Mali, whose matrix kernel computes in halves, of these; of the latter the
paper's own kernels reach 29 %.

{markdown(decoders)}

Encoders and networks for images, whole runs with a batch of 1, at the peak of single precision; the paper's ran in half precision.

{markdown(runs)}
"""
