#!/usr/bin/env python3
"""Draws docs/llama-cpp.svg, the speed of tlite divided by that of llama.cpp.

    plot_llama_cpp.py            writes docs/llama-cpp.svg
    plot_llama_cpp.py --check    fails if the file is not current

The ratios are those of the table in BENCHMARKS.md that follows the comment with this script's name.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/llama-cpp.svg"

WIDTH = 760
# Where bars begin, and pixels for the largest ratio.
LEFT, LONGEST = 330, 410
LINE, BAR, TOP = 26, 16, 64
FASTER, SLOWER, TEXT, GREY = "#2f6f9f", "#c0562f", "#1f2328", "#6e7781"
TERMS = "pp512: prefill of 512 tokens; tg64: decode of 64 tokens."


def rows(text):
    """Device, test and ratio of each row of the table.

    >>> rows('''<!-- plot_llama_cpp.py -->
    ...
    ... | device | test | tlite | llama.cpp | ratio |
    ... |---|---|---|---|---|
    ... | a | b | 2 | 1 | 2.00 |
    ... | | c | 1 | 2 | 0.50 |
    ...
    ... ''')
    [('a', 'b', '2.00'), ('', 'c', '0.50')]
    """
    _, _, after = text.partition("plot_llama_cpp.py")
    lines = [line for line in after.split("\n\n")[1].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return [(device, test, ratio) for device, test, _, _, ratio in cells]


def text(x, y, content, colour=TEXT, anchor="start", weight="normal", size=13):
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
        f' font-size="{size}">{content}</text>'
    )


def draw(table):
    """The picture as SVG: a bar for each row, below a line for each device."""
    parts = [
        text(16, 26, "Speed of tlite divided by that of llama.cpp", weight="bold", size=16),
        text(16, 46, f"Same machine, same run. Below 1, llama.cpp is faster. {TERMS}", colour=GREY),
    ]
    y = TOP
    bars = []
    unit = LONGEST / max(float(ratio) for _, _, ratio in table)
    for device, test, ratio in table:
        if device:
            y += LINE + 4
            bars.append(text(16, y - 8, device, weight="bold"))
        value = float(ratio)
        colour = FASTER if value >= 1 else SLOWER
        width = round(value * unit)
        bars.append(text(LEFT - 10, y + BAR - 3, test, anchor="end"))
        bars.append(f'<rect x="{LEFT}" y="{y}" width="{width}" height="{BAR}" fill="{colour}"/>')
        bars.append(text(LEFT + width - 6, y + BAR - 4, ratio, "#ffffff", anchor="end", weight="bold"))
        y += LINE
    for mark in (step / 2 for step in range(1, int(2 * LONGEST / unit) + 1)):
        x = LEFT + round(mark * unit)
        dash = "" if mark == 1 else ' stroke-dasharray="2 4"'
        parts.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{y}" stroke="{GREY}"{dash}/>')
        parts.append(text(x, y + 16, f"{mark:g}", colour=GREY, anchor="middle"))
    height = y + 28
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
            f' height="{height}" font-family="sans-serif" role="img"'
            ' aria-label="Speed of tlite divided by that of llama.cpp">',
            "<!-- Drawn by tools/plot_llama_cpp.py. -->",
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
            *parts,
            *bars,
            "</svg>",
            "",
        ]
    )


def main():
    picture = draw(rows((ROOT / "BENCHMARKS.md").read_text()))
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(picture)
    elif PICTURE.read_text() != picture:
        sys.exit("docs/llama-cpp.svg is not current: run tools/plot_llama_cpp.py")


if __name__ == "__main__":
    main()
