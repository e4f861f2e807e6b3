"""The widgets: their figures read number by number, and their live versions driven as a reader would, without a browser."""

import re
import sys
from itertools import pairwise, product
from math import prod
from pathlib import Path

import pytest
import torch
from matplotlib.patches import Rectangle

import minispec as ms
from minispec import explorers, theory, widgets
from minispec.notebook import png
from minispec.plots import BLUE, GREY, ORANGE

CURVE = {1: 0.026, 4: 0.030, 8: 0.036, 16: 0.070}
P = (4, 3, 2, 1)
LAWS = [(P, (1, 2, 3, 4)), (P, (3, 4, 2, 1)), (P, (5, 5, 0, 0)), ((1, 0, 0, 0), (0, 0, 0, 1)), ((0, 1, 0, 2), (7, 1, 1, 1))]


def look_up(seed, prompt, eos_id=None):
    """A real generation by a toy whose text repeats itself, so that lookup drafts."""
    lm, drafter = ms.toy(vocab_size=3, seed=seed, eos_id=eos_id), ms.NGram(1, 3, 4)
    return ms.generate(lm, torch.tensor(prompt), drafter=drafter, max_new_tokens=24)


@pytest.fixture(scope="module")
def plain():
    """With empty drafts, rejected ones and accepted ones."""
    generation = look_up(1, [1, 0, 1, 0, 1])
    kinds = {(bool(r.drafted), len(r.accepted) == len(r.drafted)) for r in generation.trace.rounds}
    assert kinds == {(False, True), (True, False), (True, True)}
    return generation


@pytest.fixture(scope="module")
def cut():
    """Ended by EOS inside a draft."""
    generation = look_up(7, [1, 2, 1, 1, 1, 2, 1, 0], eos_id=1)
    assert [r.was_cut for r in generation.trace.rounds] == [False, False, True]
    return generation


def normalised(weights):
    return pytest.approx([x / sum(weights) for x in weights], abs=1e-12)


def bars(axes):
    """Heights of each series of bars."""
    return [[bar.get_height() for bar in group] for group in axes.containers]


def words(axes):
    return [text.get_text() for text in axes.texts]


# Acceptance


@pytest.mark.parametrize(("p", "q"), LAWS)
def test_the_emitted_law_is_p_and_the_residual_sums_to_one(p, q):
    overlap, residual, emitted = widgets.acceptance(p, q).axes
    accepted, above, excess = bars(overlap)
    assert [a + b for a, b in zip(accepted, above, strict=True)] == normalised(p)
    assert [a + b for a, b in zip(accepted, excess, strict=True)] == normalised(q)
    assert sum(bars(residual)[0]) == pytest.approx(1)
    assert [a + b for a, b in zip(*bars(emitted), strict=True)] == normalised(p)
    assert [a for a, b in zip(bars(residual)[0], above, strict=True) if b == 0] == [0] * above.count(0)
    assert overlap.get_title("left") == f"accepted {sum(accepted):.2f}, rejected {1 - sum(accepted):.2f}"
    assert list(emitted.lines[0].get_ydata()) == normalised(p)


@pytest.mark.parametrize("q", [P, (8, 6, 4, 2), (0.4, 0.3, 0.2, 0.1)])
def test_nothing_is_rejected_where_p_equals_q(q):
    figure = widgets.acceptance(P, q)
    overlap, residual, emitted = figure.axes
    assert bars(residual) == [[0, 0, 0, 0]] and "empty" in residual.get_title("left")
    assert bars(emitted)[0] == normalised(P) and "rejected 0.00" in overlap.get_title("left")
    assert "nan" not in figure.get_label() and png(figure)
    assert all(bar.get_linewidth() for axes in figure.axes for group in axes.containers for bar in group), (
        "matplotlib 3.8 cannot dot an edge of no width"
    )


@pytest.mark.parametrize(("p", "q"), [((0, 0, 0, 0), P), (P, (0, 0, 0, 0)), (P, (1, -1, 1, 1))])
def test_weights_that_are_no_law_are_refused(p, q):
    with pytest.raises(ValueError, match="need a weight above 0"):
        widgets.acceptance(p, q)


# Rounds


def boxes(figure):
    """By row of the figure: (text, kind) of each framed token, from left to right."""
    (axes,) = figure.axes
    kinds = {(1, "black"): "pending", (1, BLUE): "blue", (2.5, ORANGE): "own", (1, GREY): "rejected"}
    rows = {}
    tokens = [text for text in axes.texts if text.get_family() == ["monospace"]]
    for patch, text in zip((p for p in axes.patches if isinstance(p, Rectangle)), tokens, strict=True):
        if patch.get_linewidth():
            edge = next(kind for (width, colour), kind in kinds.items() if same(patch, width, colour))
            rows.setdefault(round(text.get_position()[1]), []).append((text.get_text(), edge))
    return rows


def same(patch, width, colour):
    from matplotlib.colors import to_rgba

    return patch.get_linewidth() == width and patch.get_edgecolor() == to_rgba(colour)


def spell(token):
    return f"<{token}>"


def names(tokens, kind):
    return [(spell(token), kind) for token in tokens]


@pytest.mark.parametrize("which", ["plain", "cut"])
def test_every_step_shows_what_the_round_did(which, request):
    generation = request.getfixturevalue(which)
    rounds, text = generation.trace.rounds, generation.tokens.tolist()[:1]
    for number, r in enumerate(rounds):
        kept, own = r.accepted, r.emitted[len(r.accepted) :]
        draft, pending = names(r.drafted, "blue"), names(text[-1:], "pending")
        emitted = names(kept, "blue") + names(own, "own")
        rejected = names(r.drafted[len(kept) :], "rejected")
        rows = [[], draft, pending + draft, emitted + rejected, emitted]
        for phase in range(4):
            figure = widgets.round_step(generation.trace, spell, 4 * number + phase, before=text[:1])
            want = {y: row for y, row in enumerate(rows[: phase + 2]) if row}
            assert boxes(figure) == want
            assert "".join(words(figure.axes[0])[1 : 1 + len(text[-8:])]) == "".join(map(spell, text[-8:]))
            assert figure.axes[0].get_title("left") == f"Round {number + 1} of {len(rounds)}"
        assert png(figure)
        text += r.emitted
        last = "end" if r.was_cut else "correction" if rejected else "bonus" if draft else "target's token"
        assert f"accept: {len(kept)} of {len(r.drafted)}, then the {last};" in figure.get_label()
        assert figure.get_label().endswith(f"commit: {len(r.emitted)} written, {len(rejected)} forgotten")
    assert text == generation.tokens.tolist()


def test_a_step_that_there_is_not_is_refused(plain):
    for step in (-1, 4 * len(plain.trace.rounds)):
        with pytest.raises(ValueError, match="steps, counted from 0"):
            widgets.round_step(plain.trace, spell, step)
    assert not boxes(widgets.round_step(plain.trace, spell, 0)), "without `before`, and nothing drafted: no token to show"


@pytest.mark.filterwarnings("error")
def test_any_text_is_drawn_as_it_is(plain):
    texts = iter(["$x$", "\n", " a b", "\t", "\U0001f600", "\ufffd", "日", "_^{", "\\frac"] * 9)
    figure = widgets.round_step(plain.trace, lambda _: next(texts), 4 * len(plain.trace.rounds) - 1)
    assert png(figure) and {"$x$", "↵", "□"} <= set(words(figure.axes[0]))


def test_a_long_draft_fits(plain):
    figure = widgets.round_step(plain.trace, lambda token: "incomprehensible" * 2, 4 * 6 + 3)
    (axes,) = figure.axes
    assert max(p.get_x() + p.get_width() for p in axes.patches) <= axes.get_xlim()[1]
    assert max(text.get_fontsize() for text in axes.texts if text.get_family() == ["monospace"]) < 8


# Speedup


def interpolated(n):
    sizes = sorted(CURVE)
    low, high = max(s for s in sizes if s <= n), min(s for s in sizes if s >= n)
    return CURVE[low] if low == high else CURVE[low] + (CURVE[high] - CURVE[low]) * (n - low) / (high - low)


@pytest.mark.parametrize("acceptance", [0.0, 0.4, 0.8, 1.0])
@pytest.mark.parametrize("draft_cost", [0.0, 0.05, 0.5])
def test_the_lines_are_the_bound_and_the_stars_the_best(acceptance, draft_cost):
    figure = widgets.speedup(acceptance, 4, draft_cost, CURVE)
    lines = figure.axes[0].lines
    curves = [line for line in lines if len(line.get_xdata()) == 13]
    stars = [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines if line.get_marker() == "*"]
    each = draft_cost * CURVE[1]
    costs = (interpolated, lambda n: CURVE[1])
    for line, star, cost, note in zip(curves, stars, costs, words(figure.axes[0]), strict=True):
        rates = [acceptance] * 12
        expected = [theory.speedup_bound(theory.expected_tokens(rates[:n]), cost, n, n * each) for n in range(13)]
        assert list(line.get_xdata()) == list(range(13)) and line.get_ydata() == pytest.approx(expected)
        assert star == pytest.approx(theory.best_draft_length(rates, cost, each))
        assert note == f"best: {star[0]}" and star[1] == pytest.approx(max(expected))
    assert [line.get_linestyle() for line in curves] == ["-", "--"]
    assert f"4 drafted: ⟦{curves[0].get_ydata()[4]:.2f} (best {stars[0][1]:.2f} at {stars[0][0]})⟧" in figure.get_label()


def test_only_what_the_machine_decides_is_marked():
    labels = [widgets.speedup(0.7, 3, 0.1, {1: s, 16: 1}).get_label() for s in (0.1, 0.5)]
    assert labels[0] != labels[1]
    assert re.sub("⟦.*?⟧", "", labels[0]) == re.sub("⟦.*?⟧", "", labels[1])


@pytest.mark.parametrize("curve", [{1: 0.1, 12: 0.2}, {2: 0.1, 16: 0.2}])
def test_a_curve_that_is_too_short_is_refused(curve):
    with pytest.raises(ValueError, match="must reach from 1 to 13"):
        widgets.speedup(0.5, 4, 0.1, curve)


# Trees

RATES = [[0.4, 0.13, 0.08], [0.3, 0.1, 0.05], [0.2, 0.1, 0.05]]
LONG = {1: 0.026, 9: 0.036, 25: 0.080}


def by_hand(paths):
    return sum(prod(RATES[depth][rank] for depth, rank in enumerate(path)) for path in paths)


@pytest.mark.parametrize("budget", [0, 1, 4, 24])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_tree_is_the_best_of_its_size_and_its_lines_are_its_worth(budget, depth):
    figure = widgets.trees(budget, depth, RATES, LONG)
    drawn, tokens, times = figure.axes
    paths = [path for length in range(1, depth + 1) for path in product(range(3), repeat=length)]
    worth = sorted((by_hand([path]) for path in paths), reverse=True)[:24]
    n = min(budget, len(worth))
    most = [1 + sum(worth[:size]) for size in range(len(worth) + 1)]
    shown = [float(text.split(":")[1]) for text in words(drawn) if text.startswith("#")]
    assert sorted(shown, reverse=True) == pytest.approx(worth[:n], abs=0.006)
    assert list(tokens.lines[0].get_ydata()) == pytest.approx(most)
    passes = [0.026 + 0.00125 * min(size, 8) + 0.00275 * max(0, size - 8) for size in range(len(most))]
    mine = [t / 0.026 / e for t, e in zip(passes, most, strict=True)]
    assert list(times.lines[0].get_ydata()) == pytest.approx(mine)
    assert list(times.lines[1].get_ydata()) == pytest.approx([1 / e for e in most])
    best = mine.index(min(mine))
    assert f"⟦{mine[n]:.2f} (best {min(mine):.2f}, with {best} nodes)⟧" in figure.get_label()
    assert figure.get_label().startswith(f"{n} nodes, {depth} deep at most: {most[n]:.2f} tokens a round")
    assert png(figure)


def test_a_tree_that_cannot_be_is_refused():
    for depth in (0, 4):
        with pytest.raises(ValueError, match="depths 1 to 3"):
            widgets.trees(4, depth, RATES, LONG)
    with pytest.raises(ValueError, match="must reach from 1 to 25"):
        widgets.trees(4, 2, RATES, {1: 0.1, 24: 0.2})


# Batches


def passes_of(tokens):
    """Seconds of a pass by hand: CURVE, and behind its last point on as between the last two."""
    return interpolated(tokens) if tokens <= 16 else 0.070 + (tokens - 16) * (0.070 - 0.036) / 8


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(("chain", "nodes"), [(0, 0), (1, 3), (4, 5)])
def test_a_batch_is_one_pass_over_all_that_its_rows_draft(chain, nodes, acceptance):
    figure = widgets.batches(5, chain, nodes, acceptance, CURVE)
    ranks = [acceptance, *(acceptance * ((1 - acceptance) / 2) ** rank for rank in (1, 2, 3))]
    paths = [path for length in range(1, nodes + 1) for path in product(range(4), repeat=length)]
    worth = sorted((prod(ranks[rank] for rank in path) for path in paths), reverse=True)[:nodes]
    drafts = (
        (f"chain of {chain}", chain, sum(acceptance**i for i in range(chain + 1))),
        (f"tree of {nodes}", nodes, 1 + sum(worth)),
    )
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 7]
    for line, (name, drafted, tokens) in zip(lines, drafts, strict=True):
        gain = {b: tokens * passes_of(b) / passes_of(b * (1 + drafted)) for b in range(1, 65)}
        pays = [b for b in gain if gain[b] > 1]
        assert line.get_label() == name and list(line.get_xdata()) == [1, 2, 4, 8, 16, 32, 64]
        assert list(line.get_ydata()) == pytest.approx([gain[b] for b in line.get_xdata()])
        until = f"gains up to batch {pays[-1]}" if pays else "gains at no batch"
        assert f"{name}: {tokens:.2f} tokens a round, speedup {gain[5]:.2f}, {until}" in figure.get_label()
    assert png(figure)


def test_where_a_pass_costs_the_same_over_any_number_a_batch_takes_nothing_away():
    chain, tree, *_ = widgets.batches(1, 3, 9, 0.6, {1: 0.5, 2: 0.5}).axes[0].lines
    assert list(chain.get_ydata()) == pytest.approx([1 + 0.6 + 0.36 + 0.216] * 7)
    assert min(tree.get_ydata()) == max(tree.get_ydata()) > 2.176


def test_a_batch_that_cannot_be_is_refused():
    for batch in (0, 65):
        with pytest.raises(ValueError, match=f"1 to 64 rows here, not {batch}"):
            widgets.batches(batch, 4, 8, 0.5, CURVE)
    for curve in ({2: 0.1, 16: 0.2}, {1: 0.1}):
        with pytest.raises(ValueError, match="must begin at 1 token and have two points"):
            widgets.batches(4, 4, 8, 0.5, curve)


# Race


def test_the_race_draws_the_events():
    events = {"plain": [(0.5, [1]), (0.7, [2]), (0.9, [3])], "fast": [(0.5, [1]), (0.8, [2, 3])]}
    figure = widgets.race(events)
    stairs = [line for line in figure.axes[0].lines if line.get_drawstyle() == "steps-post"]
    assert [list(line.get_xdata()) for line in stairs] == [[0.5, 0.7, 0.9], [0.5, 0.8, 0.8]]
    assert [list(line.get_ydata()) for line in stairs] == [[1, 2, 3], [1, 2, 3]]
    assert figure.get_label() == "plain: 3 tokens, 3 passes, ⟦0.90 s⟧; fast: 3 tokens, 2 passes, ⟦0.80 s⟧"


def test_a_race_is_fair(plain):
    lm, prompt = ms.toy(vocab_size=3, seed=1), torch.tensor([1, 0, 1, 0, 1])
    drafters = {"autoregressive": None, "n-gram": ms.NGram(1, 3, 4)}
    before = {}
    for events in widgets.race_run(lm, prompt, drafters, max_new_tokens=24):
        grown = [label for label in events if len(events[label]) > before.get(label, (0, 0))[0]]
        spent = {label: before.get(label, (0, 0.0))[1] for label in drafters}
        others = [spent[label] for label in drafters if sum(len(new) for _, new in events.get(label, ())) < 24]
        assert len(grown) == 1 and spent[grown[0]] <= min([*others, spent[grown[0]]]), "who has spent least goes next"
        before = {label: (len(passes), passes[-1][0]) for label, passes in events.items()}
    for passes in events.values():
        assert [x for _, new in passes for x in new] == plain.tokens.tolist()
        assert all(a < b for (a, _), (b, _) in pairwise(passes))
    assert [len(events[label]) for label in drafters] == [24, len(plain.trace.rounds) + 1]


def test_two_methods_may_not_share_a_drafter():
    drafter = ms.NGram()
    with pytest.raises(ValueError, match="a drafter of its own"):
        next(widgets.race_run(ms.toy(), torch.tensor([1]), {"a": drafter, "b": drafter}))


# Panels


@pytest.fixture
def shown(monkeypatch):
    """What `notebook.show` is called with."""
    calls = []
    monkeypatch.setattr("minispec.notebook.show", lambda *call: calls.append(call))
    return calls


def panels(generation):
    return {
        "acceptance": widgets.acceptance_panel,
        "rounds": lambda: widgets.round_panel(generation.trace, spell, generation.tokens[:1].tolist()),
        "speedup": lambda: widgets.speedup_panel(CURVE),
        "trees": lambda: widgets.trees_panel(RATES, LONG),
        "batches": lambda: widgets.batches_panel(CURVE),
        "race": lambda: widgets.race_panel({"plain": [(0.5, [1]), (0.7, [2])], "fast": [(0.5, [1]), (0.6, [2])]}),
    }


@pytest.mark.parametrize(
    ("name", "count"), [("acceptance", 3), ("rounds", 3), ("speedup", 3), ("trees", 3), ("batches", 3), ("race", 1)]
)
def test_a_panel_shows_a_few_figures_without_ipywidgets(name, count, plain, shown, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    panels(plain)[name]()
    assert len(shown) == count
    for figure, alt, numbers in shown:
        assert png(figure).startswith(b"\x89PNG") and figure.get_facecolor() == (1, 1, 1, 1)
        assert numbers == figure.get_label() and len(numbers) > 40
        assert len(alt) > 30 and "⟦" not in alt
    assert len({alt for _, alt, _ in shown}) == count, "each alt text says which setting it is"


def test_alt_texts_and_unmarked_numbers_do_not_depend_on_the_machine(shown):
    for scale in (1, 7):
        widgets.speedup_panel({n: scale * s + scale * 0.01 * n for n, s in CURVE.items()})
        widgets.race_panel({"plain": [(0.5 * scale, [1]), (0.7 * scale, [2])]})
        widgets.trees_panel(RATES, {n: scale * s + scale * 0.01 * n for n, s in LONG.items()})
    fixed = [(alt, re.sub("⟦.*?⟧", "", numbers)) for _, alt, numbers in shown]
    assert fixed[:7] == fixed[7:]


# Live


def parts(box):
    """All widgets in a box, by class and description (by class and number where they have none)."""
    found = {}

    def add(widget):
        for child in getattr(widget, "children", ()):
            kind = type(child).__name__
            same_kind = sum(1 for other, _ in found if other == kind)
            found[kind, getattr(child, "description", "") or same_kind] = child
            add(child)

    add(box)
    return found


def moves(box, slider, value):
    """Set a slider; the picture and the line after it."""
    found = parts(box)
    picture, line = found["Image", 0], found["HTML", 0]
    before = bytes(picture.value)
    found["IntSlider", slider].value = value
    assert bytes(picture.value).startswith(b"\x89PNG") and bytes(picture.value) != before
    return line.value


def test_acceptance_live_follows_every_slider():
    box = widgets.acceptance_live()
    for slider, value in [(f"{law}({token})", 9) for law in "pq" for token in "abcd"]:
        moves(box, slider, value)
    assert "p 0.25 0.25 0.25 0.25; q 0.25 0.25 0.25 0.25; accepted 1.00:" in parts(box)["HTML", 0].value


def test_acceptance_live_says_what_is_wrong_and_recovers():
    box = widgets.acceptance_live()
    for token in "abcd":
        parts(box)["IntSlider", f"p({token})"].value = 0
    assert parts(box)["HTML", 0].value == "p and q each need a weight above 0, and none below"
    assert parts(box)["Image", 0].layout.display == "none", "the picture of other weights is put away"
    assert "p 0.00 1.00 0.00 0.00" in moves(box, "p(b)", 2)
    assert parts(box)["Image", 0].layout.display is None


def test_round_live_steps_by_slider_buttons_and_play(plain):
    box = widgets.round_live(plain.trace, spell, plain.tokens[:1].tolist())
    found, last = parts(box), 4 * len(plain.trace.rounds) - 1
    slider = found["IntSlider", "step"]
    assert (slider.min, slider.max, found["Play", 0].min, found["Play", 0].max) == (0, last, 0, last)
    assert moves(box, "step", 5).startswith("Round 2 of 11; draft: 1 guessed; verify: one pass over 2")
    found["Button", "next"].click()
    assert slider.value == 6 and "accept:" in found["HTML", 0].value
    found["Button", "previous"].click()
    found["Button", "previous"].click()
    assert slider.value == 4 and "verify" not in found["HTML", 0].value
    slider.value = 0
    found["Button", "previous"].click()
    assert slider.value == 0
    slider.value = last
    found["Button", "next"].click()
    assert slider.value == last


def test_speedup_live_follows_every_slider():
    box = widgets.speedup_live(CURVE)
    for slider, value in (("acceptance, %", 60), ("drafted", 7), ("draft cost, %", 20)):
        line = moves(box, slider, value)
    assert line == widgets.speedup(0.6, 7, 0.2, CURVE).get_label()
    for slider, value in (
        ("acceptance, %", 0),
        ("drafted", 0),
        ("draft cost, %", 100),
        ("acceptance, %", 100),
        ("drafted", 12),
    ):
        moves(box, slider, value)


def test_trees_live_follows_every_slider():
    box = widgets.trees_live(RATES, LONG)
    for slider, value in (("nodes", 24), ("levels", 1), ("nodes", 0), ("nodes", 3), ("levels", 2)):
        line = moves(box, slider, value)
    assert line == widgets.trees(3, 2, RATES, LONG).get_label()
    parts(box)["IntSlider", "levels"].value = 0
    assert "depths 1 to 3" in parts(box)["HTML", 0].value and parts(box)["Image", 0].layout.display == "none"


def test_batches_live_follows_every_slider():
    box = widgets.batches_live(CURVE)
    for slider, value in (("batch", 9), ("chain", 2), ("tree, nodes", 7), ("acceptance, %", 65)):
        line = moves(box, slider, value)
    assert line == widgets.batches(9, 2, 7, 0.65, CURVE).get_label()
    parts(box)["IntSlider", "batch"].value = 0
    assert "1 to 64 rows" in parts(box)["HTML", 0].value and parts(box)["Image", 0].layout.display == "none"


def test_race_live_runs_on_the_readers_prompt(target):
    prompt = "Repeat this twice, then stop: The quick brown fox jumps over the lazy dog near the river bank."
    drafters = {"autoregressive": None, "n-gram": ms.NGram(2, 4, 6)}
    box = widgets.race_live(target, drafters, prompt, max_new_tokens=10)
    found = parts(box)
    found["Button", "Run"].click()
    want = ms.generate(target, prompt, max_new_tokens=10)
    line, *texts = [widget.value for (kind, _), widget in found.items() if kind == "HTML"]
    assert texts[0] == texts[1] and re.sub("<.*?>", "", texts[0]) == want.text
    assert re.fullmatch(r"autoregressive: 10 tokens, 10 passes, ⟦[\d.]+ s⟧; n-gram: 10 tokens, 4 passes, ⟦[\d.]+ s⟧", line)
    assert bytes(found["Image", 0].value).startswith(b"\x89PNG") and not found["Button", "Run"].disabled
    found["Text", "prompt"].value = "  "
    found["Button", "Run"].click()
    assert "empty" in found["HTML", 0].value and "<" not in found["HTML", 0].value
    assert not found["Button", "Run"].disabled


def test_race_live_waits_for_one_race_at_a_time(monkeypatch):
    """The button is off while a race runs, and on again even if the reader interrupts it."""
    seen = []

    def run(*_):
        seen.append(parts(box)["Button", "Run"].disabled)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(widgets, "race_run", run)
    box = widgets.race_live(ms.toy(), {"a": None, "b": ms.NGram()})
    with pytest.raises(KeyboardInterrupt):
        parts(box)["Button", "Run"].click()
    assert seen == [True] and not parts(box)["Button", "Run"].disabled


def test_a_race_without_a_tokenizer_shows_one_line():
    box = widgets.race_live(ms.toy(), {"a": None, "b": ms.NGram()}, "hello")
    parts(box)["Button", "Run"].click()
    assert parts(box)["HTML", 0].value == "toy has no tokenizer; give the prompt as a 1-D tensor of ids"


def test_what_readers_write_is_never_markup():
    def draw(_):
        raise ValueError("<b>1 & 2</b>")

    assert parts(widgets.board(draw, {"x": (1, 2)}))["HTML", 0].value == "&lt;b&gt;1 &amp; 2&lt;/b&gt;"


def test_without_ipywidgets_one_line_says_what_to_do(monkeypatch, capsys, plain):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    for run in (
        widgets.acceptance_live,
        lambda: widgets.round_live(plain.trace, spell),
        lambda: widgets.speedup_live(CURVE),
        lambda: widgets.trees_live(RATES, LONG),
        lambda: widgets.batches_live(CURVE),
        lambda: widgets.race_live(ms.toy(), {"a": None, "b": ms.NGram()}),
    ):
        assert run() is None
        said = capsys.readouterr()
        assert said.out.count("\n") == 1 and "`pip install ipywidgets`" in said.out and not said.err


def test_only_core_widgets_are_used():
    source, figures = (Path(module.__file__).read_text() for module in (widgets, explorers))
    assert not re.search(r"\b(interact\w*|Output|ipympl|metadata|Thread|asyncio|pyplot)\b", source + figures)
    head = source.split("def live")[0]
    assert "import ipywidgets" not in head and source.count("import ipywidgets") == 1
    assert len(source.splitlines()) < 320
