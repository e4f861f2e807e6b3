"""Draft models compared on held-out texts: acceptance, cost of a step, and what that allows.

    python benchmarks/draft_model.py [FOLDER ...]         # the shipped one, then folders of `minispec train draft`

No target runs but for its cost curve: what it would accept is read off texts that it wrote greedily and that no drafter was
trained on. Their prompts are the target's own too: those from templates would flatter whoever learnt the templates. Prints
Markdown: the draft models with three tokens always, then the shipped one with other settings.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import minispec as ms
from minispec.bench import cost_curve, rehearse
from minispec.train.data import OWN, Corpus

SETTINGS = [(n, 0.0) for n in (2, 3, 4, 6)] + [(n, sure) for n in (4, 6, 8) for sure in (0.2, 0.3, 0.4, 0.5)]


def main() -> None:
    lm = ms.load()
    held = Corpus.load(Path("training/text.npz")).split()[1]
    texts = [text for text in held if text.kind == OWN and not text.temperature and len(text.answer) > 20]
    pairs = [(torch.from_numpy(t.prompt.astype(int)), t.answer.tolist()[:128]) for t in texts[:32]]
    cost = cost_curve(lm, range(1, 10))

    def row(name: str, **options: Any) -> str:
        drafter = ms.load_drafter("draft", lm, **options)
        rounds = [r for prompt, tokens in pairs for r in rehearse(lm, drafter, prompt, tokens, len(tokens))]
        drafted, seconds = sum(r[0] for r in rounds), sum(r[3] for r in rounds)
        emitted = sum(r[2] for r in rounds)
        bound = emitted * cost[1] / sum(cost[1 + nodes] + s for nodes, _, _, s in rounds)
        first = [r[1] > 0 for r in rounds if r[0]]
        return (
            f"| {name} | {sum(first) / len(first):.1%} | {emitted / len(rounds):.2f} | {seconds / drafted / cost[1]:.3f} | "
            f"{bound:.2f} |"
        )

    print(f"{len(pairs)} texts; {str(lm.model.dtype).removeprefix('torch.')}, {torch.get_num_threads()} threads\n")
    head = "first token accepted | tokens a round | a step, in target passes | bound |"
    print(f"| draft model, 3 tokens always | {head}\n|{'---|' * 5}")
    for folder in (None, *sys.argv[1:]):
        print(row(Path(folder).name if folder else "shipped", source=folder, num_tokens=3, min_confidence=0.0), flush=True)
    print(f"\n| shipped: tokens at most, least confidence | {head}\n|{'---|' * 5}")
    for n, sure in SETTINGS:
        print(row(f"{n}, {sure}", num_tokens=n, min_confidence=sure), flush=True)


if __name__ == "__main__":
    main()
