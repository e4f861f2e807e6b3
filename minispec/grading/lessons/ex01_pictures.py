"""The pictures of lesson 1: what an answer does, drawn."""

from __future__ import annotations

import math
from typing import Any

import torch

from minispec.grading.lessons.ex01_cases import NEARLY_ONE
from minispec.grading.lessons.ex01_cases_cache import branched, written
from minispec.grading.lessons.toys import Reader, Rows
from minispec.grading.pictures import Answer, Picture, attempt, laws, strips


def room(answer: Answer) -> Picture:
    rows, lines = [], []
    for tokens in (1024, 2048, 4096, 8192):
        found, why = attempt(answer, 540_000_000, 269_000_000, 30, 576, 9, 3, 2, tokens)
        good = isinstance(found, int | float) and math.isfinite(found)
        boxes = [("", "kept")] * min(40, max(0, int(found))) if good else []
        rows.append((f"{tokens:,} tokens: {found if good else why or 'no number'}", boxes))
        lines.append(f"{tokens}: {found if good else why or 'no number'}")
    alt = "For texts of four lengths, a box for each text that fits into the memory, as the function says."
    figure = strips(rows, "A box for each text that fits beside SmolLM2-135M into 540 MB (at most 40 are drawn)")
    return figure, alt, f"texts that fit, by length: {', '.join(lines)}"


def drawn(answer: Answer) -> Picture:
    """How often each token is drawn at a hundred uniform numbers, the ends of the line among them."""
    p = torch.tensor([0.0, 0.5, 0.2, 0.3, 0.0]).double()
    u = torch.tensor([0.0, *((torch.arange(98) + 0.5) / 98).tolist(), NEARLY_ONE], dtype=torch.float64)
    found, why = attempt(answer, p.expand(100, -1), u)
    good = isinstance(found, list) and len(found) == 100 and all(isinstance(x, int) for x in found)
    mine = [found.count(i) / 100 for i in range(6)] if good else None
    series = {"p": [*p.tolist(), 0.0], "drawn, of a hundred u": mine}
    alt = "Bars of p, and of the share of a hundred uniform numbers at which the function draws each token."
    return laws(series, "How often your function draws each token; f is none", why, alt)


def shapes(answer: Answer) -> Picture:
    logits = torch.tensor([[0.4, 0.3, 0.15, 0.15]]).double().log()
    settings = {"T 0.5": [0.5, 0, 1.0], "top 3": [1.0, 3, 1.0], "top-p 0.6": [1.0, 0, 0.6]}
    series: dict[str, Any] = {"softmax": logits[0].softmax(0).tolist()}
    why = ""
    for name, setting in settings.items():
        found, why = attempt(answer, logits, [setting])
        series[name] = found[0] if isinstance(found, list) and found else None
    return laws(series, "What your function makes of one row", why, "Bars of softmax, and of what the function makes of it.")


def texts(found: Any, wanted: list[list[int]], label: str, why: str) -> list[tuple[str, list]]:
    """Two strips a text: as it should be, and as the answer has it, with what differs struck out."""
    rows: list[tuple[str, list]] = []
    for i, text in enumerate(wanted):
        rows.append((f"{label} {i}, alone", [(x, "plain") for x in text]))
        mine = found[i] if isinstance(found, list) and i < len(found) and isinstance(found[i], list) else []
        styles = ["kept" if text[j : j + 1] == [x] else "lost" for j, x in enumerate(mine)]
        rows.append((why or "yours", list(zip(mine, styles, strict=True))))
    return rows


def branched_texts(answer: Answer) -> Picture:
    prompt = (3, 1, 4, 1, 5)
    wanted, target = [branched(2, prompt, rank, 6, None) for rank in range(3)], Reader(2)
    found, why = attempt(answer, target, list(prompt), 3, 6, None)
    alt = "Three texts as they are when each is written alone, and as the function writes them; what differs is struck out."
    figure = strips(
        texts(found, wanted, "text", why), "Filled: as if the text were written alone. Struck out: another token."
    )
    return figure, alt, f"texts: {why or found}; alone: {wanted}; tokens read in each pass: {target._passes}"


def masks(answer: Answer) -> Picture:
    lengths, counts, slots = [4, 1, 2], [2, 3, 0], 8
    tokens = torch.tensor([[7] * n + [-1] * (3 - n) for n in counts])
    found, why = attempt(answer, tokens, lengths, slots)
    rows, lines = [], []
    for row, n in enumerate(counts):
        for i in range(n):
            try:
                at, seen = found[0][row][i], [bool(x) for x in found[1][row][i]][:slots]
            except (TypeError, IndexError, KeyError):
                at, seen = None, []
            rows.append((f"row {row} (held {lengths[row]}), new token {i}, position {at}", [
                (slot, "kept" if x else "plain") for slot, x in enumerate(seen)
            ]))  # fmt: skip
            lines.append(f"row {row} token {i}: position {at}, sees {[slot for slot, x in enumerate(seen) if x]}")
    alt = "For each new token of a batch of three rows, the slots of its row's cache; those that it sees are filled."
    return strips(rows, f"Filled: the slots that a token sees{f' ({why})' if why else ''}"), alt, "; ".join(lines)


def batches(answer: Answer) -> Picture:
    prompts, budgets, settings = (
        [(3, 1, 4, 1, 5), (4, 2), (7, 7, 7)],
        [3, 6, 6],
        [[1.0, 0, 1.0], [0.7, 5, 0.9], [1.0, 0, 1.0]],
    )
    u = torch.rand(3, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    rows = zip(prompts, u.tolist(), budgets, settings, strict=True)
    wanted, target = [written(prompt, numbers, budget, 2, setting) for prompt, numbers, budget, setting in rows], Rows(0, 3)
    found, why = attempt(answer, target, [list(prompt) for prompt in prompts], u, budgets, 2, settings)
    alt = "Three rows as each is written alone, and as the function writes them in a batch; what differs is struck out."
    figure = strips(
        texts(found, wanted, "row", why), "Filled: as the row alone. Struck out: another token. Token 2 ends a text."
    )
    return figure, alt, f"texts: {why or found}; alone: {wanted}; tokens that each pass reads: {target._passes}"
