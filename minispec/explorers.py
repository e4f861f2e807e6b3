"""What a cost curve predicts, drawn from a state: the figures of three widgets, which `widgets.py` shows and moves.

    speedup(0.8, 4, 0.05, curve)                          # by draft length; trees(...) by nodes; batches(...) by batch

Figures are pure functions, and carry their line of numbers as their label.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minispec import notebook, plots, theory
from minispec.plots import BLUE, COLOURS, GREY
from minispec.tree import Shape, grow


def speedup(acceptance: float, num_tokens: int, draft_cost: float, curve: Mapping[int, float]) -> Figure:
    """The bound on the speedup by draft length, here and on an ideal machine, whose passes cost the same over any number.
    `acceptance`: the rate at every position; `draft_cost` of a token, in target passes over one token; `curve`: seconds of a
    target pass by the tokens in it. Raises ValueError for a curve that does not reach from 1 to 13 tokens."""
    if 1 not in curve or max(curve) < 13:
        raise ValueError(f"the cost curve must reach from 1 to 13 tokens, but has {sorted(curve)}")
    rates, each, sizes = [acceptance] * 12, draft_cost * curve[1], sorted(curve)
    costs = {"this machine": lambda n: float(np.interp(n, sizes, [curve[i] for i in sizes])), "ideal": lambda _: curve[1]}
    tokens = [theory.expected_tokens(rates[:n]) for n in range(13)]
    gains: Any = {k: {n: theory.speedup_bound(tokens[n], c, n, n * each) for n in range(13)} for k, c in costs.items()}
    best = [theory.best_draft_length(rates, cost, each) for cost in costs.values()]
    title = f"acceptance {acceptance:.2f}, a drafted token costs {draft_cost:.2f} passes"
    figure = plots.lines(gains, title, "drafted tokens a round", "bound on the speedup", level=1)
    (axes := figure.axes[0]).axvline(num_tokens, color=GREY, linewidth=1, label=f"{num_tokens} drafted")
    axes.legend(fontsize=9, frameon=False)
    for at, colour, up in zip(best, COLOURS, (-20, 9), strict=False):  # below the star, above it
        axes.plot(*at, "*", color=colour, markersize=16)
        axes.annotate(f"best: {at[0]}", at, (0, up), textcoords="offset points", ha="center", color=colour)
    mine, ideal = (f"{g[num_tokens]:.2f} (best {top:.2f} at {n})" for g, (n, top) in zip(gains.values(), best, strict=True))
    figure.set_label(f"{title}; {num_tokens} drafted: {notebook.here(mine)}; on an ideal machine {ideal}")
    return figure


def chances(shape: Shape, rates: Sequence[Sequence[float]]) -> list[float]:
    """How likely each node is to be accepted: the product of the rates along its path."""
    found = [1.0]
    for parent, depth, rank in zip(shape.parents, shape.depths, shape.ranks, strict=True):
        found.append(found[parent] * rates[depth - 1][rank])
    return found[1:]


def trees(budget: int, depth: int, rates: Sequence[Sequence[float]], curve: Mapping[int, float]) -> Figure:
    """The tree of at most `budget` nodes and `depth` levels that emits most tokens a round; and for trees of up to 24 nodes
    their tokens a round, and the time of a token, here and on an ideal machine, whose passes cost the same over any number.
    `rates[depth][rank]` as for `tree.grow`; `curve`: seconds of a target pass by the tokens in it. Raises ValueError for a
    depth that `rates` lacks, and for a curve that does not reach from 1 to 25 tokens."""
    if not 1 <= depth <= len(rates):
        raise ValueError(f"there are rates for depths 1 to {len(rates)}, so no tree is {depth} deep")
    if 1 not in curve or max(curve) < 25:
        raise ValueError(f"the cost curve must reach from 1 to 25 tokens, but has {sorted(curve)}")
    shape, largest = (grow(rates[:depth], lambda _: 1.0, most=most) for most in (budget, 24))
    falling, sizes = sorted(chances(largest, rates), reverse=True), sorted(curve)
    tokens = {n: 1 + sum(falling[:n]) for n in range(len(falling) + 1)}
    passes = {n: float(np.interp(1 + n, sizes, [curve[i] / curve[1] for i in sizes])) for n in tokens}
    times = {"this machine": {n: passes[n] / tokens[n] for n in tokens}, "ideal": {n: 1 / tokens[n] for n in tokens}}
    best = min(tokens, key=times["this machine"].__getitem__)
    each = zip(shape.ranks, chances(shape, rates), strict=True)
    figure = plots.tree(shape.parents, [f"#{rank + 1}:{chance:.2f}" for rank, chance in each])
    figure.set_size_inches(10, 5)
    grid, n = figure.add_gridspec(2, 2, width_ratios=(1.5, 1)), len(shape.ranks)
    (sketch := figure.axes[0]).set_subplotspec(grid[:, 0])
    sketch.set(xlim=(-2, max(45, sketch.get_xlim()[1])), ylim=(max(8, sketch.get_ylim()[0]), -0.6))  # no box grows large
    parts = {"tokens a round": {"": tokens}, "time a token, in plain passes": times}
    for row, (title, series) in enumerate(parts.items()):
        axes = figure.add_subplot(grid[row, 1])
        for (label, points), colour, dash in zip(series.items(), COLOURS, plots.DASHES, strict=False):
            axes.plot(list(points), list(points.values()), dash, color=colour, label=label)
        axes.axvline(n, color=GREY, linewidth=1)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set(xlim=(0, 24), ylim=(0, 1.6 * max(max(points.values()) for points in series.values())))
        axes.spines[["top", "right"]].set_visible(False)
    axes.plot(best, times["this machine"][best], "*", color=BLUE, markersize=14, label=f"best here: {best}")
    axes.set(xlabel="nodes of the tree")
    axes.legend(fontsize=9, frameon=False, loc="upper right", ncols=3)
    here = f"{times['this machine'][n]:.2f} (best {times['this machine'][best]:.2f}, with {best} nodes)"
    words = f"{n} nodes, {depth} deep at most: {tokens[n]:.2f} tokens a round; a token takes, in plain passes, "
    figure.set_label(f"{words}{notebook.here(here)}, on an ideal machine {times['ideal'][n]:.2f}")
    return figure


def seconds_of(curve: Mapping[int, float], tokens: int) -> float:
    """Seconds of a pass over `tokens` tokens: straight lines between the points, and on in the direction of the last two."""
    sizes = sorted(curve)
    a, b = sizes[-2:]
    if tokens <= b:
        return float(np.interp(tokens, sizes, [curve[size] for size in sizes]))
    return curve[b] + (tokens - b) * (curve[b] - curve[a]) / (b - a)


def batches(batch: int, chain: int, nodes: int, acceptance: float, curve: Mapping[int, float]) -> Figure:
    """The predicted speedup over plain decoding at the same batch, by batch size, of chains and of trees; drafting is free.

    A round of b rows is one pass over b (1 + drafted) tokens, plain decoding one over b. `acceptance`: how often the first
    choice is right, after any path; of what it misses, the next one gets half that share, and so on. The tree is the best
    of so many nodes. `curve`: seconds of a target pass by the tokens in it. Raises ValueError for a batch outside 1 to 64,
    and for a curve that does not begin at 1 or has no second point."""
    if not 1 <= batch <= 64:
        raise ValueError(f"a batch has 1 to 64 rows here, not {batch}")
    if 1 not in curve or len(curve) < 2:
        raise ValueError(f"the cost curve must begin at 1 token and have two points, but has {sorted(curve)}")
    ranks = [acceptance * ((1 - acceptance) / 2) ** rank for rank in range(4)]
    shape = grow([ranks] * nodes, lambda _: 1.0, most=nodes) if nodes else Shape((), ())
    drafts = {
        f"chain of {chain}": (chain, theory.expected_tokens([acceptance] * chain)),
        f"tree of {nodes}": (nodes, 1 + sum(chances(shape, [ranks] * nodes))),
    }

    def gain(rows: int, drafted: int, tokens: float) -> float:
        return tokens * seconds_of(curve, rows) / seconds_of(curve, rows * (1 + drafted))

    gains = {name: {2**i: gain(2**i, *draft) for i in range(7)} for name, draft in drafts.items()}
    title = f"acceptance {acceptance:.2f}, drafting free"
    figure = plots.lines(gains, title, "rows of the batch", "predicted speedup", level=1, log=True)
    (axes := figure.axes[0]).axvline(batch, color=GREY, linewidth=1, label=f"batch {batch}")
    axes.legend(fontsize=plots.SMALL, frameon=False)
    words = [f"{title}; batch {batch}"]
    for name, (drafted, tokens) in drafts.items():
        pays = [rows for rows in range(1, 65) if gain(rows, drafted, tokens) > 1]
        until = f"gains up to batch {max(pays)}" if pays else "gains at no batch"
        words.append(f"{name}: {tokens:.2f} tokens a round, speedup {gain(batch, drafted, tokens):.2f}, {until}")
    figure.set_label("; ".join(words))
    return figure
