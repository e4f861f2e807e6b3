"""What an answer does, drawn, also while it is wrong or not written yet: `show("2.1", accepted_count)`.

Each picture takes an answer and returns a matplotlib Figure, its alt text and its line of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minispec import plots
from minispec.grading.task import OTHER_FORM
from minispec.grading.wire import Raised, Stopped
from minispec.plots import BLUE, FILLS, GREY, ORANGE, SMALL

Answer = Callable[..., Any]
Picture = tuple[Figure, str, str]
STYLES = {  # fill, edge, thickness
    "plain": ("white", GREY, 0.8),
    "kept": (FILLS[0], BLUE, 1.2),
    "own": (FILLS[1], ORANGE, 2.2),
    "lost": ("white", GREY, 0.8),  # struck out; and "none" leaves a place free
}
PROMPT = [3, 1, 4, 1, 5]


def attempt(answer: Answer, *args: Any) -> tuple[Any, str]:
    """What the answer returns and "", or None and why there is nothing."""
    try:
        return answer(*args), ""
    except NotImplementedError:
        return None, "not written yet"
    except Raised as raised:
        return None, f"stops with {raised.kind}"
    except Stopped as stopped:
        return None, str(stopped)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None, f"returns {OTHER_FORM}"


def strips(rows: Sequence[tuple[str, Sequence[tuple[Any, str]]]], title: str) -> Figure:
    """A line of boxes a row: (label, [(what stands in the box, a style of STYLES), ...])."""
    figure, axes = plots.blank("", width=8.0, height=0.7 + 0.36 * len(rows))
    axes.set_title(title, fontsize=SMALL, loc="left")
    for y, (_, cells) in enumerate(rows):
        for x, (text, style) in enumerate(cells):
            if style == "none":
                continue
            fill, edge, thickness = STYLES[style]
            axes.add_patch(Rectangle((x, y - 0.38), 0.88, 0.76, facecolor=fill, edgecolor=edge, linewidth=thickness))
            axes.text(x + 0.44, y, str(text), ha="center", va="center", fontsize=SMALL, family="monospace")
            if style == "lost":
                axes.plot([x + 0.1, x + 0.78], [y + 0.25, y - 0.25], color=GREY, linewidth=1)
    axes.set_xlim(-0.2, max(10, *(len(cells) for _, cells in rows)) + 0.2)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=SMALL)
    axes.set(xticks=[])
    axes.tick_params(length=0)
    axes.spines[["bottom", "left"]].set_visible(False)
    return figure


def counts(answer: Answer, given: Any = None) -> Picture:
    guesses, answers = given or (
        torch.tensor([[5, 7, 2], [5, 8, 2], [6, 7, 2], [5, -1, -1]]), torch.tensor([[5, 7, 2, 4]] * 4)
    )  # fmt: skip
    found, why = attempt(answer, guesses, answers)
    good = isinstance(found, list) and len(found) == len(guesses) and all(isinstance(n, int) for n in found)
    rows: list[tuple[str, list]] = []
    for i, (drafted, own) in enumerate(zip(guesses.tolist(), answers.tolist(), strict=True)):
        styles = ["kept" if good and j < found[i] else "plain" for j in range(len(drafted))]
        rows.append((f"row {i}: guesses", list(zip(drafted, styles, strict=True))))
        rows.append(("answers", [(x, "plain") for x in own]))
    figure = strips(rows, f"Filled: the guesses that your function accepts{f' ({why})' if why else ''}")
    alt = "Rows of guesses over the target's answers; the guesses that the function accepts are filled."
    return figure, alt, f"accepted, by row: {why or found}"


def emits(answer: Answer, given: Any = None) -> Picture:
    rounds = [given] if given else [
        ([5, 7], [5, 7, 9], None, 9),
        ([5, 7], [5, 8, 9], None, 9),
        ([5, 7], [5, 7, 9], 7, 9),
        ([5, 7], [5, 7, 9], None, 2),
    ]  # fmt: skip
    rows, lines = [], []
    for guesses, answers, eos, budget in rounds:
        found, why = attempt(answer, guesses, answers, eos, budget)
        rows.append((f"guesses (eos {eos}, budget {budget})", [(x, "plain") for x in guesses]))
        rows.append(("answers", [(x, "plain") for x in answers]))
        tokens = found if isinstance(found, list) else []
        styles = ["kept" if i < len(guesses) and x == guesses[i] else "own" for i, x in enumerate(tokens)]
        rows.append((why or "your function emits", list(zip(tokens, styles, strict=True))))
        lines.append(why or str(found))
    alt = "Rounds: guesses, the target's answers, and what the function emits; accepted guesses are filled."
    return (
        strips(rows, "Filled: equal to the guess. Thick frame: the target's own token."),
        alt,
        f"emitted: {'; '.join(lines)}",
    )


def drafts(answer: Answer) -> Picture:
    from minispec.grading.lessons.toys import Reader, continuation

    text, seen = [3, 1, 4, 1, 5, 9, 2, 6], [3, 1, 4, 1, 5, 9, 7, 7]
    small = Reader(3, seen)
    found, why = attempt(answer, small, seen, text, 3)
    wanted = continuation(3, tuple(text), 3)
    common = 6
    rows: list[tuple[str, list]] = [("the text", [(x, "plain") for x in text])]
    rows.append(("in the cache before", [(x, "plain" if i < common else "lost") for i, x in enumerate(seen)]))
    rows.append(("in the cache after", [(x, "kept") for x in small._seen]))
    guesses = found if isinstance(found, list) else []
    rows.append((why or "your guesses", [("", "none")] * len(text) + [(x, "own") for x in guesses]))
    rows.append(("its real guesses", [("", "none")] * len(text) + [(x, "own") for x in wanted]))
    alt = "The text, what the drafter's cache held before and holds after, the guesses, and those without a cache."
    numbers = f"guesses: {why or found}; without a cache: {wanted}; tokens read in each pass: {small._passes}"
    return (
        strips(rows, "Struck out: what was rejected. The guesses must be those of a drafter without a cache."),
        alt,
        numbers,
    )


def rounds(answer: Answer) -> Picture:
    from minispec.grading.lessons.toys import Reader, Scripted, continuation

    wanted = continuation(0, tuple(PROMPT), 10)
    target = Reader(0)
    found, why = attempt(answer, target, Scripted(wanted, PROMPT, "rrw"), PROMPT, 10, 3, None)
    return loop_picture(found, why, wanted[:10], target._passes)


def loop_picture(found: Any, why: str, wanted: list[int], read: Any) -> Picture:
    """What each pass of a loop emitted, under the tokens that the target alone writes."""
    good = isinstance(found, list) and all(isinstance(tokens, list) for tokens in found)
    rows: list[tuple[str, list]] = [("the target alone", [(x, "plain") for x in wanted])]
    start = 0
    for i, tokens in enumerate(found if good else []):
        styles = ["kept" if wanted[start + j : start + j + 1] == [x] else "lost" for j, x in enumerate(tokens)]
        if styles and styles[-1] == "kept":
            styles[-1] = "own"
        rows.append((f"pass {i + 1} emits", [*[("", "none")] * start, *zip(tokens, styles, strict=True)]))
        start += len(tokens)
    if not good:
        rows.append((why or "no list of lists", []))
    alt = "The target's own text, and below it what each pass of the loop emits; tokens that differ are struck out."
    figure = strips(rows[:14], "Filled: as the target alone. Thick frame: the pass's own token. Struck out: another token.")
    return figure, alt, f"emitted: {why or found}; tokens read in each pass: {read}"


def partings(answer: Answer, given: Any = None) -> Picture:
    logits = torch.zeros(4, 8, dtype=torch.float64)
    logits[:, 5], logits[2, 7], logits[2, 2] = 4.0, 3.25, 3.0
    first, second, logits = given or ([5, 6, 7, 1], [5, 6, 2, 3], logits)
    found, why = attempt(answer, first, second, logits)
    place = found[0] if isinstance(found, list) and found and isinstance(found[0], int) else None
    rows = [
        ("first text", [(x, "own" if i == place else "plain") for i, x in enumerate(first)]),
        ("second text", [(x, "own" if i == place else "plain") for i, x in enumerate(second)]),
    ]
    alt = "Two texts, token under token, with the place framed at which the function says that they part."
    about = "logits of row 2: token 7 has 3.25, token 2 has 3, token 5 has 4, all others 0; "
    numbers = f"{'where it fails, ' if given else about}found: {why or found}"
    return strips(rows, f"Thick frame: where they part, says your function{f' ({why})' if why else ''}"), alt, numbers


def letters(n: int) -> list[str]:
    return list("abcdefgh"[:n])


def laws(series: dict[str, Sequence[float]], title: str, why: str, alt: str) -> Picture:
    """Bars side by side; a law that the answer gives is left out where it gave none."""
    shown = {
        name: [float(x) for x in law]
        for name, law in series.items()
        if isinstance(law, list) and all(isinstance(x, float | int) and abs(x) < 100 for x in law) and law
    }
    longest = max(map(len, shown.values()))
    shown = {name: [*law, *[0.0] * (longest - len(law))] for name, law in shown.items()}
    figure = plots.bars(shown, letters(longest), f"{title}{f' ({why})' if why else ''}", "probability")
    numbers = "; ".join(f"{name}: {' '.join(f'{x:.3f}' for x in law)}" for name, law in shown.items())
    return figure, alt, numbers + (f"; {why}" if why else "")


def residuals(answer: Answer, given: Any = None) -> Picture:
    p, q = given or (torch.tensor([[0.4, 0.3, 0.2, 0.1]]).double(), torch.tensor([[0.2, 0.7, 0.1]]).double())
    found, why = attempt(answer, p, q)
    mine = found[0] if isinstance(found, list) and found else None
    series = {"p": p[0].tolist(), "q" if given else "q (three ids only)": q[0].tolist(), "your residual": mine}
    return laws(
        series,
        "p, q, and the residual distribution of your function",
        why,
        "Bars, token by token, of p, of q and of the residual distribution.",
    )


def keeps(answer: Answer) -> Picture:
    """How often each of a hundred uniform numbers lets a guess pass."""
    p, q = torch.tensor([0.6, 0.3, 0.1, 0.0]).double(), torch.tensor([0.3, 0.3, 0.3, 0.1]).double()
    u = (torch.arange(100).double() + 0.5) / 100
    found, why = attempt(answer, p.log().repeat_interleave(100), q.log().repeat_interleave(100), u.repeat(4))
    good = isinstance(found, list) and len(found) == 400
    mine = [sum(map(bool, found[100 * i : 100 * i + 100])) / 100 for i in range(4)] if good else None
    series = {"p": p.tolist(), "q": q.tolist(), "kept, of a hundred u": mine}
    return laws(series, "How often your function keeps each guess", why, "Bars of p, of q, and of the share that is kept.")


def honest(answer: Answer) -> Picture:
    logits = torch.tensor([2.0, 1.0, 0.5, -1.0]).double()
    series: dict[str, Any] = {}
    why = ""
    for name, temperature, top_k in (("T 1, all", 1.0, 0), ("T 0.5, top 2", 0.5, 2), ("T 0", 0.0, 0)):
        series[name], why = attempt(answer, logits, temperature, top_k)
    series = {"softmax of the logits": logits.softmax(0).tolist(), **series}
    return laws(series, "The q that your function reports", why, "Bars of softmax and of the q that the function reports.")


def chains(answer: Answer) -> Picture:
    from minispec.grading.lessons.ex03_cases_rule import P, Q, first_token_law

    mine, why = attempt(lambda *_: first_token_law(answer, P, Q))
    series = {"p": P.tolist(), "q": Q.tolist(), "law of the emitted token": mine}
    return laws(
        series,
        "The law of the first token that your function emits",
        why,
        "Bars, token by token, of p, of q and of the law that the function emits.",
    )


def siblings(answer: Answer) -> Picture:
    from minispec.grading.lessons.ex03_cases_rule import P, Q, sibling_law

    mine, why = attempt(lambda *_: sibling_law(answer, P, Q, 2))
    series = {"p": P.tolist(), "q": Q.tolist(), "law of the emitted token": mine}
    return laws(
        series,
        "The law of the token that your function emits",
        why,
        "Bars, token by token, of p, of q and of the law that the function emits.",
    )
