#!/usr/bin/env python3
"""Makes more pictures of a few, for calibrating int8 models.

usage: crop_pictures.py FOLDER OUT [--crops N] [--seed N]

Writes the pictures of FOLDER to OUT as PNG files, and N random crops of each (default: 2) with 0.5
to 1.0 of its area. OUT must not exist yet. Needs Pillow.
"""

import argparse
import os
import random
import sys

from PIL import Image


def opened(path):
    """A picture on a white background."""
    picture = Image.open(path).convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    white.alpha_composite(picture)
    return white.convert("RGB")


def paths(folder):
    """The pictures of a folder."""
    names = sorted(n for n in os.listdir(folder) if n.lower().endswith((".png", ".jpg")))
    return [os.path.join(folder, n) for n in names]


def cropped(picture, draw):
    """A random crop with 0.5 to 1.0 of the area and the same proportions."""
    share = draw.uniform(0.5, 1.0) ** 0.5
    width, height = (max(1, round(n * share)) for n in picture.size)
    x, y = draw.randint(0, picture.width - width), draw.randint(0, picture.height - height)
    return picture.crop((x, y, x + width, y + height))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--crops", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    try:
        found = paths(options.folder)
        os.mkdir(options.out)
        for path in found:
            picture, name = opened(path), os.path.splitext(os.path.basename(path))[0]
            picture.save(os.path.join(options.out, name + ".png"))
            for i in range(options.crops):
                cropped(picture, draw).save(os.path.join(options.out, f"{name}-crop{i}.png"))
    except OSError as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    main()
