"""Figures of the course: from numbers or a trace to a matplotlib Figure. Nothing is measured here.

    cost_curve({"bfloat16": {1: 0.026, 4: 0.030}})        # `notebook.show(figure, alt, numbers)` puts it in a notebook

Every figure has an opaque background and can be read without colour: series differ in marker, line and hatch as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

if TYPE_CHECKING:
    from minispec.trace import Trace

BLUE, ORANGE, GREEN, GREY, PLUM = "#0072b2", "#b35c00", "#007a5a", "#6f6f6f", "#97417a"  # colour-blind readers see five too
COLOURS, DASHES = (BLUE, ORANGE, GREEN, GREY, PLUM), ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
FILLS, HATCHES = ("#cce5f3", "#ffe8b8", "#cdeee3", "#e4e4e4", "#efd5e6"), ("", "//", "..", "xx", "\\\\")
SMALL = 10  # points: what stands in legends, and in the frames of tokens


def blank(title: str, width: float = 7.0, height: float = 3.6) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), dpi=100, facecolor="white", layout="constrained")
    axes = figure.add_subplot(facecolor="white")
    axes.set_title(title, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def lines(
    series: Mapping[str, Mapping[Any, float]], title: str, x: str, y: str, level: float | None = None, log: bool = False
) -> Figure:
    """A line a label, through {x: y}; `level` draws a dotted horizontal line; `log`: x doubles at each step."""
    figure, axes = blank(title)
    for i, (label, points) in enumerate(series.items()):
        style = {"marker": MARKERS[i % 5], "color": COLOURS[i % 5], "linestyle": DASHES[i % 5], "markersize": 4}
        axes.plot(list(points), list(points.values()), label=label, **style)
    if level is not None:
        axes.axhline(level, color=GREY, linestyle=":", linewidth=1)
    axes.set(xlabel=x, ylabel=y)
    if log:
        axes.set_xscale("log", base=2)
        ticks = sorted({at for points in series.values() for at in points})
        axes.set_xticks(ticks, [f"{at:g}" for at in ticks])
        axes.minorticks_off()
    elif all(at == int(at) for points in series.values() for at in points):
        axes.xaxis.get_major_locator().set_params(integer=True)
    top = max((v for points in series.values() for v in points.values()), default=1)
    axes.set_ylim(0, 1.15 * max(top, level or 0))
    axes.legend(fontsize=SMALL, frameon=False)
    return figure


def bars(
    series: Mapping[str, Sequence[float]], names: Sequence[str], title: str, y: str, level: float | None = None
) -> Figure:
    """Bars side by side: a group a name, a bar a label in each. `level` draws a horizontal line."""
    figure, axes = blank(title)
    width = 0.8 / len(series)
    for i, (label, values) in enumerate(series.items()):
        at = [place + (i - (len(series) - 1) / 2) * width for place in range(len(names))]
        style = {"color": FILLS[i % 5], "edgecolor": COLOURS[i % 5], "hatch": HATCHES[i % 5]}
        axes.bar(at, values, width * 0.92, label=label, **style)
    if level is not None:
        axes.axhline(level, color="black", linewidth=1)
    axes.set_xticks(range(len(names)), names)
    axes.set(ylabel=y)
    axes.set_ylim(0, 1.35 * (max(map(max, series.values())) or 1))
    axes.legend(fontsize=SMALL, frameon=False, ncols=min(2, len(series)))
    return figure


def dots(
    groups: Mapping[str, Sequence[tuple[float, float]]], title: str, x: str, y: str, level: float | None = None
) -> Figure:
    """A dot an (x, y); eight groups differ in marker. `level` draws a dotted horizontal line."""
    figure, axes = blank(title, height=4.2)
    for i, (name, points) in enumerate(groups.items()):
        xs, ys = zip(*points, strict=True)
        style = {"markersize": 9, "markeredgewidth": 1.5, "markerfacecolor": "none" if i % 2 else COLOURS[i % 5]}
        axes.plot(xs, ys, linestyle="", marker=MARKERS[i % 8], color=COLOURS[i % 5], label=name, **style)
    if level is not None:
        axes.axhline(level, color=GREY, linestyle=":", linewidth=1)
    axes.set(xlabel=x, ylabel=y)
    axes.set_ylim(0, None)
    axes.legend(fontsize=SMALL, frameon=False, ncols=2)
    return figure


def cost_curve(curves: Mapping[str, Mapping[int, float]]) -> Figure:
    """What a pass costs, in passes over one token, against the tokens in it; a line a label, through {tokens: seconds}."""
    series = {
        f"{label} (1 = {1e3 * curve[1]:.0f} ms)": {n: curve[n] / curve[1] for n in sorted(curve)}
        for label, curve in curves.items()
    }
    title = "What a pass costs, against the number of tokens in it"
    figure = lines(series, title, "tokens in the pass", "passes over one token", level=1, log=True)
    axes = figure.axes[0]
    sizes = sorted({n for curve in curves.values() for n in curve})
    axes.plot(sizes, sizes, color=GREY, linestyle=":", label="no gain: as much as one by one")
    axes.set_yscale("log", base=2)
    axes.set_yticks(sizes, [f"{n}" for n in sizes])
    axes.minorticks_off()
    axes.set_ylim(0.8, 1.1 * sizes[-1])
    axes.legend(fontsize=SMALL, frameon=False)
    return figure


def printable(text: str) -> str:
    """A token's text as it can be drawn: line ends and spaces made visible, □ for what the font lacks."""
    from matplotlib.font_manager import findfont, get_font

    glyphs = get_font(findfont("monospace")).get_charmap()
    text = text.replace("\n", "↵").replace(" ", "␣")
    return "".join(c if ord(c) in glyphs else "□" for c in text)


def token_tape(trace: Trace, decode: Callable[[int], str], rounds: int = 12) -> Figure:
    """The first rounds of a generation by chains, a line each: accepted tokens, rejected ones, the target's own token."""
    shown = trace.rounds[:rounds]
    count = f"Rounds 1 to {len(shown)} of {len(trace.rounds)}"
    title = f"{count}. Thin frame: accepted. Thick frame: the target's own token. Struck out: rejected."
    figure, axes = blank("", width=9.5, height=0.7 + 0.36 * len(shown))
    axes.set_title(title, fontsize=9, loc="left")
    for y, round in enumerate(shown):
        cells = [(token, FILLS[0], BLUE, 1.0) for token in round.accepted]
        if not round.was_cut:
            cells += [(token, "white", GREY, 0.6) for token in round.drafted[len(round.accepted) :]]
            cells.insert(len(round.accepted), (round.emitted[-1], FILLS[1], ORANGE, 2.2))
        x = 0.0
        for token, fill, edge, thickness in cells:
            text = printable(decode(token))
            width = 0.5 + 0.2 * len(text)
            axes.add_patch(Rectangle((x, y - 0.4), width, 0.8, facecolor=fill, edgecolor=edge, linewidth=thickness))
            colour = GREY if fill == "white" else "black"
            style = {"fontsize": SMALL, "family": "monospace", "color": colour, "parse_math": False}
            axes.text(x + width / 2, y, text, ha="center", va="center", **style)
            if fill == "white":
                axes.plot([x + 0.1, x + width - 0.1], [y + 0.25, y - 0.25], color=GREY, linewidth=1)
            x += width + 0.12
    axes.autoscale_view()
    axes.set_yticks(range(len(shown)), [f"{i + 1}" for i in range(len(shown))])
    axes.set(xticks=[], ylabel="round")
    axes.spines["bottom"].set_visible(False)
    axes.invert_yaxis()
    return figure


def overlap(p: Sequence[float], q: Sequence[float], names: Sequence[str]) -> Figure:
    """p and q token by token: what they share is accepted; what p has beyond q is the residual distribution's."""
    both = [min(a, b) for a, b in zip(p, q, strict=True)]
    figure, axes = blank(f"Accepted: {sum(both):.3f}. Rejected, and drawn again from the residual: {1 - sum(both):.3f}")
    places = range(len(names))
    over = {"color": "white", "bottom": both}
    axes.bar(places, both, color=FILLS[0], edgecolor=BLUE, label="min(p, q): accepted")
    axes.bar(places, [a - b for a, b in zip(p, both, strict=True)], edgecolor=ORANGE, hatch="//", label="p above q", **over)
    excess = [a - b for a, b in zip(q, both, strict=True)]
    axes.bar(places, excess, edgecolor=GREY, linestyle=":", label="q above p: drafted too often", **over)
    axes.set_xticks(places, names)
    axes.set(ylabel="probability")
    axes.set_ylim(0, max(*p, *q) * 1.4)
    axes.legend(fontsize=SMALL, frameon=False, ncols=3)
    return figure


def acceptance_by_position(traces: Mapping[str, Trace]) -> Figure:
    """Of the drafted tokens that were tried at a position, the share that was accepted; a line a method."""
    series = {label: {i + 1: rate for i, rate in enumerate(trace.acceptance_by_position)} for label, trace in traces.items()}
    title = "Acceptance by position in the draft, given that all before it were accepted"
    return lines(series, title, "position in the draft", "share accepted", level=1)


def race(seconds: Mapping[str, Sequence[float]]) -> Figure:
    """Tokens written against time, from the seconds at which each method had written its 1st, 2nd, ... token."""
    figure, axes = blank("The race: tokens written against time")
    for i, (label, times) in enumerate(seconds.items()):
        axes.step(times, range(1, len(times) + 1), where="post", color=COLOURS[i % 5], linestyle=DASHES[i % 5], label=label)
        axes.plot(times[-1], len(times), marker=MARKERS[i % 5], color=COLOURS[i % 5])
    axes.set(xlabel="seconds", ylabel="tokens", xlim=(0, None), ylim=(0, None))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize=SMALL, frameon=False, loc="lower right")
    return figure


def tree(parents: Sequence[int], labels: Sequence[str], path: Sequence[int] = (), root: str = "pending") -> Figure:
    """A draft as a tree, from left to right: node i hangs below block position parents[i] and reads labels[i].

    `path`: the accepted block positions, drawn blue and with thick edges; the rest is white.
    """
    depths, children = [0], [[] for _ in range(len(parents) + 1)]
    for i, parent in enumerate(parents):
        depths.append(depths[parent] + 1)
        children[parent].append(i + 1)
    height, leaves = [0.0] * len(depths), 0

    def place(node: int) -> None:
        nonlocal leaves
        for child in children[node]:
            place(child)
        if children[node]:
            height[node] = (height[children[node][0]] + height[children[node][-1]]) / 2
        else:
            height[node], leaves = leaves, leaves + 1

    place(0)
    title = f"A tree of {len(parents)} nodes" + (f"; thick lines lead to the {len(path)} accepted" if path else "")
    figure, axes = blank(title, width=8.5, height=0.9 + 0.34 * max(3, leaves))
    taken, names = {0, *path}, [printable(text) for text in (root, *labels)]
    columns = [max(len(n) for n, d in zip(names, depths, strict=True) if d == depth) for depth in range(max(depths) + 1)]
    starts = [sum(columns[:depth]) + 5.0 * depth for depth in range(len(columns))]
    for i, parent in enumerate(parents, 1):
        style: Any = {"color": BLUE, "linewidth": 2.5} if i in taken else {"color": GREY, "linewidth": 1}
        ends = starts[depths[parent]] + len(names[parent]) + 0.8, starts[depths[i]] - 0.8
        axes.plot(ends, (height[parent], height[i]), **style)
    for i, name in enumerate(names):
        fill = FILLS[1] if i == 0 else FILLS[0] if i in taken else "white"
        edge = {"edgecolor": BLUE if i in taken else GREY, "linewidth": 2 if i in taken else 1}
        box = Rectangle((starts[depths[i]] - 0.7, height[i] - 0.38), len(name) + 1.4, 0.76, facecolor=fill, **edge)
        axes.add_patch(box)
        at = starts[depths[i]] + len(name) / 2
        axes.text(at, height[i], name, ha="center", va="center", fontsize=SMALL, family="monospace", parse_math=False)
    axes.set(xticks=[], yticks=[], xlim=(-2, starts[-1] + columns[-1] + 2), ylim=(leaves - 0.4, -0.6))
    axes.spines[["left", "bottom"]].set_visible(False)
    return figure


def mask(
    seen: Sequence[Sequence[bool]], names: Sequence[str], title: str = "Who sees whom: a row sees the filled columns"
) -> Figure:
    """An attention mask as a board: row i sees column j where it is filled. The rows bear the last of the names."""
    rows, columns = len(seen), len(seen[0])
    figure, axes = blank(title, width=2.2 + 0.34 * columns, height=1.4 + 0.34 * rows)
    for y, row in enumerate(seen):
        for x, filled in enumerate(row):
            style = {"facecolor": FILLS[0], "edgecolor": BLUE} if filled else {"facecolor": "white", "edgecolor": "#c8c8c8"}
            axes.add_patch(Rectangle((x - 0.45, y - 0.45), 0.9, 0.9, **style))
            if filled:
                axes.text(x, y, "×", ha="center", va="center", fontsize=SMALL)
    shown = [printable(name) for name in names]
    style: Any = {"fontsize": 9, "family": "monospace", "parse_math": False}
    axes.set_xticks(range(columns), shown, rotation=90, **style)
    axes.set_yticks(range(rows), shown[columns - rows :], **style)
    axes.set(xlim=(-0.6, columns - 0.4), ylim=(rows - 0.4, -0.6), aspect="equal")
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    return figure


def breakdown(parts: Mapping[str, Mapping[str, float]]) -> Figure:
    """Where the time of a token goes: a bar a method, its parts {name: milliseconds} on each other."""
    figure, axes = blank("Where the time of a token goes", height=1.2 + 0.45 * len(parts))
    left = [0.0] * len(parts)
    for i, name in enumerate(next(iter(parts.values()))):
        widths = [row[name] for row in parts.values()]
        style = {"color": FILLS[i % 5], "edgecolor": COLOURS[i % 5], "hatch": HATCHES[i % 5]}
        axes.barh(list(parts), widths, left=left, label=name, **style)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set(xlabel="milliseconds a token")
    axes.set_ylim(len(parts) - 0.4, -1.3)  # room for the legend
    axes.legend(fontsize=SMALL, frameon=False, ncols=4, loc="upper left")
    return figure
