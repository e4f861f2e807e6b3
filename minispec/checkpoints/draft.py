"""Draft models: any model with the same tokenizer, and our own, which may leave out what the target has.

load_drafter("draft", lm, "folder or hub id", num_tokens=4)
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from minispec.checkpoints.files import (
    named_tensors,
    new_folder,
    plain_config,
    read_config,
    read_tensors,
    vocabulary_map,
    write_folder,
)
from minispec.drafters.draft_model import DraftModel
from minispec.hub import LanguageModel, empty_model, load, load_weights, model_config
from minispec.model import Transformer

# How our draft models draft unless told otherwise: chosen on held-out texts, on two CPU cores (weights/draft.md).
DRAFT_OPTIONS = {"num_tokens": 6, "min_confidence": 0.3}


def load_draft(folder: Path, lm: LanguageModel, name: str, **options: Any) -> DraftModel:
    """A draft model in `folder`, which the user calls `name`."""
    if not (folder / "config.json").is_file() or not read_config(folder, "draft model").get("minispec"):
        return DraftModel(load(name, str(lm.model.device), lm.model.dtype), **options)
    return load_own_draft(folder, lm, options)


def load_own_draft(folder: Path, lm: LanguageModel, options: dict[str, Any]) -> DraftModel:
    """A folder that `save_draft` wrote: perhaps without embeddings and output matrix, which are then the target's own."""
    config = model_config(folder)
    shared, theirs, shares = {}, lm.model.config, config.minispec.get("shares_embeddings")
    if shares is None:
        raise ValueError(f"config.json in {folder} lacks shares_embeddings under minispec")
    if config.vocab_size != theirs.vocab_size or (shares and config.hidden_size != theirs.hidden_size):
        raise ValueError(f"the draft model in {folder} was trained for {config.minispec.get('target')}, not for {lm.name}")
    if shares:
        shared = {"embed_tokens.weight": lm.model.embed_tokens.weight, "lm_head.weight": lm.model.lm_head.weight}
    tensors = read_tensors(folder, "draft model")
    if "vocabulary" not in tensors:
        raise ValueError(f"the weights in {folder} lack vocabulary")
    vocabulary = vocabulary_map(folder, "vocabulary", tensors.pop("vocabulary"), theirs.vocab_size)
    model = empty_model(folder, Transformer, config)
    load_weights(model, folder, lm.model.device, lm.model.dtype, shared, tensors=tensors)
    small = LanguageModel(model.eval().requires_grad_(False), lm.tokenizer, lm.eos_ids, None, folder.name)
    return DraftModel(small, vocabulary=vocabulary.to(lm.model.device), **DRAFT_OPTIONS | options)


def save_draft(folder: Path, model: Transformer, vocabulary: Tensor, lm: LanguageModel, shared: bool) -> None:
    """Write a draft model for `lm`: bfloat16; what it shares with the target (`shared`) is left out."""
    tensors = dict(named_tensors(model))
    if shared:
        tensors = {name: weight for name, weight in tensors.items() if name.startswith(("model.layers.", "model.norm."))}
    config = json.loads(model.config.to_json_string())
    config["minispec"] = {"target": lm.name, "shares_embeddings": shared}
    write_folder(folder, tensors, {"vocabulary": vocabulary.int()}, config)


def export_draft(drafter: DraftModel, target: LanguageModel, folder: Path) -> None:
    """Write a draft model as transformers (and all that read its folders) opens one: whole, with the tokenizer.

    The list of ids that it drafts has no place there: others also draft ids that it was never trained on.
    Raises ValueError if `folder` is there already.
    """
    model = drafter.small.model
    with new_folder(folder) as part:
        config = plain_config(model.config, model.dtype)
        write_folder(part, dict(named_tensors(model)), {}, config, dtype=model.dtype)
        if target.tokenizer is not None:
            target.tokenizer.save_pretrained(part)
        if target.folder and (target.folder / "generation_config.json").exists():
            shutil.copy(target.folder / "generation_config.json", part)
