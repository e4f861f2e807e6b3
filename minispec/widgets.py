"""Widgets of the course: each is a figure made from a state, a panel of it in a few states, and a live version.

    acceptance([4, 3, 2, 1], [1, 2, 3, 4])                # a Figure; acceptance_panel() shows three, acceptance_live() moves

Figures are pure functions, and carry their line of numbers as their label. Live versions use core ipywidgets, 7.7 or later.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from minispec import notebook, plots, text
from minispec.decode import generate, stream
from minispec.explorers import batches, speedup, trees
from minispec.plots import BLUE, FILLS, GREY, ORANGE
from minispec.trace import Trace


def live() -> Any:
    """The module ipywidgets; None, after a line on what to do, if it is missing."""
    try:
        import ipywidgets
    except ImportError:
        return print("ipywidgets is missing, so nothing moves: `pip install ipywidgets`. The panel above shows the same.")
    return ipywidgets


def board(draw: Callable[..., Figure], sliders: Mapping[str, tuple[int, int]]) -> Any:
    """Sliders {name: (start, largest)}, and a line and a picture that follow them: `draw` of their values."""
    if (w := live()) is None:
        return None
    controls, words, image = [], w.HTML(), w.Image(format="png", layout=w.Layout(align_self="flex-start"))

    def update(_: Any = None) -> None:
        try:
            figure = draw(*[control.value for control in controls])
            image.value, words.value, image.layout.display = notebook.png(figure), escape(str(figure.get_label())), None
        except ValueError as error:  # the picture of other values would contradict it
            words.value, image.layout.display = escape(str(error)), "none"

    for name, (start, largest) in sliders.items():
        controls.append(w.IntSlider(value=start, max=largest, description=name, style={"description_width": "100px"}))
        controls[-1].observe(update, "value")
    update()
    return w.VBox([w.GridBox(controls, layout=w.Layout(grid_template_columns="320px 320px")), words, image])


def acceptance(p: Sequence[float], q: Sequence[float]) -> Figure:
    """Overlap, residual distribution and emitted law for weights p and q of four tokens. ValueError if all of one are 0."""
    if min(*p, *q) < 0 or not (sum(p) > 0 and sum(q) > 0):
        raise ValueError("p and q each need a weight above 0, and none below")
    low = np.minimum(target := np.array(p) / sum(p), draft := np.array(q) / sum(q))
    rejected = (target - low).sum() * ((target - low).sum() > 1e-12)  # less is rounding
    rest = (target - low) / rejected if rejected else 0 * target
    kept: Any = {"facecolor": FILLS[0], "edgecolor": BLUE, "label": "min(p, q): accepted"}
    again: Any = {"facecolor": "white", "edgecolor": ORANGE, "hatch": "//", "label": "p above q: from the residual"}
    over: Any = {"facecolor": "white", "edgecolor": GREY, "linestyle": ":", "label": "q above p: drafted too often"}
    parts = {
        f"accepted {1 - rejected:.2f}, rejected {rejected:.2f}": [(low, kept), (target - low, again), (draft - low, over)],
        "residual distribution" if rejected else "residual: empty, all is accepted": [(rest, again)],
        f"emitted: accepted + {rejected:.2f} × residual": [(low, kept), (rejected * rest, again)],
    }
    figure = Figure(figsize=(9.5, 3.3), dpi=100, facecolor="white", layout="constrained")
    for axes, (title, layers) in zip(figure.subplots(1, 3), parts.items(), strict=True):
        for i, (heights, style) in enumerate(layers):
            edges = np.where(heights > 1e-12, style["edgecolor"], "none")  # no width 0: matplotlib 3.8 cannot dot that
            axes.bar(range(4), heights, bottom=low if i else 0, **{**style, "edgecolor": edges})
        axes.set_title(title, loc="left", fontsize=11)
        axes.set(xticks=range(4), xticklabels="abcd", yticks=(0, 0.5, 1), xlim=(-0.6, 3.6), ylim=(0, 1.05))
        axes.spines[["top", "right"]].set_visible(False)
    marks = axes.plot(range(4), target, "k_", markersize=30, markeredgewidth=2.5, label="p")  # on the last part
    handles = [Patch(**kept), Patch(**again), Patch(**over), *marks]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    laws = {"p": target, "q": draft, f"accepted {sum(low):.2f}:": low, "residual": rest, "emitted": low + rejected * rest}
    figure.set_label("; ".join(f"{name} {' '.join(f'{x:.2f}' for x in law)}" for name, law in laws.items()))
    return figure


def acceptance_panel() -> None:
    """One target, three drafts."""
    for name, q in {"near p": (3, 4, 2, 1), "far from p": (1, 2, 3, 4), "without c and d": (5, 5, 0, 0)}.items():
        alt = f"Over four tokens, for a q {name}: the overlap of p and q, the residual, and the emitted law, equal to p."
        notebook.show(figure := acceptance((4, 3, 2, 1), q), alt, str(figure.get_label()))


def acceptance_live() -> Any:
    """Sliders for the weights of p and q, token by token."""
    start = {"p(a)": 4, "q(a)": 1, "p(b)": 3, "q(b)": 2, "p(c)": 2, "q(c)": 3, "p(d)": 1, "q(d)": 4}
    return board(lambda *x: acceptance(x[::2], x[1::2]), {name: (weight, 10) for name, weight in start.items()})


def round_step(trace: Trace, spell: Callable[[int], str], step: int, before: Sequence[int] = ()) -> Figure:
    """Round step // 4 of drafts in chains, up to phase step % 4: draft, verify, accept, commit. `spell`: a token's text;
    `before`: tokens before the rounds (a trace lacks the first, from prefill). ValueError for a step that there is not."""
    if not 0 <= step < 4 * len(trace.rounds):
        raise ValueError(f"this trace has {4 * len(trace.rounds)} steps, counted from 0, but step {step} was asked for")
    round, earlier = trace.rounds[step // 4], [*before, *(x for r in trace.rounds[: step // 4] for x in r.emitted)]
    n, kept = len(round.drafted), len(round.accepted)
    own = "the end" if round.was_cut else "the correction" if kept < n else "the bonus" if n else "the target's token"
    written = [(x, "none", "none", 0) for x in earlier[-8:]]  # token, fill, edge, thickness
    guesses = [(x, "white", BLUE, 1) for x in round.drafted]
    emitted = [(x, *((FILLS[0], BLUE, 1) if i < kept else (FILLS[1], ORANGE, 2.5))) for i, x in enumerate(round.emitted)]
    rows = [
        ("text so far", written),
        (f"draft\n{n} guessed", guesses),
        (f"verify\none pass over {1 + n}", [*((x, FILLS[3], "black", 1) for x in earlier[-1:]), *guesses]),
        (f"accept\n{kept} of {n}, then {own}", [*emitted, *((x, "white", GREY, 1) for x in round.drafted[kept:])]),
        (f"commit\n{len(emitted)} written, {n - kept} forgotten", written + emitted),
    ][: 2 + step % 4]
    figure, axes = plots.blank(f"Round {step // 4 + 1} of {len(trace.rounds)}", width=9.5, height=2.7)
    figure.set_label("; ".join([axes.get_title("left"), *(name.replace("\n", ": ") for name, _ in rows[1:])]))
    scale = max(1, *(sum(2 + len(spell(x)) for x, *_ in row) / 75 for _, row in rows))  # 75 characters fit
    style: dict[str, Any] = {"va": "center", "family": "monospace", "fontsize": 11 / scale, "parse_math": False}
    for y, (name, row) in enumerate(rows):
        axes.text(-27 * scale, y, name, va="center", fontsize=10)
        x = 0.0
        for token, fill, edge, thick in row:
            shown = plots.printable(spell(token)) if thick else plots.printable(spell(token)).replace("␣", " ")
            x, width = x + 0.8 * bool(thick), len(shown) + bool(thick)
            axes.add_patch(Rectangle((x, y - 0.34), width, 0.68, facecolor=fill, edgecolor=edge, linewidth=thick))
            axes.text(x + width / 2, y, shown, ha="center", color=GREY if edge == GREY else "black", **style)
            axes.plot([x, x + width], [y, y], color=GREY, linewidth=1.2 * (edge == GREY))
            x += width
    axes.set(xlim=(-27 * scale, 75 * scale), ylim=(4.5, -0.5), xticks=[], yticks=[], frame_on=False)
    return figure


def round_panel(trace: Trace, spell: Callable[[int], str], before: Sequence[int] = ()) -> None:
    """The first round of each kind (all accepted, some, none; nothing drafted; cut), three at most, after its last phase."""
    kinds = [(len(r.drafted) > 0, len(r.accepted) > 0, len(r.drafted) == len(r.accepted), r.was_cut) for r in trace.rounds]
    for number in sorted(map(kinds.index, set(kinds)))[:3]:
        words = str((figure := round_step(trace, spell, 4 * number + 3, before)).get_label())
        notebook.show(figure, f"A round as rows of framed tokens. {words}.", words)


def round_live(trace: Trace, spell: Callable[[int], str], before: Sequence[int] = ()) -> Any:
    """Step through the rounds with play, a slider or two buttons."""
    if (box := board(lambda step: round_step(trace, spell, step, before), {"step": (0, 4 * len(trace.rounds) - 1)})) is None:
        return None
    w, slider = live(), box.children[0].children[0]
    play, back, on = w.Play(max=slider.max, interval=1500), w.Button(description="previous"), w.Button(description="next")
    w.jslink((play, "value"), (slider, "value"))
    back.on_click(lambda _: setattr(slider, "value", slider.value - 1))
    on.on_click(lambda _: setattr(slider, "value", slider.value + 1))
    return w.VBox([w.HBox([play, back, on]), box])


def speedup_panel(curve: Mapping[int, float]) -> None:
    """An easy text with a cheap and with a dear draft, and a hard text."""
    for rate, cost in ((0.8, 0.05), (0.8, 0.3), (0.4, 0.05)):
        alt = f"Bound on the speedup by draft length, here and (dashed) ideally; acceptance {rate}, draft cost {cost}."
        notebook.show(figure := speedup(rate, 4, cost, curve), alt, str(figure.get_label()))


def speedup_live(curve: Mapping[int, float]) -> Any:
    """Sliders for acceptance, the draft's length and its cost."""
    sliders = {"acceptance, %": (80, 100), "drafted": (4, 12), "draft cost, %": (5, 100)}
    return board(lambda rate, num_tokens, cost: speedup(rate / 100, num_tokens, cost / 100, curve), sliders)


def trees_panel(rates: Sequence[Sequence[float]], curve: Mapping[int, float]) -> None:
    """A small tree, a larger one, and one of a single level."""
    for budget, depth in ((4, len(rates)), (16, len(rates)), (16, 1)):
        alt = f"A tree of at most {budget} nodes and {depth} levels; beside it tokens a round and time a token, by nodes."
        notebook.show(figure := trees(budget, depth, rates, curve), alt, str(figure.get_label()))


def trees_live(rates: Sequence[Sequence[float]], curve: Mapping[int, float]) -> Any:
    """Sliders for the tree's nodes and levels."""
    sliders = {"nodes": (8, 24), "levels": (min(3, len(rates)), len(rates))}
    return board(lambda nodes, levels: trees(nodes, levels, rates, curve), sliders)


def batches_panel(curve: Mapping[int, float]) -> None:
    """Guesses that are mostly right, a short draft of these, and guesses that are mostly wrong."""
    for chain, nodes, rate in ((4, 12, 0.8), (1, 3, 0.8), (4, 12, 0.5)):
        alt = f"Predicted speedup by batch size: a chain of {chain} and (dashed) a tree of {nodes}; acceptance {rate}."
        notebook.show(figure := batches(4, chain, nodes, rate, curve), alt, str(figure.get_label()))


def batches_live(curve: Mapping[int, float]) -> Any:
    """Sliders for the batch, both drafts and the acceptance."""
    sliders = {"batch": (4, 64), "chain": (4, 12), "tree, nodes": (12, 24), "acceptance, %": (80, 100)}
    return board(lambda batch, chain, nodes, rate: batches(batch, chain, nodes, rate / 100, curve), sliders)


def race(events: Mapping[str, Sequence[tuple[float, Sequence[int]]]]) -> Figure:
    """Tokens against seconds, from {method: [(seconds that it has spent so far, tokens that the pass emitted), ...]}."""
    at = {label: [seconds for seconds, new in passes for _ in new] for label, passes in events.items()}
    words = [f"{k}: {len(at[k])} tokens, {len(v)} passes, {notebook.here(f'{v[-1][0]:.2f} s')}" for k, v in events.items()]
    figure = plots.race(at)
    figure.set_label("; ".join(words))
    return figure


def race_run(lm: Any, prompt: Any, drafters: Mapping[str, Any], max_new_tokens: int = 64) -> Iterator[dict[str, list]]:
    """Let methods race; yields the events so far after each pass. Who has spent least time makes the next pass."""
    if len({*map(id, drafters.values())}) < len(drafters):
        raise ValueError("each method needs a drafter of its own")
    for drafter in drafters.values():  # what a process pays only once is paid before the start
        generate(lm, prompt, drafter, max_new_tokens=3)
    streams = {label: stream(lm, prompt, drafter, max_new_tokens=max_new_tokens) for label, drafter in drafters.items()}
    events, spent = {}, dict.fromkeys(streams, 0.0)
    while streams:
        label = min(streams, key=spent.__getitem__)
        start = time.perf_counter()
        event = next(streams[label], None)
        spent[label] += time.perf_counter() - start
        if event is None:
            del streams[label]
        else:
            events.setdefault(label, []).append((spent[label], [event] if isinstance(event, int) else event.emitted))
            yield events


def race_panel(events: Mapping[str, Sequence[tuple[float, Sequence[int]]]]) -> None:
    """The race whose events `race_run` yielded last."""
    notebook.show(figure := race(events), f"Stairs of tokens against seconds: {', '.join(events)}.", str(figure.get_label()))


def race_live(lm: Any, drafters: Mapping[str, Any], prompt: str = "Why is the sky blue?", max_new_tokens: int = 64) -> Any:
    """A prompt, two methods, and a button: both write at once, each with its tokens, passes and seconds."""
    if (w := live()) is None:
        return None
    ask, run = w.Text(value=prompt, description="prompt", layout=w.Layout(width="90%")), w.Button(description="Run")
    picks = [
        w.Dropdown(options=[*drafters], value=[*drafters][min(i, len(drafters) - 1)], description="method") for i in (0, 1)
    ]
    fields = [w.HTML(layout=w.Layout(margin="0 20px 0 0")) for _ in picks]
    words, image = w.HTML(), w.Image(format="png", layout=w.Layout(align_self="flex-start", display="none"))

    def start(_: Any) -> None:
        run.disabled, chosen = True, [pick.value for pick in picks]
        try:
            for events in race_run(lm, ask.value, {label: drafters[label] for label in chosen}, max_new_tokens):
                words.value = escape(str((figure := race(events)).get_label()))
                for field, label in zip(fields, chosen, strict=True):
                    written = text.decode(lm.tokenizer, [x for _, new in events.get(label, ()) for x in new])
                    field.value = f"<p style='white-space: pre-wrap; line-height: 1.4'>{escape(written)}</p>"
            image.value, image.layout.display = notebook.png(figure), None
        except ValueError as error:
            words.value = escape(str(error))
        finally:
            run.disabled = False

    run.on_click(start)
    sides = [w.VBox(side, layout=w.Layout(width="50%")) for side in zip(picks, fields, strict=True)]
    return w.VBox([w.HBox([ask, run]), words, w.HBox(sides), image])
