"""What the target thinks of its own texts, written down once: a drafter in training reads it many times.

At every position whose next token is part of an answer: the target's likeliest next tokens, with their probabilities. One
pass over the text costs far more than a pass of a drafter, so it is paid once; a second run finds the file and goes on.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from minispec.train.data import Text

if TYPE_CHECKING:
    from minispec.hub import LanguageModel

TOP = 16  # likeliest tokens kept at a position; on the shipped text they hold 93% of the probability


class Labels:
    """What the target thinks of `texts`. Kept in `folder`, a file for 64 texts, named after them and the target."""

    def __init__(self, lm: LanguageModel, texts: list[Text], folder: Path):
        from tqdm import tqdm

        folder.mkdir(parents=True, exist_ok=True)
        self.ids: list[np.ndarray] = []  # of each text [answer, TOP] uint16
        self.p: list[np.ndarray] = []  # of each text [answer, TOP] float16
        groups = [texts[i : i + 64] for i in range(0, len(texts), 64)]
        for group in tqdm(groups, desc="labels", unit="file", disable=not sys.stderr.isatty()):
            content = b"".join(ids.tobytes() + b"/" for text in group for ids in (text.prompt, text.answer))
            file = folder / f"{hashlib.sha256(content + lm.name.encode()).hexdigest()[:16]}.npz"
            if not zipfile.is_zipfile(file):  # not there, or damaged
                part = file.with_suffix(f".{os.getpid()}.part.npz")  # two trainings may need the same file at once
                ids, p = compute(lm, group)
                np.savez(part, ids=np.concatenate(ids), p=np.concatenate(p))
                part.replace(file)
            with np.load(file) as stored:
                ends = np.cumsum([len(text.answer) for text in group])[:-1]
                self.ids += np.split(stored["ids"], ends)
                self.p += np.split(stored["p"], ends)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each text: ids [answer, TOP] int64, and probabilities [answer, TOP] float32."""
        for ids, p in zip(self.ids, self.p, strict=True):
            yield torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(p.astype(np.float32))


@torch.inference_mode()
def compute(lm: LanguageModel, texts: list[Text]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Ids and probabilities of each text, computed in batches of similar length."""
    ids: dict[int, np.ndarray] = {}
    p: dict[int, np.ndarray] = {}
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].prompt) + len(texts[i].answer))
    for start in range(0, len(order), 16):
        numbers = order[start : start + 16]
        tokens = padded([texts[i] for i in numbers]).to(lm.model.device)
        states = lm.model.states(tokens, lm.model.new_cache(*tokens.shape))[-1]  # [batch, time, width]
        for state, i in zip(states, numbers, strict=True):
            best = lm.model.logits(state[predicting(texts[i])]).float().softmax(-1).topk(TOP)  # [answer, TOP]
            ids[i], p[i] = best.indices.cpu().numpy().astype(np.uint16), best.values.cpu().numpy().astype(np.float16)
    return [ids[i] for i in range(len(texts))], [p[i] for i in range(len(texts))]


class States:
    """Hidden states of the target at every token of `texts`: what heads and features are learnt from.

    states[i] is [prompt + answer, layers, width] in bfloat16, for `layers` as `Transformer.states` numbers them. Kept in
    `folder`, a file for 64 texts (about 5 kB a token for four layers of width 576), and read from there when asked for.
    """

    def __init__(self, lm: LanguageModel, texts: Sequence[Text], layers: Sequence[int], folder: Path):
        from tqdm import tqdm

        folder.mkdir(parents=True, exist_ok=True)
        self.places: list[tuple[Path, int, int]] = []  # of each text: its file, and its first and last row there
        groups = [texts[i : i + 64] for i in range(0, len(texts), 64)]
        for group in tqdm(groups, desc="states", unit="file", disable=not sys.stderr.isatty()):
            content = b"".join(ids.tobytes() + b"/" for text in group for ids in (text.prompt, text.answer))
            name = hashlib.sha256(content + f"{lm.name}{list(layers)}".encode()).hexdigest()[:16]
            file = folder / f"{name}.safetensors"
            if not file.exists():
                part = file.with_suffix(f".{os.getpid()}.part")
                save_file({"states": torch.cat([read_text(lm, text, layers) for text in group])}, part)
                part.replace(file)
            at = 0
            for text in group:
                start, at = at, at + len(text.prompt) + len(text.answer)
                self.places.append((file, start, at))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, i: int) -> Tensor:
        file, start, stop = self.places[i]
        with safe_open(file, framework="pt") as stored:
            return stored.get_slice("states")[start:stop]


@torch.inference_mode()
def read_text(lm: LanguageModel, text: Text, layers: Sequence[int]) -> Tensor:
    """States of one text, [prompt + answer, layers, width] bfloat16. A text at a time: on a CPU no batch is faster."""
    tokens = padded([text]).to(lm.model.device)
    *named, _ = lm.model.states(tokens, lm.model.new_cache(*tokens.shape), layers=layers)
    return torch.stack(named, 2)[0].to("cpu", torch.bfloat16)


def padded(texts: list[Text]) -> Tensor:
    """Prompt and answer of each text, [texts, time]; -1 pads."""
    rows = [torch.from_numpy(np.concatenate((text.prompt, text.answer)).astype(np.int64)) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def predicting(text: Text) -> slice:
    """The positions whose next token is part of the answer."""
    return slice(len(text.prompt) - 1, len(text.prompt) + len(text.answer) - 1)
