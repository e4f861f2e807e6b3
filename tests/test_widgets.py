"""The widgets: their figures read number by number, and their live versions driven as a reader would, without a browser."""

import re
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
from matplotlib.patches import Rectangle  # noqa: E402

import minispec as ms  # noqa: E402
from minispec import theory, widgets  # noqa: E402
from minispec.notebook import png  # noqa: E402
from minispec.plots import BLUE, GREY, ORANGE  # noqa: E402
from minispec.trace import Round, Trace  # noqa: E402

CURVE = {1: 0.026, 4: 0.030, 8: 0.036, 16: 0.070}
P = (4, 3, 2, 1)
LAWS = [(P, (1, 2, 3, 4)), (P, (3, 4, 2, 1)), (P, (5, 5, 0, 0)), ((1, 0, 0, 0), (0, 0, 0, 1)), ((0, 1, 0, 2), (7, 1, 1, 1))]


@pytest.fixture(scope="module")
def trace():
    """A real generation by a toy, whose text repeats itself, so that lookup drafts: the last round is cut by the budget."""
    return generation().trace


def generation(**options):
    return ms.generate(
        ms.toy(vocab_size=3, seed=1), torch.tensor([1, 2, 0, 1, 2]), drafter=ms.NGram(1, 3, 4), max_new_tokens=24, **options
    )


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


@pytest.mark.parametrize(("p", "q"), [((0, 0, 0, 0), P), (P, (0, 0, 0, 0)), (P, (1, -1, 1, 1))])
def test_weights_that_are_no_law_are_refused(p, q):
    with pytest.raises(ValueError, match="need a weight above 0"):
        widgets.acceptance(p, q)
