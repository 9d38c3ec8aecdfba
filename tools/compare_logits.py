"""Compares logits with ONNX Runtime; called by compare_logits.sh.

usage: LOGITS_PROGRAM TEXT_DIR [--positions N] [--decode N] [--backend NAME].. MODEL_DIR..

For each folder, ONNX Runtime computes the logits of a prefill and of --decode tokens one by one
after it, feeding back the model's own KV cache (the whole cache or only its new rows, in any
layout). The program computes the same on each backend, and the relative errors are printed.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime as ort

BOUNDS = {"reference": 1e-3, "opencl": 2e-2, "wgpu": 2e-2}
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(int32)": np.int32,
         "tensor(bool)": np.bool_}
ROLES = ("input_ids", "position_ids", "attention_mask")


def fail(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


class Reference:
    """A decoder in ONNX Runtime with its KV cache; without one, all tokens are run again."""

    def __init__(self, path, optimized=True):
        options = ort.SessionOptions()
        if not optimized:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = {v.name: v for v in self.session.get_inputs()}
        self.past = [v for v in self.session.get_inputs() if v.name not in ROLES]
        outputs = self.session.get_outputs()
        self.logits = next(i for i, v in enumerate(outputs) if v.name.endswith("logits"))
        self.made = [i for i in range(len(outputs)) if i != self.logits]
        if len(self.past) != len(self.made):
            fail(f"{path}: expected as many KV caches in as out, found {len(self.past)} and {len(self.made)}")
        self.cache = None
        self.ids = []

    def sizes(self, value, growing):
        """Sizes of a cache of one sequence with `growing` rows, and the axis of the rows."""
        symbols = [i for i, n in enumerate(value.shape) if not isinstance(n, int)]
        # The batch axis comes before the rows, except in a sequence-first cache.
        axis = next((i for i in symbols if "batch" not in str(value.shape[i])), None)
        if axis is None:
            fail(f"{value.name} of shape {value.shape} has no axis that grows")
        return [growing if i == axis else 1 if i in symbols else n for i, n in enumerate(value.shape)], axis

    def run(self, ids, past):
        """Logits of `ids` after the first `past` tokens of earlier runs."""
        self.ids = [*self.ids[:past], *ids]
        if self.past:
            return self.step(ids, past)
        return self.step(self.ids, 0)[past:]

    def step(self, ids, past):
        n = len(ids)
        feeds = {"input_ids": np.array([ids], np.int64)}
        if "position_ids" in self.inputs:
            feeds["position_ids"] = np.arange(past, past + n)[None]
        mask = self.inputs.get("attention_mask")
        if mask is not None and len(mask.shape) == 4:
            hidden = np.arange(past + n)[None] > np.arange(past, past + n)[:, None]
            feeds["attention_mask"] = np.where(hidden, -65504.0, 0.0)[None, None]
        elif mask is not None:
            feeds["attention_mask"] = np.ones((1, past + n))
        feeds = {name: x.astype(TYPES[self.inputs[name].type]) for name, x in feeds.items()}
        if self.cache is None:
            self.cache = [np.zeros(self.sizes(v, 0)[0], TYPES[v.type]) for v in self.past]
        feeds.update({v.name: c for v, c in zip(self.past, self.cache)})
        out = self.session.run(None, feeds)
        for i, (value, made) in enumerate(zip(self.past, self.made)):
            axis = self.sizes(value, 0)[1]
            whole = out[made].shape[axis] == past + n
            self.cache[i] = out[made] if whole else np.concatenate([self.cache[i], out[made]], axis)
        return out[self.logits][0].astype(np.float64)


def token_ids(model, texts, count):
    """Token ids of a text if the folder has a tokenizer, else random ones."""
    if (model / "tokenizer.json").exists():
        from tokenizers import Tokenizer

        text = sorted(pathlib.Path(texts).glob("*.txt"))[0].read_text(encoding="utf-8")
        ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids[:count]
        if len(ids) < count:
            fail(f"the text has only {len(ids)} tokens, expected {count}")
        return ids
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    vocab = config.get("vocab_size", config.get("padded_vocab_size"))
    return np.random.RandomState(count).randint(0, vocab, count).tolist()


def errors(found, wanted):
    """Relative error over all rows, and of the worst row."""
    norm = np.linalg.norm
    return norm(found - wanted) / norm(wanted), np.max(norm(found - wanted, axis=1) / norm(wanted, axis=1))


def compare(model, args, work):
    """Prints a line for each backend; returns whether all are within their bounds."""
    ids = token_ids(model, args.texts, args.positions + args.decode)
    reference = Reference(model / "model.onnx")
    parts = [ids[: args.positions], *([i] for i in ids[args.positions:])]
    rows, past = [], 0
    for part in parts:
        rows.append(reference.run(part, past))
        past += len(part)
    theirs = np.concatenate(rows)
    (work / "tokens.json").write_text(json.dumps(ids))
    good = True
    for backend in args.backend:
        command = [args.program, str(model), str(work / "tokens.json"), str(work / "out.f32"), backend, str(args.decode)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{model.name:24} {backend:7} FAILED: {done.stderr.strip()}")
            good = False
            continue
        ours = np.fromfile(work / "out.f32", np.float32).reshape(len(ids), -1).astype(np.float64)
        found = [errors(ours[: args.positions], theirs[: args.positions])]
        if args.decode:
            found.append(errors(ours[args.positions:], theirs[args.positions:]))
        same = np.mean(ours.argmax(1) == theirs.argmax(1))
        within = all(e < BOUNDS[backend] for pair in found for e in pair)
        good &= within
        text = ", ".join(f"{name} {all_:.1e} (worst row {worst:.1e})" for name, (all_, worst) in zip(("prefill", "decode"), found))
        print(f"{model.name:24} {backend:7} {text}, same top token {same:.1%}" + ("" if within else f"  ABOVE {BOUNDS[backend]}"))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("texts")
    parser.add_argument("models", nargs="+", type=pathlib.Path, metavar="MODEL_DIR")
    parser.add_argument("--positions", type=int, default=128)
    parser.add_argument("--decode", type=int, default=0)
    parser.add_argument("--backend", action="append", choices=list(BOUNDS))
    args = parser.parse_args()
    args.backend = args.backend or ["reference"]
    print(f"{args.positions} positions and {args.decode} decoded, onnxruntime {ort.__version__}; relative errors of the logits")
    with tempfile.TemporaryDirectory() as work:
        results = [compare(model, args, pathlib.Path(work)) for model in args.models]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
