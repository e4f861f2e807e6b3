"""What should the EAGLE head draft? Chains and dynamic trees by tokens a round and bound, on held-out greedy texts.

python benchmarks/trees.py [FOLDER]                   # the shipped head, or one that `minispec train eagle` wrote
python benchmarks/trees.py --store FOLDER ...         # only measure the cost curve, and write it into these heads

Run it on an otherwise idle machine: a tree is as large as the cost curve stored with the head says that it pays.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import minispec as ms
from minispec.bench import cost_curve, rehearse
from minispec.train.ahead import LONGEST
from minispec.train.data import OWN, Corpus

CHOSEN = 10  # texts of each group


def store(folders: list[str], curve: list[float]) -> None:
    for folder in folders:
        file = Path(folder) / "config.json"
        config = json.loads(file.read_text())
        config["minispec"]["cost"] = [round(seconds, 5) for seconds in curve]
        part = file.with_suffix(".part")
        part.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        part.replace(file)


def measure(lm: ms.LanguageModel, drafter: ms.Eagle, texts: list[Any], curve: list[float]) -> tuple[float, float, float]:
    """Tokens a round, the bound on the speedup, and milliseconds of drafting a round."""
    rounds = [
        round
        for text in texts
        for round in rehearse(lm, drafter, torch.from_numpy(text.prompt.astype(int)), text.answer.tolist(), 256)
    ]
    emitted, drafting = sum(r.emitted for r in rounds), sum(r.draft_s for r in rounds)
    bound = emitted * curve[0] / (sum(curve[r.nodes] for r in rounds) + drafting)
    return emitted / len(rounds), bound, 1e3 * drafting / len(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description="What should the EAGLE head draft?")
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    parser.add_argument(
        "--store", action="store_true", help="write the cost curve measured here into the heads' config.json"
    )
    args = parser.parse_args()
    lm = ms.load()
    curve = list(cost_curve(lm, range(1, LONGEST + 1)).values())
    print(f"{lm.model.dtype}, {torch.get_num_threads()} threads; a pass over 1, 2, ... tokens, milliseconds:")
    print(", ".join(f"{1e3 * seconds:.1f}" for seconds in curve), flush=True)
    if args.store:
        store(args.folders, curve)
        return
    cost = tuple(curve)
    net: Any = ms.load_drafter("eagle", lm, args.folders[0] if args.folders else None)
    net = net.net
    plans = {f"chain of {n}": ms.Eagle(net, n) for n in (1, 2, 3, 4)}
    for top_k, depth, stop_below in ((1, 6, 0.3), (2, 5, 0.3), (3, 4, 0.2), (3, 5, 0.3), (3, 6, 0.4)):
        tree = ms.DynamicTree(depth, top_k, 6 * top_k if top_k < 3 else 16, cost, stop_below)
        plans[f"dynamic, {top_k} a node, {depth} levels, stop below {stop_below}"] = ms.Eagle(net, tree=tree)
    held = [t for t in Corpus.load(Path("training/text.npz")).split()[1] if not t.temperature and len(t.answer) > 3]
    own = [text for text in held if text.kind == OWN][:CHOSEN]
    templates = [text for text in held if text.kind != OWN][: 5 * CHOSEN : 5]
    measure(lm, plans["chain of 2"], own[:1], curve)  # the first passes of a process are slow
    print("\n| draft | tokens a round: own prompts, templates | bound | drafting a round, ms |\n|---|---|---|---|")
    for name, drafter in plans.items():
        columns = zip(*(measure(lm, drafter, texts, curve) for texts in (own, templates)), strict=True)
        cells = [f"{a:.{digits}f}, {b:.{digits}f}" for (a, b), digits in zip(columns, (2, 2, 1), strict=True)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
