"""Figures from a result of `minispec bench`, with their descriptions, and the page that holds tables and figures.

write(read_result(file), file)                        # FILE.md, and FILE/cost_curve.png and the others
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from minispec import notebook, plots
from minispec.bench import AUTOREGRESSIVE
from minispec.report import (
    PARTS,
    Bounds,
    Times,
    drafting,
    is_tree,
    kinds_of,
    mean_of,
    methods_of,
    named,
    of_kind,
    overlap,
    report,
)
from minispec.trace import Round, Trace
from minispec.tree import TokenTree

FEW = 30  # a rate over fewer tries is left out of a figure


@dataclass
class Drawn:
    """A figure and its description in words and numbers."""

    figure: Figure
    alt: str


def figures(result: dict[str, Any]) -> Iterator[tuple[str, Drawn]]:
    """(name, figure) of everything that the result can show."""
    ours = [name for name in methods_of(result) if Times(result, name).has_rounds]
    names = drafting(result)
    base, bounds = Times(result, AUTOREGRESSIVE), Bounds(result)
    times = {name: Times(result, name) for name in ours}

    curve = {n: seconds for n, seconds in bounds.curve.items() if n in (1, 2, 4, 8, 17, 33, 65)}
    said = listed({f"{n} tokens": seconds / curve[1] for n, seconds in curve.items()})
    dtype = result["machine"]["dtype"]
    yield "cost_curve", Drawn(plots.cost_curve({dtype: curve}), f"What a pass costs, in passes over one token: {said}")

    per_token = {name: {p[:-2]: 1e3 * s / mine.emitted() for p, s in mine.parts().items()} for name, mine in times.items()}
    shares = {name: parts["verify"] / sum(parts.values()) for name, parts in per_token.items()}
    alt = f"Milliseconds of decoding a token, by phase. The share of verification: {listed(shares)}"
    yield "breakdown", Drawn(plots.breakdown(per_token), alt)

    if names:
        rates = {name: zip(times[name].conditional(), times[name].tried(), strict=True) for name in names}
        few = {name: FEW * times[name].repeats() for name in names}  # repeats try the same tokens once more
        series = {n: {i: rate for i, (rate, tries) in enumerate(row, 1) if tries >= few[n]} for n, row in rates.items()}
        said = "; ".join(f"{name}: {', '.join(f'{rate:.2f}' for rate in row.values())}" for name, row in series.items())
        title = f"Acceptance by position, given that all before it were accepted ({FEW} tries or more)"
        figure = plots.lines(series, title, "position in the draft", "share accepted", level=1)
        yield "acceptance_by_position", Drawn(figure, f"{title}. {said}")

    if names and methods_of(result, 1):  # a batch mixes kinds
        kinds = kinds_of(result)
        rows = {name: [times[name].tokens_a_round(of_kind(result, times[name], kind)) for kind in kinds] for name in names}
        said = "; ".join(f"{name}: {listed(dict(zip(kinds, row, strict=True)))}" for name, row in rows.items())
        figure = plots.bars(rows, kinds, "Tokens a round, by kind of request", "tokens a round", level=1)
        yield "acceptance_by_kind", Drawn(figure, f"Tokens a round, by kind of request. {said}")

        each = {name: sorted(times[name].tokens_a_round([group]) for group in times[name].groups)[::-1] for name in names}
        spans = "; ".join(f"{name}: from {row[-1]:.2f} to {row[0]:.2f}" for name, row in each.items())
        series = {name: dict(enumerate(row, 1)) for name, row in each.items()}
        title = "Tokens a round, request by request"
        figure = plots.lines(series, title, "requests, from the best down", "tokens a round", level=1)
        axes, most = figure.axes[0], max(row[0] for row in each.values())
        axes.set(yscale="log", ylim=(0.9, 1.3 * most))  # most drafters lie between 1 and 2, and n-gram lookup may reach 8
        axes.set_yticks(ticks := [n for n in (1, 1.5, 2, 3, 4, 6, 8, 12, 16) if n < 1.3 * most], [f"{n:g}" for n in ticks])
        axes.minorticks_off()
        yield "acceptance_by_request", Drawn(figure, f"{title}. {spans}")

    if names:
        series = {name: by_context(result, times[name]) for name in names}
        said = "; ".join(f"{name}: {listed({f'up to {top}': v for top, v in row.items()})}" for name, row in series.items())
        title = "Tokens a round against the length of the context"
        figure = plots.lines(series, title, "tokens of context, up to", "tokens a round", level=1)
        yield "acceptance_by_context", Drawn(figure, f"{title}. {said}")

        first = result["requests"][0]["id"]
        for name in names:
            rounds = [example_round(r) for r in result["examples"][name]["rounds"]]
            texts = result["examples"][name]["texts"]
            if is_tree(result, name):
                best = max(rounds, key=lambda r: len(r.accepted))
                labels = [texts[str(id)] for id in best.tree.tokens[0].tolist()]
                figure = plots.tree(best.tree.parents[0].tolist(), labels, best.path)
                alt = f"{name}, the best first round on {first}: {len(best.path)} of a tree's {len(labels)} nodes accepted"
                yield f"tree_{file_name(name)}", Drawn(figure, alt)
            elif any(r.drafted for r in rounds):
                figure = plots.token_tape(Trace(rounds), lambda id, texts=texts: texts[str(id)])
                told = [f"{len(r.accepted)} of {len(r.drafted)}" for r in rounds[:12]]
                yield (
                    f"tape_{file_name(name)}",
                    Drawn(figure, f"{name} on {first}: accepted in the first rounds: {', '.join(told)}"),
                )

    if known := [name for name in names if result["rehearsals"][name]]:
        rows = {
            "observed": [times[name].decode_rate() / base.decode_rate() for name in known],
            "bound": [bounds.bound(name) for name in known],
            "best fixed length": [0 if is_tree(result, name) else bounds.best_fixed(name)[1] for name in known],
            "oracle": [bounds.oracle(name) for name in known],
        }
        if pair := bounds.pair():
            known = [*known, " or ".join(pair)]
            rows = {label: [*row, bounds.oracle(*pair) if label == "oracle" else 0] for label, row in rows.items()}
        there = {label: {n: v for n, v in zip(known, row, strict=True) if v} for label, row in rows.items()}
        said = "; ".join(f"{label}: {listed(values)}" for label, values in there.items())
        title = "Speedup: observed, bound, best fixed length (of chains) and oracle"
        yield "bounds", Drawn(plots.bars(rows, known, title, "speedup of decoding", level=1), f"{title}. {said}")

    middle = base.groups[len(base.groups) // 2]
    clocks = {name: arrivals(mine.runs[middle][0]) for name, mine in times.items()}
    ends = listed({name: clock[-1] for name, clock in clocks.items()})
    id = result["requests"][middle[0]]["id"]
    figure = plots.race(clocks)
    figure.axes[0].set_title(f"The race on request {id}: tokens written against time", fontsize=11, loc="left")
    yield "race", Drawn(figure, f"The race on request {id}: seconds at the last token: {ends}")

    if "ngram" in names and methods_of(result, 1):
        groups: dict[str, list[tuple[float, float]]] = {}
        for group in times["ngram"].groups:
            request = result["requests"][group[0]]
            share = overlap(request["prompt"], base.runs[group][0]["tokens"][0])
            gain = times["ngram"].rate([group]) / base.rate([group])
            groups.setdefault(request["kind"], []).append((share, gain))
        xs, ys = zip(*(pair for pairs in groups.values() for pair in pairs), strict=True)
        words = (
            f"linear correlation {statistics.correlation(xs, ys):.2f}"
            if len(set(xs)) > 1 and len(set(ys)) > 1
            else "one point"
        )
        title = "n-gram lookup: speedup against overlap"
        figure = plots.dots(groups, title, "share of the text that repeats prompt or text", "speedup", level=1)
        yield "overlap", Drawn(figure, f"{title}: {words}")

    for condition, key in (("batch", "batches"), ("temperature", "temperatures")):
        if len(values := result["settings"][key]) > 1:
            title = f"Speedup against {'batch size' if condition == 'batch' else condition}"
            series = {name: {} for name in names}
            for value in values:
                plain = Times(result, AUTOREGRESSIVE, **{condition: value})
                for name in drafting(result, **{condition: value}):
                    series[name][value] = Times(result, name, **{condition: value}).decode_rate() / plain.decode_rate()
            figure = plots.lines(series, title, condition, "speedup of decoding", level=1, log=condition == "batch")
            said = "; ".join(f"{name}: {listed(row)}" for name, row in series.items())
            yield f"speedup_by_{condition}", Drawn(figure, f"{title}. {said}")

    if len(values := [t for t in result["settings"]["temperatures"] if methods_of(result, temperature=t)]) > 1:
        rows = {
            f"temperature {value:g}": [100 * Times(result, name, temperature=value).share("accept_s") for name in names]
            for value in values
        }
        said = "; ".join(f"{label}: {listed(dict(zip(names, row, strict=True)))}" for label, row in rows.items())
        title = "What accepting takes, per cent of decoding"
        yield "accepting", Drawn(plots.bars(rows, names, title, "per cent"), f"{title}. {said}")


def file_name(name: str) -> str:
    """A method's name as part of a file's: Windows allows no colon there."""
    return name.replace(":", "_")


def listed(values: Mapping[Any, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


def example_round(stored: Sequence[Any]) -> Round:
    tokens, parents, path, emitted = stored
    return Round(tokens, emitted[: len(path)], emitted, path, TokenTree(torch.tensor([tokens]), torch.tensor([parents])))


def by_context(result: dict[str, Any], times: Times) -> dict[int, float]:
    """Tokens a round by the tokens of context that the round saw: up to 100, up to 200, up to 400, and so on."""
    emitted: dict[int, list[int]] = {}
    for run in (run for runs in times.runs.values() for run in runs):
        for place, rounds in zip(run["rows"], run["rounds"], strict=True):
            seen = len(result["requests"][place]["prompt"])
            for r in map(named, rounds):
                top = next(100 * 2**i for i in range(30) if seen <= 100 * 2**i)
                emitted.setdefault(top, []).append(r["emitted"])
                seen += r["emitted"]
    return {top: mean_of(emitted[top]) for top in sorted(emitted)}


def arrivals(run: dict[str, Any]) -> list[float]:
    """Seconds at which each token of the first row was there."""
    at = [run["ttft_s"]]
    for r in map(named, run["rounds"][0]):
        at += [at[-1] + sum(r[part] for part in PARTS)] * r["emitted"]
    return at


def write(result: dict[str, Any], file: Path) -> Path:
    """Tables and figures of a result that is kept in `file`: FILE.md beside it, and FILE/*.png. Returns the page."""
    folder, page = file.with_suffix(""), file.with_suffix(".md")
    blocks = [report(result, per_request=True)]
    for name, drawn in figures(result) if result["runs"] else ():
        folder.mkdir(exist_ok=True)
        part = folder / f".{name}.part"
        part.write_bytes(notebook.png(drawn.figure))
        part.replace(folder / f"{name}.png")
        blocks.append(f"![{drawn.alt}]({folder.name}/{name}.png)")
    part = page.with_name(f".{page.name}.part")
    part.write_text("\n\n".join(blocks) + "\n")
    part.replace(page)
    return page
