"""The figures of the course: what is drawn is what was given, on an opaque ground, readable without colour."""

import numpy as np
import pytest
import torch
from matplotlib.image import imread

import minispec as ms
from minispec import plots
from minispec.notebook import here, png, show
from minispec.trace import Round, Trace
from minispec.tree import TokenTree

TWO = {"a": {1: 1.0, 2: 3.0}, "b": {1: 2.0, 4: 0.5}}


def trace():
    prompt = torch.tensor([1, 2, 0, 1, 2])
    return ms.generate(ms.toy(vocab_size=3, seed=1), prompt, drafter=ms.NGram(1, 3, 4), max_new_tokens=24).trace


FIGURES = {
    "lines": lambda: plots.lines(TWO, "title", "x", "y", level=1, log=True),
    "bars": lambda: plots.bars({"p": [0.2, 0.8], "q": [0.5, 0.5]}, ["a", "b"], "title", "y"),
    "dots": lambda: plots.dots({"a": [(0, 1), (1, 2)], "b": [(0.5, 1)]}, "title", "x", "y", level=1),
    "cost curve": lambda: plots.cost_curve({"float32": {1: 0.04, 4: 0.07, 8: 0.1}}),
    "tape": lambda: plots.token_tape(trace(), "abc".__getitem__),
    "overlap": lambda: plots.overlap([0.6, 0.3, 0.1], [0.3, 0.2, 0.5], "abc"),
    "acceptance": lambda: plots.acceptance_by_position({"lookup": trace()}),
    "tree": lambda: plots.tree([0, 0, 1, 1, 2], ["the", " a", " cat", " dog", "$x$"], path=[1, 4]),
    "breakdown": lambda: plots.breakdown({"plain": {"draft": 0, "verify": 40}, "ngram": {"draft": 1, "verify": 30}}),
    "mask": lambda: plots.mask([[True, True, False], [True, False, True]], ["a", "b", "c"]),
    "race": lambda: plots.race({"plain": [0.1, 0.2, 0.3], "lookup": [0.1, 0.2, 0.2]}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_opaque_and_white(name, tmp_path):
    (tmp_path / "figure.png").write_bytes(png(FIGURES[name]()))
    picture = imread(tmp_path / "figure.png")
    assert np.allclose(picture[[0, 0, -1, -1], [0, -1, 0, -1], :3], 1)
    assert picture.shape[2] == 3 or np.all(picture[..., 3] == 1)


def test_series_differ_without_colour():
    axes = plots.lines(TWO, "title", "x", "y").axes[0]
    assert len({(line.get_marker(), line.get_linestyle()) for line in axes.lines}) == 2
    axes = plots.bars({"p": [1], "q": [1], "r": [1]}, ["a"], "title", "y").axes[0]
    assert len({group[0].get_hatch() for group in axes.containers}) == 3


def test_numbers_are_drawn_as_given():
    axes = plots.cost_curve({"float32": {1: 0.04, 4: 0.07}}).axes[0]
    assert axes.lines[0].get_ydata() == pytest.approx([1, 1.75]) and "40 ms" in axes.get_legend().texts[0].get_text()
    both, p_above, q_above = plots.overlap([0.6, 0.4], [0.3, 0.7], "ab").axes[0].containers
    assert [bar.get_height() for bar in both] == pytest.approx([0.3, 0.4])
    assert [bar.get_height() for bar in p_above] == pytest.approx([0.3, 0])
    assert [bar.get_height() for bar in q_above] == pytest.approx([0, 0.3])
    rates = trace().acceptance_by_position
    assert list(plots.acceptance_by_position({"a": trace()}).axes[0].lines[0].get_ydata()) == rates


def test_the_tape_shows_what_was_accepted_rejected_and_added():
    kept, cut = ([5, 6, 7], [5], [5, 9], [1]), ([5, 6], [5, 6], [5, 6], [1, 2])  # the second ends within its draft
    rounds = [Round(*parts, TokenTree.chain([parts[0]])) for parts in (kept, cut)]
    figure = plots.token_tape(Trace(rounds), lambda token: {5: "$x$", 6: " y", 7: "\n", 9: "\U0001f600"}[token])
    png(figure)  # a token that looks like a formula, or that the font lacks, warns nobody
    assert [text.get_text() for text in figure.axes[0].texts] == ["$x$", "□", "␣y", "↵", "$x$", "␣y"]
    assert sum(line.get_linewidth() == 1 for line in figure.axes[0].lines) == 2  # struck out


def test_a_figure_is_shown_with_its_words_and_numbers(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *args, **options: shown.append((args, options)))
    show(FIGURES["lines"](), alt="two lines", numbers=f"3 and {here(4)}")
    assert capsys.readouterr().out == "3 and ⟦4⟧\n"
    (picture,), options = shown[0]
    assert picture["text/plain"] == options["metadata"]["image/png"]["alt"] == "two lines"
    assert picture["image/png"].startswith(b"\x89PNG")


def test_a_tree_hangs_together_and_its_accepted_path_is_filled():
    parents = [0, 0, 1, 1, 2]
    axes = plots.tree(parents, ["a", "b", "c", "d", "e"], path=[1, 4]).axes[0]
    boxes = axes.patches
    assert [text.get_text() for text in axes.texts] == ["pending", *"abcde"]
    x, y = zip(*((box.get_x(), box.get_y()) for box in boxes), strict=True)
    assert x[0] < x[1] == x[2] < x[3] == x[4] == x[5] and len(set(y[3:])) == 3
    thick = [line.get_linewidth() > 2 for line in axes.lines]
    assert thick == [True, False, False, True, False]
    white = [box.get_facecolor()[:3] == (1, 1, 1) for box in boxes]
    assert white == [False, False, True, True, False, True]
    assert plots.tree([], []).axes[0].texts[0].get_text() == "pending", "a tree without nodes"


def test_a_mask_is_filled_where_a_row_sees_a_column():
    axes = plots.mask([[True, True, False], [True, False, True]], ["a", "b", "c"]).axes[0]
    assert [(text.get_position()) for text in axes.texts] == [(0, 0), (1, 0), (0, 1), (2, 1)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "c"], "the last rows' names"


def test_the_parts_of_a_token_lie_end_to_end():
    axes = plots.breakdown({"plain": {"draft": 1.0, "verify": 40.0}, "ngram": {"draft": 2.0, "verify": 30.0}}).axes[0]
    draft, verify = axes.containers
    assert [bar.get_width() for bar in verify] == [40, 30] and [bar.get_x() for bar in verify] == [1, 2]
    assert len({bars[0].get_hatch() for bars in (draft, verify)}) == 2
