"""Called by compare_logits.sh: MODEL_DIR TEXT_DIR POSITIONS LOGITS_PROGRAM WORK_DIR."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

BOUND = 1e-3


def main() -> int:
    model, texts, positions, program, work = sys.argv[1:]
    model, work = pathlib.Path(model), pathlib.Path(work)
    text = sorted(pathlib.Path(texts).glob("*.txt"))[0].read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids[: int(positions)]
    if len(ids) < 64:
        print(f"only {len(ids)} tokens of text; 64 are needed", file=sys.stderr)
        return 2
    session = ort.InferenceSession(str(model / "model.onnx"), providers=["CPUExecutionProvider"])
    n = len(ids)
    feeds = {
        "input_ids": np.array([ids], np.int64),
        "attention_mask": np.ones((1, n), np.int64),
        "position_ids": np.arange(n, dtype=np.int64)[None],
    }
    for value in session.get_inputs():
        if value.name.startswith("past_key_values"):
            _, heads, _, dim = value.shape
            feeds[value.name] = np.zeros((1, heads, 0, dim), np.float32)
    theirs = session.run(["logits"], feeds)[0][0].astype(np.float64)
    (work / "tokens.json").write_text(json.dumps(ids))
    subprocess.run([program, str(model), str(work / "tokens.json"), str(work / "out.f32")], check=True)
    ours = np.fromfile(work / "out.f32", np.float32).reshape(n, -1).astype(np.float64)
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    worst = np.max(np.linalg.norm(ours - theirs, axis=1) / np.linalg.norm(theirs, axis=1))
    same = np.mean(ours.argmax(1) == theirs.argmax(1))
    print(f"{n} positions, onnxruntime {ort.__version__}")
    print(f"relative error of the logits {error:.2e}, worst position {worst:.2e}, same top token {same:.1%}")
    if not error < BOUND or not worst < BOUND:
        print(f"above the bound of {BOUND}", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
