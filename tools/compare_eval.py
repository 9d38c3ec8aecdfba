#!/usr/bin/env python3
"""Compares the choices of `tlite eval` with those of lm-evaluation-harness.

    tools/compare_eval.py GGUF MODEL QUESTIONS [--limit 200] [--backend cpu] [--wanted 0.99]

MODEL is what `tlite convert --float` makes of the GGUF file; transformers reads the same file in
floats, with the tokenizer of MODEL. QUESTIONS is a file for `tlite eval`, such as
tools/make_questions.py makes; lm-evaluation-harness reads it through a task made for it. The table
shows for `acc` and `acc_norm` how many of the first --limit questions get the same choice, and both
accuracies. The exit code is 1 if their share is below --wanted.

A Python environment with lm-eval is created in the cache folder on first use, with Debian's
python3-torch if that is installed; it is slow without Debian's libopenblas0-pthread. The environment
variable TLITE names the command; by default it is that of the release build.
"""

import argparse
import json
import os
import sys
import tempfile

from environments import continue_with
from fetch_model import Failure
from llama_cpp import Failure as Failed, tlite

PACKAGES = (
    "transformers==4.46.3", "accelerate==1.1.1", "datasets==3.6.0", "evaluate==0.4.6", "gguf==0.19.0", "jinja2", "more-itertools",
    "numpy==1.26.4", "pyarrow==17.0.0", "pytablewriter", "pyyaml", "sacrebleu==2.5.1", "scikit-learn==1.5.2", "sqlitedict==2.1.0",
)
# peft asks for a newer PyTorch than Debian's, and is only imported.
HARNESS = ("lm-eval==0.4.9.1", "peft==0.13.2")
TASK = "tlite_questions"


def harness(gguf, model, questions, limit, work):
    """The log-likelihoods of each question's choices, and the accuracies, from lm-eval."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=work, TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")
    import lm_eval
    import transformers
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    task = {
        "task": TASK,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": os.path.abspath(questions)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")],
    }
    # JSON is YAML, too.
    with open(os.path.join(work, TASK + ".yaml"), "w", encoding="utf-8") as file:
        json.dump(task, file)
    folder, name = os.path.split(os.path.abspath(gguf))
    # The configuration of the file does not say that the output head is the embedding.
    config = transformers.AutoConfig.from_pretrained(model)
    weights = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, config=config)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    done = lm_eval.simple_evaluate(
        model=HFLM(pretrained=weights.float(), tokenizer=tokenizer, add_bos_token=True, batch_size=4),
        tasks=[TASK],
        task_manager=TaskManager(include_path=work, include_defaults=False),
        limit=limit,
        bootstrap_iters=0,
        log_samples=True,
    )
    samples = sorted(done["samples"][TASK], key=lambda s: s["doc_id"])
    scores = [[float(score) for score, _ in s["filtered_resps"]] for s in samples]
    return scores, {m: done["results"][TASK][m + ",none"] for m in ("acc", "acc_norm")}


def chosen(scores, choices):
    """The choices by score and by score per character, as lm-eval makes them.

    >>> chosen([-2.0, -2.0, -5.0], ["a", "b", "abcd"])
    {'acc': 0, 'acc_norm': 2}
    """
    first = lambda values: max(range(len(values)), key=values.__getitem__)  # noqa: E731
    return {"acc": first(scores), "acc_norm": first([s / len(c) for s, c in zip(scores, choices)])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("model")
    parser.add_argument("questions")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--wanted", type=float, default=0.99)
    a = parser.parse_args()
    continue_with("lm-eval", PACKAGES, torch=True, alone=HARNESS)
    with tempfile.TemporaryDirectory() as work:
        answers = os.path.join(work, "answers.jsonl")
        ours = tlite("eval", a.model, a.questions, "--limit", a.limit, "--backend", a.backend, "--output", answers, "--json")
        scores, theirs = harness(a.gguf, a.model, a.questions, a.limit, work)
        with open(answers, encoding="utf-8") as file:
            found = [json.loads(line) for line in file]
        with open(a.questions, encoding="utf-8") as file:
            texts = [json.loads(line)["choices"] for line in file if line.strip()][: len(found)]
    if len(found) != len(scores):
        raise Failure(f"tlite answered {len(found)} questions, lm-eval {len(scores)}")
    largest = max(abs(x - y) for f, s in zip(found, scores) for x, y in zip(f["log_likelihoods"], s))
    print(f"{len(found)} questions on {ours['backend']}, {ours['device']}; log-likelihoods differ by at most {largest:.2g} nats")
    print(f"{'metric':<10}{'same choice':>13}{'tlite':>9}{'lm-eval':>9}")
    least = 1.0
    for metric, key in (("acc", "choice"), ("acc_norm", "choice_norm")):
        same = sum(f[key] == chosen(s, t)[metric] for f, s, t in zip(found, scores, texts))
        least = min(least, same / len(found))
        print(f"{metric:<10}{f'{same} of {len(found)}':>13}{ours[metric]:>9.4f}{theirs[metric]:>9.4f}")
    if least < a.wanted:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except (Failure, Failed, OSError) as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)
