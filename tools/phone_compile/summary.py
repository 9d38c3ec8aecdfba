"""The committed summary: one row per kernel and language, and checksums of the texts it counts.

The summary (docs/benchmarks/phone_kernels.tsv) is for people to review. The checksums (texts.txt)
are for the check, which compiles the forms of a kernel only if one of their texts is new, and
otherwise a fixed sample.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass

from drivers import GPUS, Counts

# Of the texts that the summary already counts, the check compiles one in so many.
SAMPLE = 16
# A kernel whose instructions grow by this factor fails the check.
GROWTH = 1.5
# The check only mentions growth above this factor.
MENTIONED = 1.1

HEAD = """\
# Mesa {version}. Worst case over all forms of a kernel. Written by `tools/phone_compile --write`.
# A cell: instructions of the largest form, most registers, fewest waves (Mali: threads);
# then the sums of instructions and of waves over all forms."""
TEXTS_HEAD = """\
# Checksums of the kernel texts that docs/benchmarks/phone_kernels.tsv counts, by kernel. After "=":
# a checksum of the counts, for texts in the sample. Written by `tools/phone_compile --write`."""


@dataclass(frozen=True)
class Worst:
    """All forms of one kernel on one GPU."""

    instructions: int
    registers: int
    waves: int
    all_instructions: int
    all_waves: int
    spills: int = 0

    def __str__(self):
        spills = f" {self.spills} spills" if self.spills else ""
        return (
            f"{self.instructions} {self.registers} {self.waves} "
            f"{self.all_instructions} {self.all_waves}{spills}"
        )


def worst_of(counts):
    """
    >>> str(worst_of([Counts(100, 8, 16, 0), Counts(300, 24, 8, 0)]))
    '300 24 8 400 24'
    """
    return Worst(
        max(c.instructions for c in counts),
        max(c.registers for c in counts),
        min(c.waves for c in counts),
        sum(c.instructions for c in counts),
        sum(c.waves for c in counts),
        sum(c.spills for c in counts),
    )


def family(entry):
    """The row of the summary that a form belongs to.

    >>> family({"kernel": "norm", "backend": "opencl"})
    ('norm', 'opencl')
    >>> family({"kernel": "matvec_e0m", "backend": "wgpu", "compared": {}})
    ('matvec_e0m (E0M4 and INT4)', 'wgpu')
    """
    name = entry["kernel"] + (" (E0M4 and INT4)" if "compared" in entry else "")
    return name, entry["backend"]


def families(entries):
    """Entries by the row that they belong to, sorted."""
    found = defaultdict(list)
    for e in entries:
        found[family(e)].append(e)
    return dict(sorted(found.items()))


def print_of(entry, text):
    """A short checksum of a form: of its text and the GPUs whose plans ask for it."""
    return hashlib.sha256(" ".join([text, *sorted(entry["phones"])]).encode()).hexdigest()[:5]


def counts_print(counts):
    """A short checksum of a form's counts on all GPUs."""
    words = [f"{gpu} {c}" for gpu, c in sorted(counts.items())]
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:5]


def is_sampled(text):
    return int(text, 16) % SAMPLE == 0


def selected(entries, texts, known):
    """Entries that a check compiles: all forms of a kernel with an unknown text, else a sample.

    >>> def form(key): return {"kernel": "k", "backend": "opencl", "key": key, "phones": ["g"]}
    >>> forms = [form("a"), form("b")]
    >>> texts = {("opencl", "a"): "10", ("opencl", "b"): "11"}
    >>> prints = {print_of(e, texts[("opencl", e["key"])]): None for e in forms}
    >>> [e["key"] for e in selected(forms, texts, {("k", "opencl"): prints})]
    ['a']
    >>> [e["key"] for e in selected(forms, texts, {})]
    ['a', 'b']
    """
    found = []
    for at, forms in families(entries).items():
        prints = known.get(at, {})
        mine = [(e, texts[(e["backend"], e["key"])]) for e in forms]
        changed = any(print_of(e, text) not in prints for e, text in mine)
        found += [e for e, text in mine if changed or is_sampled(text)]
    return found


def summarise(entries, table):
    """Rows by (kernel, backend): the number of forms, and by GPU the worst of those with counts
    with how many these are."""
    found = {}
    for at, forms in families(entries).items():
        cells = {}
        for gpu in (g.name for g in GPUS):
            counts = [table.get((e["backend"], e["key"]), {}).get(gpu) for e in forms]
            counts = [c for c in counts if isinstance(c, Counts)]
            asked = sum(1 for e in forms if gpu in e["phones"])
            if counts:
                cells[gpu] = (worst_of(counts), len(counts) == asked)
        found[at] = (len(forms), cells)
    return found


def missing(now, stored):
    """Kernels that the summary lacks, one line each.

    >>> missing({("k", "opencl"): (1, {})}, {})
    ['k, opencl: not in the summary; run tools/phone_compile --write']
    """
    return [
        f"{', '.join(at)}: not in the summary; run tools/phone_compile --write"
        for at in now
        if at not in stored
    ]


def regressions(now, stored):
    """Faults and remarks, one line each: what became worse than the summary says.

    >>> def of(forms, worst): return {("k", "opencl"): (forms, {"g": (worst, True)})}
    >>> old = of(2, Worst(100, 8, 8, 180, 24))
    >>> regressions(of(2, Worst(100, 8, 8, 180, 24)), old)
    ([], [])
    >>> regressions(of(2, Worst(100, 8, 8, 180, 20)), old)[0]
    ['g k, opencl: 20 waves over all forms (summary: 24)']
    >>> regressions(of(3, Worst(100, 8, 4, 280, 28)), old)[0]
    ['g k, opencl: 4 waves (summary: 8)']
    >>> regressions(of(3, Worst(160, 8, 8, 340, 32)), old)[0]
    ['g k, opencl: 160 instructions (summary: 100)']
    >>> regressions(of(2, Worst(100, 8, 8, 200, 24)), old)
    ([], ['g k, opencl: 200 instructions over all forms (summary: 180)'])
    """
    faults, remarks = [], []
    for at, (forms, cells) in now.items():
        stored_forms, stored_cells = stored.get(at, (0, {}))
        for gpu, (w, complete) in cells.items():
            if gpu not in stored_cells:
                continue
            old, _ = stored_cells[gpu]
            where = f"{gpu} {', '.join(at)}"
            if w.waves < old.waves:
                faults.append(f"{where}: {w.waves} waves (summary: {old.waves})")
            grown = [("instructions", w.instructions, old.instructions)]
            # Sums are comparable only over the same number of forms.
            if complete and forms == stored_forms:
                if w.all_waves < old.all_waves and w.waves >= old.waves:
                    faults.append(
                        f"{where}: {w.all_waves} waves over all forms (summary: {old.all_waves})"
                    )
                grown.append(
                    ("instructions over all forms", w.all_instructions, old.all_instructions)
                )
            for what, new, before in grown:
                line = f"{where}: {new} {what} (summary: {before})"
                if new > GROWTH * before:
                    faults.append(line)
                elif new > MENTIONED * before:
                    remarks.append(line)
    return faults, remarks


def unlike(entries, table, texts, known):
    """Sampled texts that compile to something else than stored, one line each: then the compilers
    changed, and the summary describes others.

    >>> e = {"kernel": "k", "backend": "opencl", "key": "a", "phones": ["g"]}
    >>> table = {("opencl", "a"): {"g": Counts(10, 4, 16, 0)}}
    >>> texts = {("opencl", "a"): "10"}
    >>> known = {("k", "opencl"): {print_of(e, "10"): counts_print(table[("opencl", "a")])}}
    >>> unlike([e], table, texts, known)
    []
    >>> unlike([e], {("opencl", "a"): {"g": Counts(11, 4, 16, 0)}}, texts, known)
    ['opencl a: the same text compiles to other code; run tools/phone_compile --write --all']
    """
    found = []
    for e in entries:
        at = (e["backend"], e["key"])
        stored = known.get(family(e), {}).get(print_of(e, texts[at]))
        counts = table.get(at, {})
        if stored and set(counts) == set(e["phones"]) and stored != counts_print(counts):
            found.append(
                f"{' '.join(at)}: the same text compiles to other code; "
                "run tools/phone_compile --write --all"
            )
    return found


def write(path, version, rows):
    """Writes the summary."""
    names = [g.name for g in GPUS]
    lines = [HEAD.format(version=version), "\t".join(["kernel", "language", "forms", *names])]
    for (kernel, backend), (forms, cells) in rows.items():
        found = [str(cells[n][0]) if n in cells else "-" for n in names]
        lines.append("\t".join([kernel, backend, str(forms), *found]))
    path.write_text("\n".join(lines) + "\n")


def read(path):
    """Returns the version of the drivers and the rows of a summary."""
    lines = path.read_text().splitlines()
    version = lines[0].removeprefix("# Mesa ").split(". ")[0]
    head, *body = [line.split("\t") for line in lines if not line.startswith("#")]
    rows = {}
    for kernel, backend, forms, *cells in body:
        found = {}
        for gpu, words in zip(head[3:], cells, strict=True):
            numbers = [int(n) for n in words.removesuffix(" spills").split() if words != "-"]
            if numbers:
                found[gpu] = (Worst(*numbers), True)
        rows[(kernel, backend)] = (int(forms), found)
    return version, rows


def write_texts(path, entries, table, texts):
    """Writes the checksums of the texts that a summary counts."""
    lines = [TEXTS_HEAD]
    for (kernel, backend), forms in families(entries).items():
        words = set()
        for e in forms:
            at = (e["backend"], e["key"])
            word = print_of(e, texts[at])
            words.add(f"{word}={counts_print(table[at])}" if is_sampled(texts[at]) else word)
        lines.append(f"{kernel}, {backend}")
        words, line = sorted(words), ""
        for word in words:
            if len(line) + len(word) > 98:
                lines.append(line)
                line = ""
            line += f" {word}"
        lines.append(line)
    path.write_text("\n".join(lines) + "\n")


def read_texts(path):
    """By (kernel, backend): the checksum of each text with that of its counts, or None."""
    found, here = {}, {}
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        if not line.startswith(" "):
            here = found.setdefault(tuple(line.rsplit(", ", 1)), {})
            continue
        for word in line.split():
            text, _, counts = word.partition("=")
            here[text] = counts or None
    return found
