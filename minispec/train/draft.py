"""Distil a draft model from the target: a small Llama that learns the target's next-token distributions on its own texts.

    minispec train draft --layers 0 29                    # two of the target's layers, its embeddings shared
    minispec train draft --width 192 --depth 4            # from scratch; embeddings start as a projection of the target's

It drafts only the ids that are frequent in the training text: its output matrix is most of what a step costs, and a
token that it never drafts costs one rejection, not a wrong text. Distillation: Hinton et al. 2015, equation 2; for
speculative decoding: Zhou et al. 2023, "DistillSpec".
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minispec.model import Transformer
from minispec.train.data import Text
from minispec.train.fit import train_folder
from minispec.train.teacher import Labels, padded, predicting

if TYPE_CHECKING:
    from minispec.hub import LanguageModel


Example = tuple[Text, tuple[Tensor, Tensor]]  # a text, and its labels


class NoCache:
    """Stands in for the key-value cache in training: nothing was read before, and nothing is kept."""

    def reserve(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        rows, time = tokens.shape
        slots = torch.arange(time, device=tokens.device).expand(rows, -1)
        return slots, torch.ones(time, time, dtype=torch.bool, device=tokens.device).tril().expand(rows, -1, -1)

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values


class Distiller(nn.Module):
    """The draft model and its loss: cross-entropy against the target's probabilities, over the ids that it may draft."""

    vocabulary: Tensor  # [drafted ids]
    place: Tensor  # [vocab]: where an id stands in `vocabulary`, or -1

    def __init__(self, model: Transformer, vocabulary: Tensor):
        super().__init__()
        self.model = model
        self.register_buffer("vocabulary", vocabulary, persistent=False)
        place = torch.full((model.config.vocab_size,), -1)
        place[vocabulary] = torch.arange(len(vocabulary))
        self.register_buffer("place", place, persistent=False)

    def predictions(self, examples: list[Example]) -> tuple[Tensor, Tensor, Tensor]:
        """For every answer token of the batch: log q [tokens, drafted ids], and where the target's likeliest next tokens
        stand among the drafted ids (-1: nowhere), with their probabilities, both [tokens, TOP]."""
        tokens = padded([text for text, _ in examples]).to(self.model.device)
        states = self.model.states(tokens, NoCache())[-1]  # pyright: ignore[reportArgumentType]
        state = torch.cat(
            [row[predicting(text)] for row, (text, _) in zip(states, examples, strict=True)]
        )  # [tokens, width]
        logq = F.linear(state, self.model.lm_head.weight[self.vocabulary]).log_softmax(-1)
        ids, p = (torch.cat(parts).to(state.device) for parts in zip(*(labels for _, labels in examples), strict=True))
        return logq, self.place[ids], p

    def forward(self, examples: list[Example]) -> Tensor:
        return mean_loss(*self.predictions(examples))


def mean_loss(logq: Tensor, at: Tensor, p: Tensor) -> Tensor:
    """Mean cross-entropy of q [tokens, drafted ids] against p [tokens, TOP], at these places in q (-1: not there)."""
    return -(p * (at >= 0) * logq.gather(1, at.clamp(min=0))).sum() / len(p)


def frequent_ids(texts: Sequence[Text], size: int, vocab: int) -> Tensor:
    """The `size` most frequent ids of the texts, in ascending order [size]; ties go to the lower id. Raises ValueError."""
    if not 1 <= size <= vocab:
        raise ValueError(f"--vocabulary must lie between 1 and {vocab}, but is {size}")
    counts = np.bincount(np.concatenate([ids for text in texts for ids in (text.prompt, text.answer)]), minlength=vocab)
    return torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]))


def from_layers(target: Transformer, layers: Sequence[int]) -> Transformer:
    """Some of the target's blocks; its embeddings and output matrix stay the target's own tensors, and are not trained."""
    depth = target.config.num_hidden_layers
    if not layers or not all(0 <= layer < depth for layer in layers):
        raise ValueError(f"--layers must name layers of the target, 0 to {depth - 1}, but is {list(layers)}")
    config = copy.deepcopy(target.config)
    config.num_hidden_layers, config.layer_types = len(layers), ["full_attention"] * len(layers)
    with torch.device("meta"):
        model = Transformer(config)
    for mine, layer in enumerate(layers):
        block: Any = copy.deepcopy(target.layers[layer])
        block.self_attn.layer = mine
        model.layers[mine] = block
    model.norm = copy.deepcopy(target.norm)
    model.requires_grad_(True)
    model.embed_tokens, model.lm_head = target.embed_tokens, target.lm_head
    model.set_frequencies(target.device)
    return model


def from_scratch(target: Transformer, width: int, depth: int, seed: int) -> Transformer:
    """A Llama of another width with heads of 64; its embeddings are the target's on their `width` main axes (PCA)."""
    if width < 64 or width % 64 or width > target.config.hidden_size or depth < 1:
        raise ValueError(
            f"--width must be a multiple of 64, at most {target.config.hidden_size}, and --depth 1 or more; "
            f"they are {width} and {depth}"
        )
    config = copy.deepcopy(target.config)
    config.hidden_size, config.intermediate_size = width, width * 8 // 3
    config.num_hidden_layers, config.layer_types = depth, ["full_attention"] * depth
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = width // 64, 1, 64
    config.tie_word_embeddings = True
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and not name.startswith("embed"):
                scale = (2 * depth) ** -0.5 if "o_proj" in name or "down_proj" in name else 1.0
                weight.normal_(0, scale * weight.shape[1] ** -0.5, generator=generator)
        embedding = target.embed_tokens.weight.float().cpu()
        axes = torch.linalg.eigh(embedding.T @ embedding).eigenvectors[:, -width:]  # [target width, width]
        model.embed_tokens.weight.copy_(embedding @ axes)
    model = model.to(target.device)
    model.set_frequencies(target.device)
    return model


def train_draft(
    lm: LanguageModel,
    texts: list[Text],
    held: list[Text],
    out: Path,
    labels: Path,
    *,
    layers: Sequence[int] | None,
    width: int,
    depth: int,
    drafted: int,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
) -> dict[str, float]:
    """Train, then write the folder `out`, which `load_drafter` opens; what was measured on the held-out texts.

    `lm` must be in float32. Under `accelerate launch` every process trains on `batch` texts a step, and the first one
    writes. While it trains, its state lies in a folder beside `out`, so that a stop leaves what was there.
    Raises ValueError for settings out of range, and if `out` holds something else than a draft model of ours.
    """
    from minispec.checkpoints import save_draft

    model = from_layers(lm.model, layers) if layers else from_scratch(lm.model, width, depth, seed)
    vocabulary = frequent_ids(texts, drafted, model.config.vocab_size)
    distiller = Distiller(model, vocabulary).to(lm.model.device)
    recipe: dict[str, Any] = {"layers": list(layers)} if layers else {"width": width, "depth": depth}
    recipe |= {"target": lm.name, "drafted": drafted, "steps": steps, "batch": batch, "lr": lr, "seed": seed}

    def finish(folder: Path) -> dict[str, float]:
        measured = evaluate(distiller, list(zip(held, Labels(lm, held, labels), strict=True)))
        save_draft(folder, model, vocabulary, lm, shared=bool(layers))
        return measured

    return train_folder(
        out, recipe, texts, distiller, lambda: list(zip(texts, Labels(lm, texts, labels), strict=True)), finish
    )


@torch.inference_mode()
def evaluate(distiller: Distiller, examples: list[Example], batch: int = 8) -> dict[str, float]:
    """On texts that it was not trained on: the loss, and how often its likeliest token is the target's."""
    loss, agree, count = 0.0, 0, 0
    order = sorted(range(len(examples)), key=lambda i: len(examples[i][0].prompt) + len(examples[i][0].answer))
    for start in range(0, len(order), batch):
        group = [examples[i] for i in order[start : start + batch]]
        logq, at, p = distiller.predictions(group)
        loss, count = loss + float(mean_loss(logq, at, p)) * len(at), count + len(at)
        agree += int((logq.argmax(-1) == at[:, 0]).sum())
    return {"held_out_loss": loss / count, "held_out_agreement": agree / count}
