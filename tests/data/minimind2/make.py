#!/usr/bin/env python3
"""Makes tokens.json: what ONNX Runtime generates greedily with MiniMind2-small, whose own file it runs with the cache that it gives back.

usage: make.py FOLDER

FOLDER is that of `minimind2-small` as tools/fetch_model.py makes it. Needs the Python packages onnxruntime 1.31.1, tokenizers and numpy.
For each prompt tokens.json has its ids, the 64 ids that follow, by how much the best logit was above the next, the least of all, and whether
the choices are steady: no two logits nearly equal, and the same without ONNX Runtime's optimizations, which change last bits of what is then
quantized to 8.
"""

import json
import os
import sys

import numpy as np
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../../tools"))
from compare_logits import Reference  # noqa: E402

TOKENS = 64
NEARLY_EQUAL = 0.03
QUESTIONS = [
    "What is the capital of France?",
    "Why is the sky blue?",
    "介绍一下你自己。",
    "请推荐三本关于历史的书。",
]


def generate(path, prompt, optimized):
    """The most likely tokens, and the least distance of two best logits."""
    model, part, past, tokens, margin = Reference(path, optimized), prompt, 0, [], np.inf
    while len(tokens) < TOKENS:
        row = model.run(part, past)[-1]
        past += len(part)
        tokens.append(int(row.argmax()))
        part = tokens[-1:]
        second, first = np.sort(row)[-2:]
        margin = min(margin, first - second)
    return tokens, margin


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    folder = sys.argv[1]
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    made = []
    for question in QUESTIONS:
        prompt = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids
        path = os.path.join(folder, "model.onnx")
        tokens, margin = generate(path, prompt, True)
        steady = bool(margin > NEARLY_EQUAL) and generate(path, prompt, False)[0] == tokens
        made.append(dict(question=question, prompt=prompt, tokens=tokens, least_margin=round(float(margin), 4), steady=steady))
        print(question, "->", tokenizer.decode(tokens), made[-1]["least_margin"], file=sys.stderr)
    with open(os.path.join(HERE, "tokens.json"), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(m, ensure_ascii=False) for m in made) + "\n]\n")


if __name__ == "__main__":
    main()
