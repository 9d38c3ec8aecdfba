#!/usr/bin/env python3
"""Compares the logits of a converted GGUF file with those of llama.cpp, as KL divergence.

    tools/compare_llm_kl.py GGUF --llama-cpp DIR --text FILE [--backend cpu,reference]
                            [--windows 2] [--tokens 256] [--limit 1e-4] [--threads N] [--work DIR]

llama.cpp's CPU backend quantizes activations to 8 bits if weights are quantized. So the reference
is llama.cpp on GGUF with its weights expanded to F32, which are the same weights with arithmetic in
floats. tlite runs GGUF as `tlite convert` converts it, through `tlite run`. Each of --windows parts
of the text has --tokens tokens and starts with an empty context.

The table has the perplexity, and the mean and the largest KL divergence from the reference over all
positions. The last row is llama.cpp on GGUF as it is. The exit code is 1 if the mean KL of tlite
reaches --limit.

DIR is as in compare_llm.py; tools/fetch_text.py downloads texts. Files are created in --work and
stay there; without it they go to a temporary folder. The environment variable TLITE names the
command. The script needs the Python package numpy.
"""

import argparse
import os
import sys
import tempfile

import numpy as np

from llama_cpp import F32, Failure, LlamaCpp, folder_for, libraries, same_weights, tlite


def log_softmax(logits):
    """
    >>> log_softmax(np.array([[0.0, 0.0]])).round(4).tolist()
    [[-0.6931, -0.6931]]
    """
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def divergences(reference, found):
    """The KL divergence of each row.

    >>> divergences(np.log([[0.5, 0.5]]), np.log([[0.5, 0.5]])).tolist()
    [0.0]
    >>> divergences(np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])).round(4).tolist()
    [0.1438]
    """
    # A few rows at a time, since vocabularies are large.
    parts = [(log_softmax(reference[i : i + 16]), log_softmax(found[i : i + 16])) for i in range(0, len(reference), 16)]
    return np.concatenate([(np.exp(p) * (p - q)).sum(1) for p, q in parts])


def surprises(logits, window):
    """The negative log-likelihood of each token after the first."""
    return np.array([-log_softmax(row[None])[0, token] for row, token in zip(logits, window[1:])])


def llama_logits(model, window):
    model.clear()
    model.feed_rows([(token, i, 0, True) for i, token in enumerate(window)])
    return np.array([np.ctypeslib.as_array(model.lib.llama_get_logits_ith(model.context, i), (model.size,)) for i in range(len(window))])


def tlite_logits(folder, backend, window, threads, work):
    inputs = {"input_ids": window, "attention_mask": np.ones(len(window)), "position_ids": np.arange(len(window))}
    options = ["--backend", backend, *(["--threads", threads] if backend == "cpu" else [])]
    for name, values in inputs.items():
        file = os.path.join(work, f"{name}.npy")
        np.save(file, np.array([values], np.int64))
        options += ["--input", f"{name}={file}"]
    # The empty KV cache is a random input without elements.
    tlite("run", folder, *options, "--random", "--bind", "past_sequence_length=0", "--output-dir", os.path.join(work, backend))
    return np.load(os.path.join(work, backend, "logits.npy"))[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("--llama-cpp", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--backend", type=lambda text: text.split(","), default=["cpu", "reference"])
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--limit", type=float, default=1e-4)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = folder_for(a.gguf, a.work or temporary)
        library = libraries(a.llama_cpp)
        wide, folder = same_weights(library, a.gguf, work, "f32", F32, "converted")
        library.llama_backend_init()
        model, plain = (LlamaCpp(library, path, a.tokens, a.threads) for path in (wide, a.gguf))
        with open(a.text, encoding="utf-8") as f:
            # No model needs more than 16 bytes of prose per token on average.
            ids = model.encode(f.read(16 * a.windows * a.tokens))
        windows = [ids[i * a.tokens : (i + 1) * a.tokens] for i in range(a.windows)]
        if len(windows[-1]) < a.tokens:
            raise Failure(f"{a.text}: {len(ids)} tokens, expected {a.windows * a.tokens}")
        programs = {f"tlite, {b}": lambda window, b=b: tlite_logits(folder, b, window, a.threads, temporary) for b in a.backend}
        programs["llama.cpp"] = lambda window: llama_logits(plain, window)
        found = {name: ([], []) for name in ("llama.cpp, F32", *programs)}
        for window in windows:
            reference = llama_logits(model, window)
            for name, (kl, loss) in found.items():
                logits = programs[name](window) if name in programs else reference
                kl.extend(divergences(reference, logits))
                loss.extend(surprises(logits, window))
    print(f"{'program':<20}{'perplexity':>12}{'mean KL':>12}{'largest KL':>12}")
    for name, (kl, loss) in found.items():
        print(f"{name:<20}{np.exp(np.mean(loss)):>12.4f}{np.mean(kl):>12.2e}{np.max(kl):>12.2e}")
    # NaN is not below a limit.
    if not all(np.mean(kl) < a.limit for name, (kl, _) in found.items() if name.startswith("tlite")):
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError, AttributeError) as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)
