"""The page about kernels on phone GPUs: docs/benchmarks/phone-kernels.md."""

from collections import defaultdict

import predictions
from drivers import Counts, Failed
from tables import LANGUAGE, MAX_RATIO_TO_INT4, markdown

# Kernels that the page shows; the summary beside it has all.
SHOWN = [
    "attention",
    "conv",
    "matmul",
    "matmul_e0m",
    "matmul_e0m_int8",
    "matmul_e0m_pairs",
    "matvec_e0m",
    "matvec_e0m_int8",
    "norm",
    "rotary_append",
    "softmax",
]
GPUS_SHOWN = ["adreno-750", "adreno-830", "mali-g720"]

TEXT = """\
# Kernels on phone GPUs

Every kernel that the plans of ten models and of the Llama-2 7B shape ask for, compiled offline for
five phone GPUs. **No phone was used: nothing here is a measured speed**, except the figures of the
paper (*Transformer-Lite*, Li et al., 2024), which stand in brackets.

* **Compilers**: Mesa {version}.
  Rusticl compiles OpenCL C; naga with Turnip (Adreno) or PanVK (Mali) compiles WGSL.
* **Kernels**: those of commit {commit}.
* **Command**: `python3 tools/phone_compile --write`. It writes this page and
  [phone_kernels.tsv](phone_kernels.tsv), the worst case of each kernel on each GPU. The full table,
  with one row per form, goes to `phone_compile/phone_kernels.tsv` in the cache folder; CI keeps it
  as the artifact `phone-kernels`.
* **Purpose**: to find build errors, spills, lost occupancy and emulated arithmetic. Phones use
  their vendors' compilers, so a difference of 10 % means little.
* **Result**: {forms} forms (a form is a kernel with its defines, operand types and epilogue). Forms
  that do not compile: {failed}. Forms that spill registers: {spilled}.

## Worst case of the main kernels

A cell holds the instructions of the largest form, the most registers and the fewest waves over all
forms. Instructions are those of the whole program, with each loop counted once. Registers are vec4
on Adreno and scalar on Mali. Waves are those for which the registers leave room: up to 16 on
Adreno; on Mali, 2 is full occupancy and 1 is half.

{kernels}

## E0M4 against INT4

Instructions per 32 weights in the GEMV kernel: loads, addresses, conversion to floats and 32
multiply-adds. The INT4 twin differs in the conversion only. In half precision weights are converted
in pairs, and the middle of their range is subtracted. INT4 has two ways to do that, and the cheaper
one counts. The check fails if E0M4 in pairs takes more than {most} times the instructions of INT4.
In single precision both formats take two operations per weight.

{costs}

## Predicted speeds

Published peaks; single precision has half of the f16 rate:

{chips}

**One decode step, weights only.** "Memory" is the time at the peak bandwidth. "Instructions" is the
time to issue the instructions of the GEMV kernel, at one per clock and SIMD lane. Tokens/s follow
from the longer of the two, with memory at {reached} of its peak, which published figures of phones
reach.

{decoders}

**Encoders and image models**, batch 1, at the single-precision peak. The paper ran them in half
precision.

{runs}

### The paper's figure 4

Prefill of a prompt into an empty cache, and decode after it, in tokens/s, with E0M4 in groups of
128. The predictions come from the bytes and operations of the plans, attention and KV cache
included. Each node takes the longer of its memory time (at {reached} of the peak) and its
arithmetic time (at the peak). Launches are ignored, so prefill is an upper bound. The paper's text
gives speeds for prompts of {told} tokens only; the rest is in its charts.

{figure}

[The lab notebook](../lab/phone-kernels.md) has every kernel and every pair of forms at one commit.
"""


def kernel_rows(rows):
    """Worst cases of the kernels that the page shows; `rows` as summary.summarise returns them."""
    found = [["kernel", "language", "forms", *GPUS_SHOWN]]
    for (kernel, backend), (forms, cells) in rows.items():
        if kernel not in SHOWN:
            continue
        shown = []
        for gpu in GPUS_SHOWN:
            w = cells[gpu][0] if gpu in cells else None
            shown.append(f"{w.instructions} / {w.registers} / {w.waves}" if w else "")
        found.append([f"`{kernel}`", LANGUAGE[backend], forms, *shown])
    return found


def cost_rows(pairs):
    """E0M4 against INT4, one row for each language, GPU and precision.

    >>> for row in cost_rows([("wgpu", "g", "k<>", 134.0, 134.0), ("wgpu", "g", "l<>", 134, 131)]):
    ...     print(row)
    ['language', 'precision', 'GPU', 'forms', 'E0M4', 'INT4', 'INT4 / E0M4']
    ['WGSL', 'single', 'g', 2, '134', '131 to 134', '0.98 to 1.00']
    """
    groups = defaultdict(list)
    for backend, gpu, form, ours, theirs in pairs:
        precision = "pairs" if " PAIRS=1" in form else "single"
        groups[(LANGUAGE[backend], precision, gpu)].append((ours, theirs))

    def span(values, form):
        few, most = format(min(values), form), format(max(values), form)
        return few if few == most else f"{few} to {most}"

    rows = [["language", "precision", "GPU", "forms", "E0M4", "INT4", "INT4 / E0M4"]]
    for at, costs in groups.items():
        ours, theirs = [o for o, _ in costs], [t for _, t in costs]
        ratios = [t / o for o, t in costs]
        rows.append([*at, len(costs), span(ours, ".0f"), span(theirs, ".0f"), span(ratios, ".2f")])
    return rows


def write(path, version, commit, entries, table, rows, pairs, decoders, runs, figure):
    """Writes the page."""
    ours = {(e["backend"], e["key"]) for e in entries if "compared" not in e}
    counts = [c for at, found in table.items() if at in ours for c in found.values()]
    chips = "\n".join(
        f"* {gpu} ({chip}): {b / 1e9:.1f} GB/s, {h / 1e12:.1f} f16 TFLOP/s"
        for gpu, (chip, b, h) in predictions.PEAKS.items()
    )
    path.write_text(
        TEXT.format(
            version=version,
            commit=commit,
            forms=len(ours),
            failed=sum(1 for c in counts if isinstance(c, Failed)),
            spilled=sum(1 for c in counts if isinstance(c, Counts) and c.spills),
            kernels=markdown(kernel_rows(rows)),
            most=MAX_RATIO_TO_INT4,
            costs=markdown(cost_rows(pairs)),
            chips=chips,
            reached=f"{predictions.REACHED:.0%}".replace("%", " %"),
            told=predictions.TOLD,
            decoders=markdown(decoders),
            runs=markdown(runs),
            figure=markdown(figure),
        )
    )
