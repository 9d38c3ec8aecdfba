#!/usr/bin/env python3
"""Asks one-fact questions with the default sampling and with a low temperature.

    tools/facts.py TLITE MODEL [--seeds 5] [--questions tests/data/facts.jsonl]

Prints the number of right answers and of answers that ran to the limit, for each setting, and how
many seeds name Paris with the default settings.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

QUESTIONS = pathlib.Path(__file__).parent.parent / "tests/data/facts.jsonl"
LOW = ["--temp", "0.2", "--top-p", "0.9"]
LIMIT = ["-n", "256"]


def is_right(text, answers):
    """Whether one of the answers is in the text, as a word.

    >>> is_right("It has 8 legs.", ["eight", "8"]), is_right("Since 1845", ["1945"])
    (True, False)
    >>> is_right("Because of Austria", ["Au"])
    False
    """
    text = text.lower()
    return any(re.search(rf"(?<!\w){re.escape(a.lower())}(?!\w)", text) for a in answers)


def ask(args, question, options):
    """The JSON report of one answer."""
    command = [args.tlite, "generate", args.model, question, "--json", "-q", *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def score(args, facts, options):
    """The number of right answers, and of those that ran to the limit."""
    right = limit = 0
    for fact in facts:
        report = ask(args, fact["question"], [*LIMIT, *options])
        right += is_right(report["text"], fact["answers"])
        limit += report["stop"] in ("max_tokens", "context_full")
        if args.verbose:
            print(f"  {fact['question']} {report['text'][:120]!r}", file=sys.stderr)
    return right, limit


def paris(args, seeds):
    """The number of seeds that name Paris with default settings, and the median of the tokens."""
    question = "What is the capital of France?"
    reports = [ask(args, question, ["--seed", str(seed)]) for seed in range(seeds)]
    named = sum(is_right(r["text"], ["Paris"]) for r in reports)
    return named, statistics.median(len(r["tokens"]) for r in reports)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tlite")
    parser.add_argument("model")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--questions", type=pathlib.Path, default=QUESTIONS)
    parser.add_argument("--verbose", action="store_true", help="print the answers")
    args = parser.parse_args()
    facts = [json.loads(line) for line in args.questions.read_text("utf-8").splitlines()]
    right, limit = score(args, facts, [])
    print(f"default: {right} of {len(facts)} right, {limit} ran to the limit of {LIMIT[1]} tokens")
    low = [score(args, facts, [*LOW, "--seed", str(seed)]) for seed in range(args.seeds)]
    mean, runs = statistics.mean(r for r, _ in low), sum(n for _, n in low)
    each = ", ".join(str(r) for r, _ in low)
    print(f"{' '.join(LOW)}: {mean:.1f} of {len(facts)} right on average ({each}), {runs} ran to it")
    named, median = paris(args, 20)
    print(f"Paris: {named} of 20 seeds with default settings, {median:g} tokens in the median")
    return 0 if right >= mean and named == 20 else 1


if __name__ == "__main__":
    sys.exit(main())
