"""The key-value cache: memory of what the model has read, which speculation must be able to take back.

    cache.lengths[0] = 7        # row 0 forgets all but its first seven tokens: that is a rewind

Room for every token is set aside once. Each row has its own length, since the rows of a batch accept drafts of different
lengths; what lies beyond a row's length is never read, so forgetting costs nothing. Between rounds the cache holds
every committed token but the last one, which is pending: the next pass feeds it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVCache:
    """Keys and values [layers, rows, kv_heads, capacity + 1, head_dim]; the extra slot takes what padding writes."""

    def __init__(self, shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device):
        layers, rows, kv_heads, self.capacity, head_dim = shape
        full = (layers, rows, kv_heads, self.capacity + 1, head_dim)
        self.keys = torch.zeros(full, dtype=dtype, device=device)
        self.values = torch.zeros(full, dtype=dtype, device=device)
        self.lengths = [0] * rows

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def reserve(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Make room for `tokens` [rows, time] (-1 pads): the slot of each, and what each may see [rows, time, keys].

        `mask` [rows, time, time + k]: which of the row's last k slots, and of the new tokens, each new one sees; k is often
        0, and all that lies before is seen. Lengths grow here. Raises ValueError when a row would grow beyond the capacity.
        """
        rows, time = tokens.shape
        before = torch.tensor(self.lengths, device=tokens.device)[:, None]  # [rows, 1]
        real = tokens >= 0
        counts = real.sum(1).tolist()
        lengths = [n + count for n, count in zip(self.lengths, counts, strict=True)]
        if max(lengths) > self.capacity:
            raise ValueError(f"the cache has room for {self.capacity} tokens a row, and a row needs {max(lengths)}")
        self.lengths, self.end = lengths, max(lengths)
        slots = torch.where(real, before + torch.arange(time, device=tokens.device), self.capacity)
        self.one_slice = min(counts) == time and min(self.lengths) == self.end
        # Views of all layers at once, as a view costs time: where new tokens go, and all that is read.
        self.new = [store[:, :, :, self.end - time : self.end].unbind() for store in (self.keys, self.values)]
        self.seen = [store[:, :, :, : self.end].unbind() for store in (self.keys, self.values)]
        if mask is None:
            if time == 1 and self.one_slice:
                return slots, None  # a single new token sees everything
            mask = torch.ones(time, time, dtype=torch.bool, device=tokens.device).tril().expand(rows, -1, -1)
        width = mask.shape[2]
        # [rows, keys]: the column of the mask that speaks of a slot
        column = torch.arange(self.end, device=tokens.device) - before + (width - time)
        seen = mask.gather(2, column.clamp(0, width - 1)[:, None].expand(-1, time, -1)) & (column < width)[:, None]
        return slots, seen | (column < 0)[:, None]  # [rows, time, keys]

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Store one layer's new keys and values [rows, kv_heads, time, head_dim]; return all up to the longest row."""
        if self.one_slice:
            self.new[0][layer].copy_(keys)
            self.new[1][layer].copy_(values)
        else:
            rows = torch.arange(len(slots), device=slots.device)[:, None]
            self.keys[layer][rows, :, slots] = keys.transpose(1, 2)
            self.values[layer][rows, :, slots] = values.transpose(1, 2)
        return self.seen[0][layer], self.seen[1][layer]

    def keep(self, starts: Sequence[int], paths: Tensor) -> None:
        """Of each row's slots from `starts` on, keep those in `paths` [rows, depth] (offsets; -1 pads), in that order.

        This is how a path of a tree stays and the rest of the tree goes: one gather, then a length.
        """
        first = torch.tensor(starts)[:, None]  # [rows, 1]
        depth = torch.arange(paths.shape[1])
        moved = (paths >= 0) & (paths != depth)
        if moved.any():
            source = torch.where(paths >= 0, first + paths, self.capacity).to(self.keys.device)
            target = torch.where(paths >= 0, first + depth, self.capacity).to(self.keys.device)
            rows = torch.arange(len(paths), device=self.keys.device)[:, None]
            for store in (self.keys, self.values):
                store[:, rows, :, target] = store[:, rows, :, source]
        self.lengths = [start + int(n) for start, n in zip(starts, (paths >= 0).sum(1), strict=True)]

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Go on with `rows` only, in that order, where rows[i] >= i: what has finished is overwritten by what has not."""
        for new, old in enumerate(rows):
            if new != old:
                self.keys[:, new], self.values[:, new] = self.keys[:, old], self.values[:, old]
        self.keys, self.values = self.keys[:, : len(rows)], self.values[:, : len(rows)]
        self.lengths = [self.lengths[row] for row in rows]
