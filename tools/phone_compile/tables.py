"""Counts of compiled kernels, form by form: the full table in the cache, and faults of forms.

A *form* is one kernel text: a kernel with its defines, operand types and epilogue, in one language.
"""

import hashlib
import os
from collections import defaultdict

from drivers import GPUS, Counts, Failed

# Upper bound on the instructions of E0M4 weights in pairs, relative to those of INT4 weights.
MAX_RATIO_TO_INT4 = 1.1

LANGUAGE = {"opencl": "OpenCL C", "wgpu": "WGSL"}


def text_of(folder, entry):
    """Checksum of a kernel text."""
    return hashlib.sha256((folder / entry["file"]).read_bytes()).hexdigest()[:16]


def rows(results):
    """Sorted mapping of (backend, key) to counts by GPU name."""
    found = defaultdict(dict)
    for (gpu, backend), counts in results.items():
        for key, c in counts.items():
            found[(backend, key)][gpu] = c
    return dict(sorted(found.items()))


def cell(c):
    if c is None:
        return "-"
    if isinstance(c, Failed):
        return "failed"
    spills = f" {c.spills} spills" if c.spills else ""
    return f"{c.instructions} {c.registers} {c.waves}{spills}"


def write_tsv(path, compilers, table, texts):
    """Writes the full table. `compilers` identifies them; `texts` has each form's checksum."""
    names = [g.name for g in GPUS]
    lines = [
        f"# Compilers {compilers}. A cell: instructions, registers, waves (Mali: threads).",
        "\t".join(["backend", "kernel", "text", *names]),
    ]
    for (backend, key), counts in table.items():
        cells = [cell(counts.get(name)) for name in names]
        lines.append("\t".join([backend, key, texts[(backend, key)], *cells]))
    unfinished = path.with_suffix(".part")
    unfinished.write_text("\n".join(lines) + "\n")
    os.replace(unfinished, path)


def read_tsv(path):
    """Returns the identity of the compilers, the table, and the checksums of its texts."""
    lines = path.read_text().splitlines()
    compilers = lines[0].removeprefix("# Compilers ").split(". ")[0]
    names = lines[1].split("\t")[3:]
    table, texts = {}, {}
    for line in lines[2:]:
        backend, key, text, *cells = line.split("\t")
        counts = {}
        for name, found in zip(names, cells, strict=True):
            numbers = found.split()
            if found not in ("-", "failed"):
                spills = int(numbers[3]) if len(numbers) > 3 else 0
                counts[name] = Counts(*map(int, numbers[:3]), spills)
        table[(backend, key)], texts[(backend, key)] = counts, text
    return compilers, table, texts


def faults(table):
    """Forms that do not compile or that spill, one line each.

    >>> faults({("opencl", "a"): {"g": Counts(10, 4, 16, 0)}})
    []
    >>> faults({("opencl", "a"): {"g": Counts(10, 4, 16, 2)}})
    ['g opencl a: 2 spills']
    """
    found = []
    for (backend, key), counts in table.items():
        for gpu, c in counts.items():
            if isinstance(c, Failed):
                found.append(f"{gpu} {backend} {key}: does not compile\n{c}")
            elif c.spills:
                found.append(f"{gpu} {backend} {key}: {c.spills} spills")
    return found


def drift(table, before):
    """Forms that became dearer since an earlier run, one line each: worth a look, not a fault.

    >>> old, new = Counts(100, 8, 16, 0), Counts(120, 8, 12, 0)
    >>> drift({("opencl", "a"): {"g": new}}, {("opencl", "a"): {"g": old}})
    ['g opencl a: 120 instructions (before: 100), 12 waves (before: 16)']
    >>> drift({("opencl", "a"): {"g": old}}, {("opencl", "a"): {"g": old}})
    []
    """
    found = []
    for (backend, key), counts in table.items():
        for gpu, c in counts.items():
            b = before.get((backend, key), {}).get(gpu)
            if not (isinstance(b, Counts) and isinstance(c, Counts)):
                continue
            words = []
            if c.instructions > 1.1 * b.instructions:
                words.append(f"{c.instructions} instructions (before: {b.instructions})")
            if c.waves < b.waves:
                words.append(f"{c.waves} waves (before: {b.waves})")
            if words:
                found.append(f"{gpu} {backend} {key}: {', '.join(words)}")
    return found


def compared(entries, table):
    """Instructions per 32 weights of E0M4 GEMV kernels and of their INT4 twins.

    Returns (backend, gpu, form, E0M4, INT4) for each pair whose counts are all known. Where INT4
    has two conversions, the cheaper one counts. The cost of the weights alone is the difference
    between a loop body of two k-steps and one of one k-step.
    """
    forms = defaultdict(dict)
    for e in entries:
        if "compared" in e:
            c = e["compared"]
            form = e["key"].split(": ", 1)[1]
            forms[(e["backend"], form)][(c["format"], c["weights"])] = e["key"]
    found = []
    for (backend, form), keys in sorted(forms.items()):
        few, more = sorted({weights for _, weights in keys})
        kinds = sorted({kind for kind, _ in keys})
        for gpu in GPUS:
            cost = {}
            for kind in kinds:
                ends = [
                    table.get((backend, keys[(kind, weights)]), {}).get(gpu.name)
                    for weights in (few, more)
                ]
                if all(isinstance(e, Counts) for e in ends):
                    instructions = ends[1].instructions - ends[0].instructions
                    cost[kind] = instructions / ((more - few) / 32)
            if len(cost) == len(kinds) and "E0M4" in cost and len(cost) > 1:
                ours = cost.pop("E0M4")
                found.append((backend, gpu.name, form, ours, min(cost.values())))
    return found


def dearer(pairs):
    """Kernels that take E0M4 weights in pairs and exceed the bound relative to their INT4 twins.

    >>> dearer([("opencl", "mali-g720", "k< PAIRS=1>", 2.1, 2)])
    []
    >>> dearer([("opencl", "mali-g720", "k< PAIRS=1>", 3, 2)])
    ['mali-g720 opencl k< PAIRS=1>: 3.0 instructions per 32 weights in E0M4, 2.0 in INT4']
    """
    return [
        f"{gpu} {backend} {form}: {ours:.1f} instructions per 32 weights in E0M4, "
        f"{theirs:.1f} in INT4"
        for backend, gpu, form, ours, theirs in pairs
        if " PAIRS=1" in form and ours > MAX_RATIO_TO_INT4 * theirs
    ]


def markdown(rows):
    """A Markdown table whose first row is the head."""
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in body])
