"""Medusa heads: the original layout in both versions, and vLLM's.

load_drafter("medusa", lm, "folder or hub id")

| | original | vLLM |
|---|---|---|
| block l of head i | {i}.{l}.linear.weight, .bias | blocks.{i}.layers.{l}.weight; .bias if `medusa_fc_bias` |
| its output matrix | {i}.{blocks}.weight; version 2: the target's | lm_heads.{i}.weight; `original_lm_head`: one for all |
| ids that it drafts | all (ours may add `vocabulary`) | all, or `token_map` if `truncated_vocab_size` < `vocab_size` |
| files | config.json, medusa_lm_head.pt or .safetensors | config.json, model.safetensors |

Version 2 is told by what the file lacks: published configurations do not say it reliably, nor how many heads there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minispec.checkpoints.files import (
    LARGEST,
    match,
    new_folder,
    pick,
    read_config,
    read_tensors,
    sizes,
    vocabulary_map,
    write_folder,
)
from minispec.drafters.medusa import Medusa, MedusaHeads
from minispec.hub import LanguageModel, as_weight, say
from minispec.tree import Shape, grow

BLOCK = {False: "{}.{}.linear.", True: "blocks.{}.layers.{}."}  # of a layout, is it vLLM's


def load_medusa(folder: Path, lm: LanguageModel, num_tokens: int | None = None, tree: str | None = None) -> Medusa:
    """Medusa heads of any layout. Ours come with what shapes a tree; others draft a chain."""
    net, own = read_medusa(folder, lm)
    most = min(num_tokens or LARGEST, len(own.get("cost", range(LARGEST + 1))) - 1)
    plans: dict[str, Any] = {
        "chain": lambda: Shape.of([[0] * n for n in range(1, min(most, len(net.blocks)) + 1)]),
        "static": lambda: grow(own["rates"], lambda n: own["cost"][n - 1], most=most),
    }
    return Medusa(net, pick(tree or ("static" if own else "chain"), plans, own), lm.model.config.num_hidden_layers)


def read_medusa(folder: Path, lm: LanguageModel) -> tuple[MedusaHeads, dict[str, Any]]:
    """The heads in `folder`, and what only our own weights have beside them.

    Raises ValueError, naming the cause, for what is not there whole, contradicts itself or does not fit `lm`.
    """
    config, tensors = read_config(folder, "Medusa heads"), read_tensors(folder, "Medusa heads")
    width, size = lm.model.config.hidden_size, lm.model.config.vocab_size
    if any(name.startswith("medusa_head.") for name in tensors):
        raise ValueError(f"{folder} holds a whole model trained with its heads (Medusa-2); only heads apart are read")
    tensors = {name.removeprefix("medusa_heads."): weight for name, weight in tensors.items()}
    vllm = any(name.startswith("blocks.") for name in tensors)
    counted = sizes(list(tensors), BLOCK[vllm].format(r"(\d+)", r"(\d+)") + "weight")
    if not counted:
        there = f"; it holds {', '.join(sorted(tensors)[:3]) or 'none'}"
        raise ValueError(f"{folder} holds no Medusa heads: no tensor is called {BLOCK[vllm].format(0, 0)}weight{there}")
    count, depth = check_counts(folder, config, *counted)
    own = config.get("minispec") or {}
    fits = config.get("vocab_size") or size, config.get("hidden_size") or width
    if fits != (size, width):
        target = own.get("target") or config.get("base_model_name_or_path") or f"a vocabulary of {fits[0]}, width {fits[1]}"
        raise ValueError(f"the Medusa heads in {folder} were trained for {target}, not for {lm.name}")

    ids, listed = torch.arange(size), "token_map" if vllm else "vocabulary"
    if vllm and (config.get("truncated_vocab_size") or size) != size and listed not in tensors:
        raise ValueError(f"the weights in {folder} lack token_map, but its truncated_vocab_size is not vocab_size ({size})")
    if listed in tensors:
        ids = vocabulary_map(folder, listed, tensors.pop(listed), size)
        if vllm and config.get("truncated_vocab_size") != len(ids):
            raise ValueError(f"truncated_vocab_size in {folder} is not the {len(ids)} ids of token_map")
    biased = bool(config.get("medusa_fc_bias")) if vllm else True
    if vllm:
        matrices = (
            ["lm_heads.0.weight"] if config.get("original_lm_head") else [f"lm_heads.{i}.weight" for i in range(count)]
        )
    else:
        matrices = [f"{i}.{depth}.weight" for i in range(count)]
        matrices = matrices if any(name in tensors for name in matrices) else []

    wanted, mine = {}, {}
    for i in range(count):
        for layer in range(depth):
            theirs, ours = BLOCK[vllm].format(i, layer), f"blocks.{i}.{layer}.linear."
            for part, shape in (("weight", [width, width]), ("bias", [width])):
                mine[ours + part] = theirs + part
                if part == "weight" or biased:
                    wanted[theirs + part] = shape
    for name in matrices:  # vLLM cuts a matrix for all ids down to those of token_map
        if vllm and name in tensors and tensors[name].shape == (size, width):
            tensors[name] = tensors[name][ids]
    match(folder, tensors, wanted | {name: [len(ids), width] for name in matrices})
    device, dtype = lm.model.device, lm.model.dtype
    tensors = {name: as_weight(folder, name, weight, device, dtype) for name, weight in tensors.items()}

    shared: Tensor | None = None
    if not matrices:
        theirs = lm.model.lm_head.weight.detach()
        shared = theirs if len(ids) == size else theirs[ids.to(theirs.device)]
    elif vllm and config.get("original_lm_head"):
        shared = tensors[matrices[0]]
    else:
        mine |= {f"lm_heads.{i}.weight": name for i, name in enumerate(matrices)}
    with torch.device("meta"):
        net = MedusaHeads(count, width, ids, shared, depth)
    absent = {ours: torch.zeros(width, dtype=dtype, device=device) for ours, theirs in mine.items() if theirs not in tensors}
    net.load_state_dict(absent | {ours: tensors[theirs] for ours, theirs in mine.items() if theirs in tensors}, assign=True)
    net.vocabulary, net.shared = ids.to(device), shared
    return net.eval().requires_grad_(False), own


def check_counts(folder: Path, config: dict[str, Any], count: int, depth: int) -> tuple[int, int]:
    """Heads and blocks a head. The file may hold more heads than its configuration says, never fewer."""
    said = config.get("medusa_num_heads") or config.get("num_heads") or count
    if said > count:
        raise ValueError(f"config.json in {folder} says {said} heads, but the weights hold {count}")
    if said < count:
        say(f"config.json in {folder} says {said} heads; the weights hold {count}, and all are used")
    blocks = config.get("medusa_num_layers") or config.get("num_hidden_layers") or depth
    if blocks != depth:
        raise ValueError(f"config.json in {folder} says {blocks} blocks a head, but the weights hold {depth}")
    return count, depth


def save_medusa(folder: Path, net: MedusaHeads, lm: LanguageModel, own: dict[str, Any]) -> None:
    """Write Medusa heads that share the target's output matrix: residual blocks alone, under their published names."""
    config = original_config(net, lm) | {"minispec": {"target": lm.name, **own}}
    write_folder(folder, dict(net.blocks.state_dict()), {"vocabulary": net.vocabulary.int()}, config)


def original_config(net: MedusaHeads, lm: LanguageModel) -> dict[str, Any]:
    return {
        "medusa_num_heads": len(net.blocks),
        "medusa_num_layers": len(list(net.blocks[0].children())),
        "version": "1" if net.shared is None else "2",
        "base_model_name_or_path": lm.name,
        "hidden_size": lm.model.config.hidden_size,
        "vocab_size": lm.model.config.vocab_size,
    }


def export_medusa(drafter: Medusa, lm: LanguageModel, folder: Path, layout: str) -> None:
    """Write heads in the `original` layout or in vLLM's. Others then draft all ids, whatever ours draft.

    (vLLM 0.32 cannot open what its own layout allows: it takes token_map for a weight that was not loaded.)
    Raises ValueError if that layout cannot hold them.
    """
    net, depth, head = drafter.net, len(list(drafter.net.blocks[0].children())), lm.model.lm_head.weight
    config, tensors = original_config(net, lm), dict(net.blocks.state_dict())
    targets = net.shared is not None and torch.equal(net.shared, head[net.vocabulary])
    if len(net.vocabulary) < len(head) and not targets:
        raise ValueError(f"heads for {len(net.vocabulary)} ids, by a matrix of their own, have no place in this layout")
    if layout == "original":
        if net.shared is not None and not targets:
            raise ValueError("heads that share a matrix that is not the target's have no place in the original layout")
        tensors |= {f"{i}.{depth}.weight": own.weight for i, own in enumerate(net.lm_heads)}  # pyright: ignore
        with new_folder(folder) as part:
            write_folder(part, tensors, {}, config, "medusa_lm_head.pt", lm.model.dtype)
        return
    split = {name: name.split(".") for name in tensors}  # 2.0.linear.bias -> blocks.2.layers.0.bias
    tensors = {f"blocks.{i}.layers.{at}.{part}": tensors[name] for name, (i, at, _, part) in split.items()}
    if net.shared is None:
        tensors |= {f"lm_heads.{i}.weight": own.weight for i, own in enumerate(net.lm_heads)}  # pyright: ignore
    else:
        tensors["lm_heads.0.weight"] = head if targets else net.shared
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "num_heads": len(net.blocks),
        "num_hidden_layers": depth,
        "hidden_size": config["hidden_size"],
        "vocab_size": len(head),
        "truncated_vocab_size": len(head),
        "medusa_fc_bias": True,
        "original_lm_head": net.shared is not None,
        "dtype": str(lm.model.dtype).removeprefix("torch."),
    }
    with new_folder(folder) as part:
        write_folder(part, tensors, {}, config, dtype=lm.model.dtype)
