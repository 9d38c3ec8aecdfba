#!/usr/bin/env python3
"""Compares greedy answers of tlite and llama.cpp, both with unquantized weights of the same file.

    tools/compare_llm_text.py GGUF --llama-cpp DIR [--backend reference|opencl|wgpu] [--device NAME]
                              [--tokens 32] [--wanted 8] [--threads N] [--work DIR]

`tlite convert --float` converts the weights of GGUF to floats, which a device stores as f16;
llama.cpp converts the same file to F16. Ten questions are asked in ChatML, so the model must be
trained for it. For each question the table shows how many of the first --tokens tokens are equal
and, at the first difference, how far llama.cpp's logit of its own choice is above the other. The
exit code is 1 if fewer than --wanted answers are equal to the end.

DIR holds llama.cpp's libraries (libllama, libggml), as in the folder bins/linux-x64 of the npm
package @node-llama-cpp/linux-x64 3.22.1. Files are created in --work and stay there; without it
they go to a temporary folder. The environment variable TLITE names the command; by default it is
that of the release build.
"""

import argparse
import os
import sys
import tempfile

from llama_cpp import F16, Failure, LlamaCpp, folder_for, libraries, same_weights, tlite

QUESTIONS = [
    "What is the capital of France?",
    "Write a Python function that returns the factorial of n.",
    "Why is the sky blue?",
    "Name three primary colours.",
    "Translate to French: Good morning, my friend.",
    "What is 12 times 12?",
    "Write a haiku about the sea.",
    "Explain what a binary search does.",
    "Who wrote Romeo and Juliet?",
    "List the planets of the solar system.",
]


def compare(theirs, rows, ours, wanted):
    """The number of equal tokens at the start, whether the answers agree, and a note."""
    same = next((i for i, pair in enumerate(zip(theirs, ours)) if pair[0] != pair[1]), min(len(theirs), len(ours)))
    if same == wanted or len(theirs) == len(ours) == same:
        return same, True, "" if same == wanted else "both ended"
    if same == len(ours):
        return same, False, "tlite ended"
    if same == len(theirs):
        return same, False, "llama.cpp ended"
    margin = rows[same][theirs[same]] - rows[same][ours[same]]
    return same, False, f"logits {margin:.4f} apart"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("--llama-cpp", required=True)
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--device")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--wanted", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = folder_for(a.gguf, a.work or temporary)
        library = libraries(a.llama_cpp)
        half, folder = same_weights(library, a.gguf, work, "f16", F16, "onnx", "--float")
        library.llama_backend_init()
        model = LlamaCpp(library, half, 512, a.threads)
        agreed = 0
        print(f"{'question':<58}{'same':>6}  ")
        for question in QUESTIONS:
            prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            ids = model.encode(prompt)
            theirs, rows = model.generate(ids, a.tokens)
            device = ["--device", a.device] if a.device else []
            found = tlite("generate", folder, "--raw", "--prompt", prompt, "--max-tokens", a.tokens, "--context", 512, "--json", "--backend",
                          a.backend, *device)
            if found["prompt_tokens"] != len(ids):
                raise Failure(f"{question}: {found['prompt_tokens']} prompt tokens, {len(ids)} in llama.cpp")
            same, good, note = compare(theirs, rows, found["tokens"], a.tokens)
            agreed += good
            print(f"{question:<58}{same:>6}  {note}\n    {' '.join(found['text'].split())}", flush=True)
        print(f"{agreed} of {len(QUESTIONS)} answers are the same, on {found['backend']}, {found['device']}, {found['driver']}")
    if agreed < a.wanted:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError, AttributeError) as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)
