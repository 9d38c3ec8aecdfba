#!/usr/bin/env python3
"""Makes multiple-choice questions from a text, for `tlite eval`.

usage: make_questions.py TEXT -o FILE [--questions N] [--seed N]

A question is three sentences of TEXT in a row; the choices are the sentence that follows and three
sentences of similar length from elsewhere in TEXT, in random order. No sentence is the right choice
twice. Sentences are at most 300 characters long, choices at least 40. Questions are one JSON object
per line, with the fields question, choices, answer and id.

  --questions N   number of questions [default: 1000]
  --seed N        the same TEXT, N and seed give the same FILE [default: 0]

tools/fetch_text.py downloads novels. Use one that the model was not calibrated on.
"""

import argparse
import json
import os
import random
import re
import sys

CONTEXT, CHOICES = 3, 4
LEAST, MOST = 40, 300
# Sentences nearer than this are not wrong choices.
APART = 20
# Largest ratio of the lengths of a right and a wrong choice.
RATIO = 1.25
END = re.compile(r"""(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\bEsq\.)(?<=[.!?])("?)\s+(?=["A-Z])""")


def sentences(text):
    """Lists of the sentences of each chapter.

    >>> sentences('T\\n\\nChapter 1\\n\\nMr. A ran\\naway.  "Why?"  He did.\\n\\nSo.\\n\\nChapter 2\\n\\nB.\\n')
    [['Mr. A ran away.', '"Why?"', 'He did.', 'So.'], ['B.']]
    """
    chapters = re.split(r"(?m)^(?:chapter|volume) .*$", text, flags=re.IGNORECASE)[1:] or [text]
    flat = (" ".join(c.split()) for c in chapters)
    return [s for s in ([p.strip() for p in END.sub(r"\1\n", c).split("\n") if p.strip()] for c in flat) if s]


def questions(text, count, seed):
    """Yields questions; raises ValueError if `text` is too short.

    >>> text = " ".join(f"This is sentence number {i:3} of a rather long text." for i in range(100))
    >>> made = list(questions(text, 5, 0))
    >>> [q["choices"][q["answer"]] == f"This is sentence number {q['id'] % 1000} of a rather long text." for q in made]
    [True, True, True, True, True]
    >>> made == list(questions(text, 5, 0)), made == list(questions(text, 5, 1))
    (True, False)
    """
    draw = random.Random(seed)

    def below(n):
        # Unlike randrange and shuffle, random() is the same in every version of Python.
        return int(draw.random() * n)

    chapters = sentences(text)
    flat = [s for chapter in chapters for s in chapter]
    places, first = [], 0
    for chapter in chapters:
        for i in range(first + CONTEXT, first + len(chapter)):
            if all(len(s) <= MOST for s in flat[i - CONTEXT : i + 1]) and len(flat[i]) >= LEAST:
                places.append(i)
        first += len(chapter)
    made, used = 0, set()
    while made < count:
        if not places:
            raise ValueError(f"the text gives only {made} questions; {count} are wanted")
        at = below(len(places))
        places[at], places[-1] = places[-1], places[at]
        place = places.pop()
        right = flat[place]
        others = [
            s for i, s in enumerate(flat)
            if abs(i - place) >= APART and len(right) / RATIO <= len(s) <= min(MOST, len(right) * RATIO) and s != right
        ]
        wrong = []
        while others and len(wrong) < CHOICES - 1:
            other = others[below(len(others))]
            others = [s for s in others if s != other]
            wrong.append(other)
        if right in used or len(wrong) < CHOICES - 1:
            continue
        used.add(right)
        made += 1
        answer = below(CHOICES)
        yield {
            "id": place,
            "question": " ".join(flat[place - CONTEXT : place]),
            "choices": wrong[:answer] + [right] + wrong[answer:],
            "answer": answer,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument("-o", "--output", metavar="FILE", required=True)
    parser.add_argument("--questions", metavar="N", type=int, default=1000)
    parser.add_argument("--seed", metavar="N", type=int, default=0)
    a = parser.parse_args()
    with open(a.text, encoding="utf-8") as file:
        text = file.read()
    lines = [json.dumps(q, ensure_ascii=False) + "\n" for q in questions(text, a.questions, a.seed)]
    part = a.output + ".part"
    with open(part, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
    os.replace(part, a.output)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(130)
