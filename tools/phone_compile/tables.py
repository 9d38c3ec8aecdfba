"""The tables of counts: one for programs, one for people; what changed for the worse."""

import hashlib
from collections import defaultdict

from drivers import GPUS, Counts, Failed

# GPUs on which weights of 4 bits must cost less as E0M4 than as INT4 where kernels take them in pairs.
CHEAPER_ON = ("adreno-750", "mali-g720")

LANGUAGE = {"opencl": "OpenCL C", "wgpu": "WGSL"}


def text_of(folder, entry):
    """What tells the text of a kernel from every other."""
    return hashlib.sha256((folder / entry["file"]).read_bytes()).hexdigest()[:16]


def rows(results):
    """(backend, key) to counts by the name of the GPU, sorted."""
    found = defaultdict(dict)
    for (gpu, backend), counts in results.items():
        for key, c in counts.items():
            found[(backend, key)][gpu] = c
    return dict(sorted(found.items()))


def write_tsv(path, version, table, texts):
    """Writes the table for programs: in a cell instructions, registers and waves. `texts` has the hash of each kernel's text."""
    names = [g.name for g in GPUS]
    lines = [f"# Mesa {version}. A cell: instructions, registers, waves or threads; see phone_kernels.md.", "\t".join(["backend", "kernel", "text", *names])]
    for (backend, key), counts in table.items():
        cells = [cell(counts.get(name)) for name in names]
        lines.append("\t".join([backend, key, texts[(backend, key)], *cells]))
    path.write_text("\n".join(lines) + "\n")


def cell(c):
    if c is None:
        return "-"
    if isinstance(c, Failed):
        return "failed"
    spills = f" {c.spills} spills" if c.spills else ""
    return f"{c.instructions} {c.registers} {c.waves}{spills}"


def read_tsv(path):
    """The version that the stored table is of, the table, and the hashes of the texts that were compiled."""
    lines = path.read_text().splitlines()
    version = lines[0].removeprefix("# Mesa ").split(". ")[0]
    names = lines[1].split("\t")[3:]
    table, texts = {}, {}
    for line in lines[2:]:
        backend, key, text, *cells = line.split("\t")
        counts = {}
        for name, found in zip(names, cells):
            numbers = found.split()
            if found not in ("-", "failed"):
                counts[name] = Counts(*map(int, numbers[:3]), int(numbers[3]) if len(numbers) > 3 else 0)
        table[(backend, key)], texts[(backend, key)] = counts, text
    return version, table, texts


def missing(asked, stored):
    """Kernels that plans ask for and the stored table lacks, a line each: without them it says nothing of what runs.

    >>> missing([("opencl", "a"), ("wgpu", "a")], {("opencl", "a"): {}})
    ['wgpu a: not in the table: run tools/phone_compile --write']
    >>> missing([("opencl", "a")], {("opencl", "a"): {}, ("opencl", "b"): {}})
    []
    """
    return [f"{' '.join(at)}: not in the table: run tools/phone_compile --write" for at in sorted(asked) if at not in stored]


def faults(table, stored):
    """What CI refuses, a line each: build errors, spills, lost occupancy, twice the stored instructions."""
    found = []
    for (backend, key), counts in table.items():
        before = stored.get((backend, key), {})
        for gpu, c in counts.items():
            where = f"{gpu} {backend} {key}"
            if isinstance(c, Failed):
                found.append(f"{where}: does not compile\n{c}")
                continue
            if c.spills:
                found.append(f"{where}: {c.spills} spills")
            b = before.get(gpu)
            if b and c.waves < b.waves:
                found.append(f"{where}: {c.waves} waves, {b.waves} stored")
            if b and c.instructions > 2 * b.instructions:
                found.append(f"{where}: {c.instructions} instructions, {b.instructions} stored")
    return found


def unlike(table, stored, same):
    """Kernels among `same`, whose text is the stored one, that compile to something else, a line each: then the table tells nothing."""
    found = []
    for at in same:
        for gpu, c in table[at].items():
            b = stored[at].get(gpu)
            if b and isinstance(c, Counts) and c != b:
                found.append(f"{gpu} {' '.join(at)}: {cell(c)}, {cell(b)} stored of the same text")
    return found


def drift(table, stored):
    """Kernels that need at least a tenth more instructions than stored, a line each: no fault, but worth a look."""
    found = []
    for (backend, key), counts in table.items():
        for gpu, c in counts.items():
            b = stored.get((backend, key), {}).get(gpu)
            if b and isinstance(c, Counts) and c.instructions > 1.1 * b.instructions:
                found.append(f"{gpu} {backend} {key}: {c.instructions} instructions, {b.instructions} stored")
    return found


def compared(entries, table):
    """Instructions per 32 weights of E0M4 vector kernels and of their INT4 twins, of several the cheapest: (backend, gpu, form, E0M4, INT4). What
    rounds of two lengths of the loop differ by is the cost of the weights between."""
    forms = defaultdict(dict)
    for e in entries:
        if "compared" in e:
            c = e["compared"]
            forms[(e["backend"], e["key"].split(": ", 1)[1])][(c["format"], c["weights"])] = e["key"]
    found = []
    for (backend, form), keys in sorted(forms.items()):
        few, more = sorted({weights for _, weights in keys})
        for gpu in GPUS:
            cost = {}
            for kind in sorted({kind for kind, _ in keys}):
                ends = [table.get((backend, keys[(kind, weights)]), {}).get(gpu.name) for weights in (few, more)]
                if all(isinstance(e, Counts) for e in ends):
                    cost[kind] = (ends[1].instructions - ends[0].instructions) / ((more - few) / 32)
            ours = cost.pop("E0M4", None)
            if ours is not None and cost:
                found.append((backend, gpu.name, form, ours, min(cost.values())))
    return found


def dearer(entries, table):
    """Kernels that take E0M4 weights in pairs and need no fewer instructions than with INT4 weights, a line each."""
    found = []
    for backend, gpu, form, ours, theirs in compared(entries, table):
        if gpu in CHEAPER_ON and " PAIRS=1" in form and ours >= theirs:
            found.append(f"{gpu} {backend} {form}: {ours:.1f} instructions per 32 weights in E0M4, {theirs:.1f} in INT4")
    return found


IN_PARTS = " in parts"


def parts(table):
    """Kernels that run in parts of their grids: how many, the most instructions that one needs more than as a whole, and those that lose waves, a
    line each.

    >>> whole, part = Counts(100, 8, 16, 0), Counts(104, 8, 16, 0)
    >>> parts({("opencl", "a"): {"g": whole}, ("opencl", "a in parts"): {"g": part}})
    (1, 4, [])
    >>> parts({("opencl", "a"): {"g": whole}, ("opencl", "a in parts"): {"g": Counts(104, 20, 8, 0)}})
    (1, 4, ['`a` on g: 8 waves, 16 as a whole'])
    """
    many, more, lost = 0, 0, []
    for (backend, key), counts in table.items():
        if not key.endswith(IN_PARTS):
            continue
        many += 1
        whole = table.get((backend, key.removesuffix(IN_PARTS)), {})
        for gpu, c in counts.items():
            w = whole.get(gpu)
            if not (isinstance(c, Counts) and isinstance(w, Counts)):
                continue
            more = max(more, c.instructions - w.instructions)
            if c.waves < w.waves:
                lost.append(f"`{key.removesuffix(IN_PARTS)}` on {gpu}: {c.waves} waves, {w.waves} as a whole")
    return many, more, lost


def markdown(rows):
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in body])


def write_page(path, version, entries, table, predictions):
    """Writes the table for people."""
    names = [g.name for g in GPUS]
    kernel_of = {(e["backend"], e["key"]): e["kernel"] for e in entries if "compared" not in e}
    ours = {at: counts for at, counts in table.items() if at in kernel_of}
    summary = [["kernel", "language", "forms", *names]]
    by_kernel = defaultdict(list)
    for (backend, key), counts in ours.items():
        by_kernel[(kernel_of[(backend, key)], backend)].append(counts)
    for (kernel, backend), all_counts in sorted(by_kernel.items()):
        cells = []
        for name in names:
            found = [c[name] for c in all_counts if isinstance(c.get(name), Counts)]
            if not found:
                cells.append("")
                continue
            few, most = min(c.instructions for c in found), max(c.instructions for c in found)
            span = str(most) if few == most else f"{few} to {most}"
            cells.append(f"{span}, {max(c.registers for c in found)} r, {min(c.waves for c in found)} w")
        summary.append([f"`{kernel}`", LANGUAGE[backend], len(all_counts), *cells])
    costs = [["form", "language", "GPU", "E0M4", "INT4", "INT4 / E0M4"]]
    for backend, gpu, form, ours_cost, theirs in compared(entries, table):
        costs.append([f"`{form}`", LANGUAGE[backend], gpu, f"{ours_cost:.1f}", f"{theirs:.1f}", f"{theirs / ours_cost:.2f}"])
    spilled = sum(1 for counts in table.values() for c in counts.values() if isinstance(c, Counts) and c.spills)
    failed = sum(1 for counts in table.values() for c in counts.values() if isinstance(c, Failed))
    many, more, lost = parts(table)
    lost = "\n".join(f"* {line}" for line in lost) or "* None has fewer waves than as a whole."
    text = f"""# Kernels on phones

Every kernel that the plans of models ask for, compiled for GPUs of phones by Mesa's drivers, without a phone. Written by
`python3 tools/phone_compile --write`; [phone_kernels.tsv](phone_kernels.tsv) has a line for each form.

* Mesa {version}: OpenCL C by rusticl, WGSL by naga and Turnip or PanVK. Phones run their makers' compilers: these counts show build
  errors, spills, cliffs of registers and emulated arithmetic, not speed, and a difference of a tenth says little.
* Instructions are those of the whole program, loops once. Registers: vectors of four on Adreno, single ones on Mali. Waves: on Adreno those that
  registers leave room for, up to 16; on Mali 2 where all threads have room, 1 where half of them.
* {len(ours)} forms, {failed} that do not compile, {spilled} with spills.

## By kernel

The span of instructions over all forms, most registers, fewest waves.

{markdown(summary)}

## In parts of their grids

{many} of the forms in OpenCL C are kernels as they run in parts of their grids, which slices need: `get_group_id` counts from the offset of the part. They
need at most {more} instructions more.

{lost}

## Weights of 4 bits: E0M4 and INT4

Instructions per 32 weights of the vector kernel and of its twin, which differs in the conversion alone: loads, addresses, conversion and 32
multiply-adds, as what a loop of two steps has more than one of one. Forms with `PAIRS` compute in halves, where INT4 has two conversions, of
which the shorter one counts: of integers of 16 bits, and by subtraction from a half of which the code is the last bits. The check fails where
E0M4 in pairs does not need fewer on {" or ".join(CHEAPER_ON)}. In single precision both conversions take two operations a weight.

{markdown(costs)}

{predictions}"""
    path.write_text(text)
