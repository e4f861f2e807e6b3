"""What the notebooks need beside the method: a figure with its words, and a mark on what depends on the machine.

    show(plots.cost_curve(curves), alt="...", numbers="...")    # the picture, its alt text, the line of numbers it draws
    print(f"a pass takes {here('26 ms')}")                      # a pass takes ⟦26 ms⟧

What stands between ⟦ and ⟧ is a reading of the machine that ran the cell: yours will differ, and the checks on the notebooks
leave it out. All else in an output is the same everywhere.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Without ipywidgets, tqdm warns that it cannot draw its bar in a notebook. Notebooks here show no bar.
warnings.filterwarnings("ignore", message="IProgress not found")


def here(reading: object) -> str:
    """Mark a time, a size of memory or another property of this machine."""
    return f"⟦{reading}⟧"


def png(figure: Figure) -> bytes:
    """The picture in 64 colours: a third of the size, and a notebook holds many."""
    from PIL import Image

    whole, small = io.BytesIO(), io.BytesIO()
    figure.savefig(whole, format="png")
    Image.open(whole).convert("RGB").quantize(64).save(small, "png", optimize=True)
    return small.getvalue()


def show(figure: Figure, alt: str, numbers: str) -> None:
    """Show a figure under its line of numbers. `alt`: what it shows, for those who do not see it."""
    from IPython.display import display

    print(numbers)
    picture = {"image/png": png(figure), "text/plain": alt}
    display(picture, raw=True, metadata={"image/png": {"alt": alt}})
