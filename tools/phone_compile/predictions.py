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


# Prompts of the paper's figure 4, of which its text tells speeds for the first alone.
TOLD = 128


def peaks():
    """GPUs with the bytes and operations a second, in single and half precision, that examples/phone_predictions.rs reckons with.

    >>> peaks()[0]
    'adreno-750=46080000000,2800000000000,5600000000000'
    """
    return [f"{gpu}={b * REACHED:.0f},{h / 2:.0f},{h:.0f}" for gpu, (_, b, h) in PEAKS.items()]


def figure_4(lines, markdown):
    """The part of the page about the paper's figure 4. `lines`: what examples/phone_predictions.rs has written.

    >>> line = {"model": "gemma-2b", "gpu": "adreno-750", "prefill_flops": 128e9, "decode_bytes": 2e9, "prefill_tokens_per_s": 400.0, "decode_tokens_per_s": 25.0}
    >>> for row in figure_4([line | {"prompt": n} for n in (128, 1024)], lambda rows: "\\n".join(map(str, rows))).splitlines()[-2:]: print(row)
    ['gemma-2b', 'adreno-750', 128, '1.00', '400', 330, '2.00', '25.0', 30]
    ['gemma-2b', 'adreno-750', 1024, '0.12', '400', '', '2.00', '25.0', '']
    """
    rows = [["model", "GPU", "prompt", "GFLOP a token", "prefill, tokens/s", "paper", "GB a token behind it", "decode, tokens/s", "paper"]]
    for l in lines:
        prefill, decode = PAPER.get((l["model"], l["gpu"]), ("", "")) if l["prompt"] == TOLD else ("", "")
        rows.append(
            [
                l["model"], l["gpu"], l["prompt"], f"{l['prefill_flops'] / l['prompt'] / 1e9:.2f}", f"{l['prefill_tokens_per_s']:.0f}", prefill,
                f"{l['decode_bytes'] / 1e9:.2f}", f"{l['decode_tokens_per_s']:.1f}", decode or "",
            ]
        )
    return f"""### The paper's figure 4

Its models, phones and prompts, E0M4 in groups of 128: prefill of the prompt into an empty cache, and a token behind it. Predicted from the bytes and operations of the
plans for these GPUs, attention and cache among them, node by node the longer of {REACHED:.0%} of the memory's peak and the peak of what the kernels compute in, launches left
out. Prefill is so an upper bound again. The paper's text tells some of the speeds with a prompt of {TOLD}, the others are in its pictures alone.

{markdown(rows)}
"""


def page(models, compared, figure, markdown):
    """The part of the page about predictions. `compared`: as tables.compared returns it; `figure`: as figure_4 takes it."""
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

{figure_4(figure, markdown)}"""
