#!/usr/bin/env python3
"""Makes NAME.json: what ONNX Runtime generates greedily with a decoder as others exported it, which it runs with the cache that it gives back.

usage: make.py FOLDER

FOLDER is that of `minimind2-small` as tools/fetch_model.py makes it, or of `smollm2-optimum` as tools/setup.sh does; its last part is NAME. Needs
the Python packages onnxruntime (1.31.1 for the first, 1.32.0 for the second), tokenizers and numpy. For each prompt NAME.json has its ids, the 64
ids that follow, by how much the best logit was above the next, the least of all, and whether the choices are steady: no two logits nearly
equal, and the same without ONNX Runtime's optimizations. These change last bits, of which a model that quantizes at run time makes steps of 8 bits.
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
# For each model, how near two logits are no more told apart, and questions.
MODELS = {
    "minimind2-small": (0.03, ["What is the capital of France?", "Why is the sky blue?", "介绍一下你自己。", "请推荐三本关于历史的书。"]),
    "smollm2-optimum": (1e-3, ["What is the capital of France?", "Why is the sky blue?", "Write a haiku about the sea."]),
}


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
    folder = os.path.abspath(sys.argv[1])
    name = os.path.basename(folder)
    nearly_equal, questions = MODELS[name]
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    made = []
    for question in questions:
        prompt = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids
        path = os.path.join(folder, "model.onnx")
        tokens, margin = generate(path, prompt, True)
        steady = bool(margin > nearly_equal) and generate(path, prompt, False)[0] == tokens
        made.append(dict(question=question, prompt=prompt, tokens=tokens, least_margin=round(float(margin), 4), steady=steady))
        print(question, "->", tokenizer.decode(tokens), made[-1]["least_margin"], steady, file=sys.stderr)
    with open(os.path.join(HERE, f"{name}.json"), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(m, ensure_ascii=False) for m in made) + "\n]\n")


if __name__ == "__main__":
    main()
