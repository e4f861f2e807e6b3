"""Grade a class: 200 submissions of one lesson, some right, most with a mistake or two, some of them hostile.

python benchmarks/class_scale.py                      # seconds by the clock and of computing, memory, statistics
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import tempfile
import time
from pathlib import Path

from minispec.grading.grade import grade, processors
from minispec.grading.report import text

ROOT = Path(__file__).parent.parent
MISTAKES = [  # a piece of the solution, and what a learner may write there
    ("agree.long().cumprod(1).sum(1)", "agree.sum(1)"),
    ("answers[:, :-1]", "answers[:, 1:]"),
    ("[*guesses[:n], answers[n]][:budget]", "[*guesses[:n], answers[-1]][:budget]"),
    ("if eos in new:", "if eos and eos in new:"),
    ("new.index(eos) + 1]", "new.index(eos)]"),
    ("and seen[common] == text[common]", ""),
    ("    small.rewind(common)\n", ""),
    ("draft(text, min(count, left - 1))", "draft(text, count)"),
    ("    target.rewind(len(text) - 1)\n", "    pass\n"),
    ("logits[i, a] - logits[i, b]", "logits[i, b] - logits[i, a]"),
    ("return i, float(", "return i + 1, float("),
]
HOSTILE = [  # the first line of an answer
    "while True: pass",
    "import os; os.abort()",
    "import os; os._exit(0)",
    "x = bytearray(2**35)",
    "print('a line\\n' * 1_000_000)",
    "import minispec.verify",
    "import sys; sys.exit()",
    "raise RuntimeError('unfinished')",
]


def make_class(folder: Path, count: int) -> None:
    source = next((ROOT / "solutions").glob("ex02_*.py")).read_text()
    dice = random.Random(0)
    for i in range(count):
        mine = source
        for old, new in dice.sample(MISTAKES, dice.choice([0, 0, 1, 2, 3])):
            mine = mine.replace(old, new)
        if i % 10 == 9:  # one in ten
            line = HOSTILE[i // 10 % len(HOSTILE)]
            name = dice.choice(["accepted_count", "emit", "write_draft", "speculate", "parting"])
            mine = re.sub(
                rf'(?m)^(def {name}\(.*\):\n    """.*"""\n)', lambda found, line=line: f"{found[1]}    {line}\n", mine
            )
        (folder / f"student{i:03d}").mkdir()
        (folder / f"student{i:03d}" / "ex02_greedy_verification.py").write_text(mine)


def main() -> None:
    parser = argparse.ArgumentParser(description="Grade a class, and say how long it takes.")
    parser.add_argument("--count", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_class(Path(folder), args.count)
        start = time.monotonic()
        reports = grade([folder])
        seconds = time.monotonic() - start
    print(text(reports))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    computing = sum(u.ru_utime + u.ru_stime for u in used)
    most = max(u.ru_maxrss for u in used) / 1024  # KiB on Linux
    print(
        f"{args.count} submissions in {seconds:.0f} s on {processors()} processors; {computing:.0f} s of computing;", end=" "
    )
    print(f"the largest process took {most:.0f} MiB")


if __name__ == "__main__":
    main()
