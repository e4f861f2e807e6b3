"""Drafters on disk: those that ship with the package, and those that others trained.

ms.generate(lm, prompt, drafter=load_drafter("draft", lm))            # shipped, for the default target
load_drafter("draft", lm, "folder or hub id", num_tokens=4)           # any model with the same tokenizer
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minispec.drafters.draft_model import DraftModel
from minispec.hub import DEFAULT, LanguageModel, checkpoint_names, fetch, first_line, load, load_weights
from minispec.model import Transformer

if TYPE_CHECKING:
    from collections.abc import Iterator

WEIGHTS = Path(__file__).parent / "weights"
# How our draft models draft unless told otherwise: chosen on held-out texts, on two CPU cores (weights/draft.md).
DRAFT_OPTIONS = {"num_tokens": 6, "min_confidence": 0.3}


def load_drafter(method: str, lm: LanguageModel, source: str | Path | None = None, **options: Any) -> DraftModel:
    """The drafter that ships with the package for the default target, or the one in `source`: a folder or a hub id.

    `options` go to the drafter (num_tokens=4, ...). Raises ValueError for an unknown method, a target that nothing was
    shipped for, and a source that cannot be read or does not fit the target.
    """
    if method != "draft":
        raise ValueError(f"no drafter is loaded for the method {method!r}; use draft")
    if source is None and lm.name != DEFAULT:
        raise ValueError(
            f"the draft model that ships with minispec was trained for {DEFAULT}; name one for {lm.name} (--drafter), or "
            "leave the method draft out"
        )
    folder = WEIGHTS / method if source is None else fetch(str(source))
    file = folder / "config.json"
    if not file.is_file() or "minispec" not in json.loads(file.read_text()):
        small = load(str(source), str(lm.model.device), lm.model.dtype)
        return DraftModel(small, **options)
    return load_own_draft(folder, lm, options)


def load_own_draft(folder: Path, lm: LanguageModel, options: dict[str, Any]) -> DraftModel:
    """A folder that `save_draft` wrote: perhaps without embeddings and output matrix, which are then the target's own."""
    from safetensors import SafetensorError, safe_open
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    shared, theirs, shares = {}, lm.model.config, config.minispec["shares_embeddings"]
    if config.vocab_size != theirs.vocab_size or (shares and config.hidden_size != theirs.hidden_size):
        raise ValueError(f"the draft model in {folder} was trained for {config.minispec['target']}, not for {lm.name}")
    if shares:
        shared = {"embed_tokens.weight": lm.model.embed_tokens.weight, "lm_head.weight": lm.model.lm_head.weight}
    with torch.device("meta"):
        model = Transformer(config)
    load_weights(model, folder, lm.model.device, lm.model.dtype, shared, extra=("vocabulary",))
    try:
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            vocabulary = file.get_tensor("vocabulary").to(lm.model.device, torch.int64)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"the vocabulary in {folder} cannot be read ({first_line(error)})") from error
    small = LanguageModel(model.eval().requires_grad_(False), lm.tokenizer, lm.eos_ids, None, folder.name)
    return DraftModel(small, vocabulary=vocabulary, **DRAFT_OPTIONS | options)


def named_tensors(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names that published checkpoints use, stacked matrices taken apart."""
    c = model.config
    heads = [c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads]
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        names = checkpoint_names(name)
        sizes = [weight.shape[0] * n // sum(heads) for n in heads] if len(names) == 3 else len(weight) // len(names)
        yield from zip(names, weight.split(sizes), strict=True)


def save_draft(folder: Path, model: Transformer, vocabulary: Tensor, lm: LanguageModel, shared: bool) -> None:
    """Write a draft model for `lm`: bfloat16; what it shares with the target (`shared`) is left out."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(named_tensors(model))
    if shared:
        tensors = {name: weight for name, weight in tensors.items() if name.startswith(("model.layers.", "model.norm."))}
    stored = {name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in tensors.items()}
    file = folder / "model.safetensors"
    save_file({**stored, "vocabulary": vocabulary.int().cpu()}, file, metadata={"format": "pt"})
    file.chmod(0o644)  # written for its owner alone; others may read it
    config = json.loads(model.config.to_json_string())
    config["minispec"] = {"target": lm.name, "shares_embeddings": shared}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def export_draft(drafter: DraftModel, target: LanguageModel, folder: Path) -> None:
    """Write a draft model as transformers (and all that read its folders) opens one: whole, with the tokenizer.

    The list of ids that it drafts has no place there: others also draft ids that it was never trained on.
    Raises ValueError if `folder` is there already.
    """
    from safetensors.torch import save_file

    if folder.exists():
        raise ValueError(f"{folder} is there already; name a new folder")
    model, part = drafter.small.model, folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    config = json.loads(model.config.to_json_string())
    config.pop("minispec", None)
    config["dtype"] = str(model.dtype).removeprefix("torch.")
    (part / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    stored = {name: weight.contiguous() for name, weight in named_tensors(model)}
    save_file(stored, part / "model.safetensors", metadata={"format": "pt"})
    (part / "model.safetensors").chmod(0o644)
    target.tokenizer.save_pretrained(part)
    if target.folder and (target.folder / "generation_config.json").exists():
        shutil.copy(target.folder / "generation_config.json", part)
    part.rename(folder)
