"""The same passes with less around them: on CUDA as graphs that are replayed, on a CPU with weights packed in advance.

    fast = compiled(lm)                                   # a LanguageModel like any other; `lm` stays as it is
    generate(fast, prompt, compiled_drafter(drafter))     # --compile

A pass over a few tokens is hundreds of small operations, each of which a GPU is told to start. A graph is started at once,
but it always computes the same thing in the same place. So the passes of single texts get fixed inputs: blocks padded to 1,
2, 4, ... tokens, and a cache that is read whole, with a mask over all of its slots. What reads a prompt, a block beyond
LARGEST, or several texts at once stays eager; so does a Medusa head, which is a few operations. On a CPU there is nothing to
start, and matrix products are most of a pass: there each matrix is put in the order in which oneDNN reads it, at the price
of a second copy.

The text keeps its law: only rounding differs. The graphs' fixed-shape passes are tested on the CPU, called instead of
replayed; what a GPU alone can run is the capture in `FixedPass.start` and the replay.
"""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minispec.cache import KVCache
from minispec.drafters.draft_model import DraftModel
from minispec.drafters.eagle import Eagle, EagleNet
from minispec.drafters.medusa import Medusa
from minispec.model import Transformer

if TYPE_CHECKING:
    from minispec.drafters.base import Drafter
    from minispec.hub import LanguageModel

LARGEST = 256  # tokens of the longest pass that becomes a graph
SMALLEST = 256  # slots of the smallest cache; larger ones double, so that texts of similar length share their graphs
A_FEW = 8  # rows of the products that the order of a packed matrix is chosen for; it serves any number
M = TypeVar("M", bound=nn.Module)


def compiled(lm: LanguageModel) -> LanguageModel:
    """`lm` with faster passes. Raises ValueError on a device, or in a dtype, where we know of nothing that helps."""
    model = lm.model
    if model.device.type == "cuda":
        return dataclasses.replace(lm, model=graphed(model))
    if model.device.type != "cpu":
        raise ValueError(f"there is nothing to compile for the device {model.device}; leave --compile out")
    return dataclasses.replace(lm, model=packed(model))


def compiled_drafter(drafter: Drafter | None) -> Any:
    """The same drafter with faster passes of its network; without one, the drafter itself. Raises as `compiled` does."""
    fast: Any = copy.copy(drafter)
    if isinstance(drafter, DraftModel):
        fast.small = compiled(drafter.small)
    elif isinstance(drafter, Eagle):
        fast.net = graphed(drafter.net) if drafter.net.device.type == "cuda" else packed(drafter.net)
    elif isinstance(drafter, Medusa) and next(drafter.net.parameters()).device.type == "cpu":
        fast.net = packed(drafter.net)
    return fast


def packed(module: M) -> M:
    """A copy of `module` that shares everything but its linear layers, which are packed. Raises ValueError as `pack`."""
    other = copy.copy(module)
    children = module.named_children()
    other._modules = {
        name: PackedLinear(child) if isinstance(child, nn.Linear) else packed(child) for name, child in children
    }
    return other


class PackedLinear(nn.Module):
    """A linear layer whose weight is also held in the order in which oneDNN reads it.

    Both operations are private to torch, which packs weights for its own compiler and offers nothing else that does: its
    public `to_mkldnn` converts inputs and outputs too, and leaves the weight in its order.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.packed = pack(linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32 and x.numel() == x.shape[-1]:  # one token: torch's own product has no slack there
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def pack(weight: Tensor) -> Tensor:
    """A matrix in oneDNN's order. Raises ValueError if oneDNN is not there, or does not compute this dtype here."""
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), A_FEW)
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        dtype = str(weight.dtype).removeprefix("torch.")
        raise ValueError(
            f"torch {torch.__version__} cannot pack weights in {dtype} on this processor; leave --compile out, or try "
            "--dtype float32"
        ) from error


class StaticCache(KVCache):
    """The cache of one text, in a `Store` that outlives it: for eager passes a cache like any other."""

    def __init__(self, store: Store, capacity: int):
        self.store, self.keys, self.values, self.capacity = store, store.keys, store.values, capacity
        self.keys.zero_()  # a masked slot counts nothing, unless it holds what is not a number
        self.values.zero_()
        self.lengths = [0]


class Store:
    """Keys and values [layers, 1, kv_heads, slots, head_dim] at a place that does not change, and the passes made for it."""

    def __init__(self, cache: KVCache):
        self.keys, self.values = cache.keys, cache.values
        self.passes: dict[Any, FixedPass] = {}


class FixedPass:
    """A pass over `size` tokens of one text that finds each of its inputs at a fixed place.

    It stands in for the cache in the model's own code (`reserve`, `write`): positions, slots and mask come from outside.
    """

    def __init__(self, store: Store, size: int, feature: Tensor | None):
        device, slots = store.keys.device, store.keys.shape[3]
        self.keys, self.values = store.keys, store.values
        zeros = torch.zeros(3, 1, size, dtype=torch.int64, device=device)
        self.tokens, self.positions, self.slots = zeros.unbind()
        self.mask = torch.ones(1, size, slots, dtype=torch.bool, device=device)
        self.feature = None if feature is None else feature.new_zeros(1, size, feature.shape[2])
        self.graph: Any = None

    def reserve(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.slots, self.mask

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        return self.keys[layer].index_copy_(2, slots[0], keys), self.values[layer].index_copy_(2, slots[0], values)

    def fill(
        self, tokens: Tensor, start: int, trash: int, positions: Tensor | None, mask: Tensor | None, feature: Tensor | None
    ) -> None:
        """Put the inputs of a pass in their places; the arguments are those of `Transformer.states`.

        What pads a block goes to the slot `trash`, which no token sees; it sees everything, as it must see something.
        """
        n, device = tokens.shape[1], tokens.device
        slots = torch.arange(start, start + n, device=device)
        self.tokens.fill_(-1)[:, :n] = tokens
        self.slots.fill_(trash)[:, :n] = slots
        self.positions[:, :n] = slots if positions is None else positions
        if mask is None:
            mask = torch.ones(1, n, n, dtype=torch.bool, device=device).tril()
        width = mask.shape[2]
        column = torch.arange(self.mask.shape[2], device=device) - (start + n - width)  # of `mask`, by slot
        seen = mask[:, :, column.clamp(0, width - 1)] & (column < width)
        self.mask.fill_(True)[:, :n] = seen | (column < 0)
        if self.feature is not None and feature is not None:
            self.feature[:, :n] = feature

    def start(self, run: Callable[[FixedPass], list[Tensor]]) -> list[Tensor]:
        """Run the pass: on CUDA captured the first time and replayed from then on, elsewhere called."""
        if self.keys.device.type != "cuda":
            return run(self)
        if self.graph is None:  # what runs for the first time may allocate and choose, which a graph cannot
            with torch.cuda.device(self.keys.device):
                beside = torch.cuda.Stream()
                beside.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(beside):
                    run(self)
                    run(self)
                torch.cuda.current_stream().wait_stream(beside)
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph):
                    self.outputs = run(self)
        self.graph.replay()
        return self.outputs


class GraphedTransformer(Transformer):
    """A transformer whose passes over a few tokens of one text have fixed shapes and, on CUDA, are graphs.

    A row alone is never padded, so that the number of tokens is known without waiting for the device.
    """

    stores: dict[int, list[Store]]  # those that no text uses, by their slots

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        if rows != 1:
            return super().new_cache(rows, capacity)
        slots = max(SMALLEST, 1 << capacity.bit_length())  # of which the last is for padding
        free = self.stores.setdefault(slots, [])
        with torch.inference_mode(False):
            store = free.pop() if free else Store(super().new_cache(1, slots - 1))
            cache = StaticCache(store, capacity)
        weakref.finalize(cache, free.append, store)
        return cache

    def states(
        self,
        tokens: Tensor,
        cache: KVCache,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        layers: Sequence[int] = (),
    ) -> list[Tensor]:
        if not fixed(tokens, cache):
            return super().states(tokens, cache, positions, mask, layers)

        def run(of: Any) -> list[Tensor]:
            return Transformer.states(self, of.tokens, of, of.positions, None, layers)

        return self.run_fixed(run, tuple(layers), tokens, cache, positions, mask)

    def run_fixed(
        self,
        run: Callable[[Any], list[Tensor]],
        layers: tuple[int, ...],
        tokens: Tensor,
        cache: Any,
        positions: Tensor | None,
        mask: Tensor | None,
        feature: Tensor | None = None,
    ) -> list[Tensor]:
        (start,), n = cache.lengths, tokens.shape[1]
        if start + n > cache.capacity:
            raise ValueError(f"the cache has room for {cache.capacity} tokens a row, and a row needs {start + n}")
        size, passes = 1 << (n - 1).bit_length(), cache.store.passes
        if (size, layers) not in passes:
            with torch.inference_mode(False):
                passes[size, layers] = FixedPass(cache.store, size, feature)
        at = passes[size, layers]
        at.fill(tokens, start, cache.capacity, positions, mask, feature)
        cache.lengths = [start + n]
        return [x[:, :n].clone() for x in at.start(run)]  # the next pass writes to the same place


class GraphedEagle(GraphedTransformer, EagleNet):
    """The same for an EAGLE head."""

    def step(
        self, feature: Tensor, tokens: Tensor, cache: KVCache, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        if not fixed(tokens, cache):
            return super().step(feature, tokens, cache, positions, mask)

        def run(of: Any) -> list[Tensor]:
            return [EagleNet.step(self, of.feature, of.tokens, of, of.positions)]

        return self.run_fixed(run, (), tokens, cache, positions, mask, feature)[0]


def graphed(model: Transformer) -> Any:
    """A copy of `model` that shares all weights, and makes its short passes with fixed shapes."""
    other: Any = copy.copy(model)
    other.__class__ = GraphedEagle if isinstance(model, EagleNet) else GraphedTransformer
    other.stores = {}
    return other


def fixed(tokens: Tensor, cache: KVCache) -> bool:
    """Whether a pass gets a fixed shape: not what reads a prompt, nor several rows, nor a very long block."""
    return isinstance(cache, StaticCache) and len(tokens) == 1 and cache.lengths != [0] and tokens.shape[1] <= LARGEST
