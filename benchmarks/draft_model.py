"""Draft models compared on held-out texts: acceptance, cost of a step, and what that allows.

    python benchmarks/draft_model.py [FOLDER ...]         # the shipped one, then folders of `minispec train draft`

No target runs but for its cost curve: what it would accept is read off texts that it wrote greedily and that no drafter was
trained on. Their prompts are the target's own too: those from templates would flatter whoever learnt the templates. Prints
Markdown: the draft models with three tokens always; how often their likeliest token is the target's, on texts that the
shipped one learnt from and on others; then the shipped one with other settings.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import minispec as ms
from minispec.bench import AUTOREGRESSIVE, cost_curve, measured, rehearse
from minispec.train.data import OWN, Corpus

SETTINGS = [(n, 0.0) for n in (2, 3, 4, 6)] + [(n, sure) for n in (4, 6, 8) for sure in (0.2, 0.3, 0.4, 0.5)]
Pair = tuple[torch.Tensor, list[int]]  # a prompt, and the target's greedy answer


def texts() -> dict[str, list[Pair]]:
    """Greedy answers of the target, by what a drafter had to do with them."""
    learnt, held = Corpus.load(Path("training/text.npz")).split()
    greedy = [[text for text in part if not text.temperature and len(text.answer) > 20] for part in (learnt, held)]
    chosen = {
        "learnt, templates": [text for text in greedy[0] if text.kind != OWN][:32],
        "held out, templates": [text for text in greedy[1] if text.kind != OWN][:32],
        "held out, own prompts": [text for text in greedy[1] if text.kind == OWN][:32],
    }
    groups = {
        name: [(torch.from_numpy(t.prompt.astype(int)), t.answer.tolist()[:128]) for t in group]
        for name, group in chosen.items()
    }
    result = measured("bench")  # holds what the target wrote to the requests
    prompts = [torch.tensor(request["prompt"]) for request in result["requests"]]
    runs = [run for run in result["runs"] if run["method"] == AUTOREGRESSIVE and run["repeat"] == 0]
    return groups | {"requests": [(prompts[run["rows"][0]], run["tokens"][0]) for run in runs]}


@torch.inference_mode()
def agreement(lm: ms.LanguageModel, folder: str | None, pairs: list[Pair]) -> float:
    """The share of the answers' tokens at which the draft model's likeliest token is the target's."""
    drafter: Any = ms.load_drafter("draft", lm, folder)
    model, equal, count = drafter.small.model, 0, 0
    for prompt, answer in pairs:
        ids = torch.tensor([*prompt.tolist(), *answer])
        logits = model(ids[None], model.new_cache(1, len(ids)))[0, len(prompt) - 1 : -1]
        equal += int((logits.argmax(-1) == ids[len(prompt) :]).sum())
        count += len(answer)
    return equal / count


def main() -> None:
    lm = ms.load()
    groups = texts()
    pairs = groups["held out, own prompts"]
    cost = cost_curve(lm, range(1, 10))

    def row(name: str, **options: Any) -> str:
        drafter = ms.load_drafter("draft", lm, **options)
        rounds = [r for prompt, tokens in pairs for r in rehearse(lm, drafter, prompt, tokens, len(tokens))]
        drafted, seconds = sum(r.nodes for r in rounds), sum(r.draft_s for r in rounds)
        emitted = sum(r.emitted for r in rounds)
        bound = emitted * cost[1] / sum(cost[1 + r.nodes] + r.draft_s for r in rounds)
        first = [r.accepted > 0 for r in rounds if r.nodes]
        return (
            f"| {name} | {sum(first) / len(first):.1%} | {emitted / len(rounds):.2f} | {seconds / drafted / cost[1]:.3f} | "
            f"{bound:.2f} |"
        )

    print(f"{len(pairs)} texts; {str(lm.model.dtype).removeprefix('torch.')}, {torch.get_num_threads()} threads\n")
    head = "first token accepted | tokens a round | a step, in target passes | bound |"
    print(f"| draft model, 3 tokens always | {head}\n|{'---|' * 5}")
    for folder in (None, *sys.argv[1:]):
        print(row(Path(folder).name if folder else "shipped", source=folder, num_tokens=3, min_confidence=0.0), flush=True)
    counted = [f"{name} ({len(group)} texts)" for name, group in groups.items()]
    print(f"\n| likeliest token is the target's | {' | '.join(counted)} |\n|{'---|' * (1 + len(groups))}")
    for folder in (None, *sys.argv[1:]):
        shares = [f"{agreement(lm, folder, group):.1%}" for group in groups.values()]
        print(f"| {Path(folder).name if folder else 'shipped'} | {' | '.join(shares)} |", flush=True)
    print(f"\n| shipped: tokens at most, least confidence | {head}\n|{'---|' * 5}")
    for n, sure in SETTINGS:
        print(row(f"{n}, {sure}", num_tokens=n, min_confidence=sure), flush=True)


if __name__ == "__main__":
    main()
