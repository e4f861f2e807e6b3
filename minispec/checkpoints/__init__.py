"""Drafters on disk: those that ship with the package, and those that others trained; and ours as others open them.

ms.generate(lm, prompt, drafter=load_drafter("draft", lm))            # shipped, for the default target
load_drafter("eagle", lm, "folder or hub id", tree="chain")           # ours, or in one of the published layouts
export_drafter(load_drafter("eagle", lm), lm, Path("out"), "vllm")    # a new folder for vLLM

`files.py` reads and writes folders whole or not at all; `draft.py`, `medusa.py` and `eagle.py` know the names, shapes and
flags of one method each.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from minispec.checkpoints.draft import export_draft, load_draft, save_draft
from minispec.checkpoints.eagle import export_eagle, load_eagle, save_eagle
from minispec.checkpoints.files import HEAD_FILES
from minispec.checkpoints.medusa import export_medusa, load_medusa, save_medusa
from minispec.hub import DEFAULT, LanguageModel, fetch

if TYPE_CHECKING:
    from minispec.drafters.base import Drafter

__all__ = ["check_layout", "export_draft", "export_drafter", "load_drafter", "save_draft", "save_eagle", "save_medusa"]

WEIGHTS = Path(__file__).parent.parent / "weights"
# What can be written. One folder may be two layouts at once: a draft model is a model wherever it is opened.
LAYOUTS = {"draft": ("vllm", "original"), "medusa": ("vllm", "original"), "eagle": ("vllm", "original", "speculators")}


def load_drafter(method: str, lm: LanguageModel, source: str | Path | None = None, **options: Any) -> Drafter:
    """The drafter that ships with the package for the default target, or the one in `source`: a folder or a hub id.

    `method`: draft, medusa or eagle. `options` go to the drafter: `num_tokens`, the most that a round drafts, and for medusa
    and eagle `tree`: "chain", "static" (the shape that pays most by the rates and the cost curve stored with our own
    weights) or, for eagle, "dynamic". Raises ValueError for an unknown method, a target that nothing was shipped for, and a
    source that cannot be read whole or does not fit the target.
    """
    if method not in LAYOUTS:
        raise ValueError(f"no drafter is loaded for the method {method!r}; use {', '.join(LAYOUTS)}")
    if options.get("num_tokens", 1) < 1:
        raise ValueError(f"num_tokens must be 1 or more, but is {options['num_tokens']}")
    if source is None and lm.name != DEFAULT:
        what = {"draft": "draft model", "medusa": "Medusa heads", "eagle": "EAGLE head"}[method]
        raise ValueError(
            f"the {what} that ships with minispec was trained for {DEFAULT}; name one for {lm.name} (--drafter), or "
            f"leave the method {method} out"
        )
    folder = WEIGHTS / method if source is None else fetch(str(source), HEAD_FILES if method != "draft" else ())
    if method == "draft":
        return load_draft(folder, lm, str(source), **options)
    return (load_medusa if method == "medusa" else load_eagle)(folder, lm, **options)


def check_layout(method: str, layout: str) -> None:
    """Raise ValueError if a method's drafters cannot be written in a layout."""
    if layout not in LAYOUTS[method]:
        raise ValueError(f"there is no layout {layout!r} for the method {method}; use {' or '.join(LAYOUTS[method])}")


def export_drafter(drafter: Any, lm: LanguageModel, folder: Path, layout: str = "vllm") -> None:
    """Write a drafter that `load_drafter` made for `lm` as a new `folder` that other software opens.

    Raises ValueError if there is no such layout for it, if that layout cannot hold it, and if `folder` is there already.
    """
    method = {"DraftModel": "draft", "Medusa": "medusa", "Eagle": "eagle"}[type(drafter).__name__]
    check_layout(method, layout)
    if method == "draft":
        return export_draft(drafter, lm, folder)
    return (export_medusa if method == "medusa" else export_eagle)(drafter, lm, folder, layout)
