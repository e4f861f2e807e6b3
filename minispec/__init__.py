"""minispec: speculative decoding from the first line to EAGLE, on a real language model.

import minispec as ms
lm = ms.load("smollm2-135m")
print(ms.generate(lm, "Why is the sky blue?").text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minispec.cache import KVCache as KVCache
    from minispec.checkpoints import load_drafter as load_drafter
    from minispec.decode import generate as generate
    from minispec.decode import generate_batch as generate_batch
    from minispec.decode import stream as stream
    from minispec.drafters.draft_model import DraftModel as DraftModel
    from minispec.drafters.dynamic_tree import DynamicTree as DynamicTree
    from minispec.drafters.eagle import Eagle as Eagle
    from minispec.drafters.medusa import Medusa as Medusa
    from minispec.drafters.ngram import NGram as NGram
    from minispec.hub import LanguageModel as LanguageModel
    from minispec.hub import fetch as fetch
    from minispec.hub import load as load
    from minispec.hub import toy as toy
    from minispec.model import Transformer as Transformer
    from minispec.sampling import Sampling as Sampling
    from minispec.trace import Generation as Generation
    from minispec.trace import Round as Round
    from minispec.trace import Trace as Trace
    from minispec.tree import Shape as Shape
    from minispec.tree import TokenTree as TokenTree

__version__ = "0.1.0"

# Names are imported when they are first used: `minispec --help` need not wait for torch.
HOME = {
    "KVCache": "cache",
    "load_drafter": "checkpoints",
    "generate": "decode",
    "generate_batch": "decode",
    "stream": "decode",
    "DraftModel": "drafters.draft_model",
    "DynamicTree": "drafters.dynamic_tree",
    "Eagle": "drafters.eagle",
    "Medusa": "drafters.medusa",
    "NGram": "drafters.ngram",
    "LanguageModel": "hub",
    "fetch": "hub",
    "load": "hub",
    "toy": "hub",
    "Transformer": "model",
    "Sampling": "sampling",
    "Generation": "trace",
    "Round": "trace",
    "Trace": "trace",
    "Shape": "tree",
    "TokenTree": "tree",
}
__all__ = [*HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'minispec' has no attribute {name!r}")
    return getattr(import_module(f"minispec.{HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
