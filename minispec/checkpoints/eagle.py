"""EAGLE heads: EAGLE-1 and 2 (the same weights), EAGLE-3 in the original layout, and in that of vLLM's `speculators`.

load_drafter("eagle", lm, "folder or hub id", tree="chain")

| | EAGLE-1, 2 | EAGLE-3, original | EAGLE-3, speculators |
|---|---|---|---|
| the layer | layers.0.*, no input_layernorm | midlayer.* | layers.0.* |
| feature(s) in | fc.weight [width, 2 width], fc.bias | fc.weight [width, 3 width] | the same |
| tokens out | the target's matrix | norm, lm_head, d2t (offsets), t2d | the same |
| embeddings | a copy of the target's, or none | mostly none | mostly none |
| configuration | that of a Llama | that of a Llama | `transformer_layer_config` within another |

Three flags mean different things to different readers. The list of layers read counts what goes into a layer (speculators,
vLLM, EAGLE's own code) or what comes out of it (SpecForge, whose list starts with 1; by that SGLang's pull request 25454
tells them apart): ours is left out where all readers take the same three unasked. `norm_output`: SpecForge asks whether
there is a norm before lm_head (absent: yes), vLLM whether the normed state is fed back (absent: no): absent is right for
both. `norm_before_residual`, absent, is true to vLLM and false to speculators' converter: it is always written, and asked
for.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minispec.checkpoints.files import (
    LARGEST,
    named_tensors,
    new_folder,
    pick,
    plain_config,
    read_config,
    read_tensors,
    refuse_flags,
    vocabulary_map,
    write_folder,
)
from minispec.drafters.dynamic_tree import DynamicTree
from minispec.drafters.eagle import Eagle, EagleNet
from minispec.hub import LanguageModel, as_weight, checkpoint_names, empty_model, first_line, load_weights, quiet
from minispec.tree import grow

BESIDE = ("minispec", "eagle_config", "eagle_aux_hidden_state_layer_ids", "draft_vocab_size", "target_hidden_size")
BESIDE += ("layer_types", "torch_dtype", "dtype")  # of a layer, what is not asked
NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


def load_eagle(folder: Path, lm: LanguageModel, num_tokens: int | None = None, tree: str | None = None) -> Eagle:
    """An EAGLE head of any layout. Ours come with what shapes a tree; others draft a chain unless told otherwise."""
    net, own = read_eagle(folder, lm)
    most = min(num_tokens or LARGEST, len(own.get("cost", range(LARGEST + 1))) - 1)  # a tree ends with the cost curve
    dynamic: dict[str, Any] = {"depth": 5, "top_k": 8, "nodes": 16} | own.get("dynamic", {})
    dynamic |= {"nodes": min(most, num_tokens or dynamic["nodes"]), "cost": tuple(own.get("cost", ()))}
    plans: dict[str, Any] = {
        "chain": lambda: None,
        "static": lambda: grow(own["rates"], lambda n: own["cost"][n - 1], most=most),
        "dynamic": lambda: DynamicTree(**dynamic),
    }
    plan = pick(tree or own.get("tree", "chain"), plans, own)
    return Eagle(net, num_tokens or own.get("num_tokens", 4), plan)


def read_eagle(folder: Path, lm: LanguageModel) -> tuple[EagleNet, dict[str, Any]]:
    """The head in `folder`, and what only our own weights have beside it.

    Raises ValueError, naming the cause, for what is not there whole, contradicts itself or does not fit `lm`.
    """
    stored, tensors = read_config(folder, "EAGLE head"), read_tensors(folder, "EAGLE head")
    names = original_names if any(name.startswith("midlayer.") for name in tensors) else layer_names
    if "fc.weight" not in tensors or not any(name.startswith(("midlayer.", "layers.0.")) for name in tensors):
        raise ValueError(f"{folder} holds no EAGLE head: its weights lack fc.weight, or a layer")
    eagle = 3 if names is original_names or "norm.weight" in tensors or "layers.0.hidden_norm.weight" in tensors else 1
    config = layer_config(folder, stored, eagle)
    size, own, theirs = config.vocab_size, stored.get("minispec") or {}, lm.model.config
    if (size, config.hidden_size) != (theirs.vocab_size, theirs.hidden_size):
        target = own.get("target") or f"a vocabulary of {size}, width {config.hidden_size}"
        raise ValueError(f"the EAGLE head in {folder} was trained for {target}, not for {lm.name}")
    refuse_flags(folder, stored, {"target_hidden_size": theirs.hidden_size})

    count = stored.get("draft_vocab_size") or (size if eagle == 1 else None)
    if count is None:
        raise ValueError(f"config.json in {folder} lacks draft_vocab_size: readers disagree on what that means")
    vocabulary = drafted(folder, tensors, count, size)
    layers = layers_read(folder, stored, theirs.num_hidden_layers) if eagle == 3 else (theirs.num_hidden_layers,)
    net = empty_model(folder, EagleNet, config, layers, vocabulary, eagle)
    shared: dict[str, Tensor] = {}
    device, dtype = lm.model.device, lm.model.dtype
    copied, embedding = tensors.get("embed_tokens.weight"), lm.model.embed_tokens.weight
    # A copy would only take memory.
    if copied is None or torch.equal(as_weight(folder, "embed_tokens.weight", copied, device, dtype), embedding):
        tensors.pop("embed_tokens.weight", None)
        shared["embed_tokens.weight"] = embedding
    if eagle == 1:
        head = lm.model.lm_head.weight
        shared["lm_head.weight"] = head if len(vocabulary) == size else nn.Parameter(head[vocabulary])
    load_weights(net, folder, device, dtype, shared, names=names, tensors=tensors)
    net.vocabulary = vocabulary.to(lm.model.device)
    return net.eval().requires_grad_(False), own


def layer_config(folder: Path, stored: dict[str, Any], eagle: int) -> Any:
    """The configuration of the layer. Raises ValueError if it lacks a size, or asks for what is not computed here."""
    from transformers import LlamaConfig

    flat, kind = stored, stored.get("speculators_model_type")
    if kind is not None:
        refuse_flags(folder, stored, {"speculators_model_type": "eagle3"})
        flat = stored.get("transformer_layer_config") or {}
        if stored.get("norm_before_residual") is None:
            raise ValueError(f"config.json in {folder} lacks norm_before_residual: readers disagree on what that means")
    else:
        refuse_flags(folder, stored, {"norm_output": True})
    refuse_flags(folder, stored, {"fc_norm": False, "norm_before_fc": False})
    refuse_flags(folder, stored.get("eagle_config") or {}, {"use_aux_hidden_state": True})
    refuse_flags(folder, flat, {"num_hidden_layers": 1, "model_type": "llama", "use_sliding_window": False})
    if "sliding_attention" in (flat.get("layer_types") or ()):
        raise ValueError(f"layer_types in {folder} asks for sliding-window attention, but only full attention is computed")
    for name in (*(stored.get("architectures") or ()), *(flat.get("architectures") or ())):
        if not re.search("llama|^eagle", name, re.IGNORECASE):
            raise ValueError(f"config.json in {folder} says architectures = [{name}], but only Llama's layer is computed")
    missing = [name for name in NEEDED if flat.get(name) is None]
    if missing:
        raise ValueError(f"config.json in {folder} lacks {', '.join(missing)}")
    family = (
        "Qwen2ForCausalLM" if flat.get("qkv_bias") else "LlamaForCausalLM"
    )  # Qwen2's attention: biases, but not at o_proj
    changes = {"architectures": [family], "num_hidden_layers": 1, "tie_word_embeddings": False}
    kept = {name: value for name, value in flat.items() if value is not None and name not in BESIDE}
    try:
        with quiet():
            config = LlamaConfig.from_dict(kept | changes)
    except Exception as error:  # transformers' own checks of values have no common base
        raise ValueError(f"config.json in {folder} is no configuration of a layer ({first_line(error)})") from error
    config.norm_before_residual = eagle == 3 and bool(stored.get("norm_before_residual"))
    config.norm_output = kind is not None and bool(stored.get("norm_output"))
    config.bias = bool(stored.get("bias", True))  # of EAGLE-1's fc; absent means true, as in EAGLE's own code
    return config


def layers_read(folder: Path, stored: dict[str, Any], n: int) -> tuple[int, ...]:
    """The hidden states that an EAGLE-3 head fuses, numbered as what goes into a layer; `n`: layers of the target."""
    usual = (2, n // 2, n - 3)
    outer = stored.get("eagle_aux_hidden_state_layer_ids")
    inner = (stored.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if inner and inner[0] == 1:  # counted by what comes out of a layer
        inner = [i + 1 for i in inner]
    if outer and list(outer) == [i - 1 for i in usual]:
        raise ValueError(
            f"eagle_aux_hidden_state_layer_ids in {folder} is {list(outer)}: the usual layers counted by their outputs, but "
            f"this field counts inputs; write {list(usual)} if those are meant"
        )
    if outer and inner and list(outer) != list(inner):
        raise ValueError(f"config.json in {folder} lists other layers in eagle_config than beside it")
    layers = tuple(outer or inner or usual)
    if not (outer or inner) and n < 7:
        raise ValueError(
            f"config.json in {folder} names no layers of the target, which has {n}, too few for the usual three"
        )
    if len(set(layers)) < len(layers) or not all(0 <= i <= n for i in layers):
        raise ValueError(f"config.json in {folder} names the layers {list(layers)}, but the target has 0 to {n}")
    return layers


def drafted(folder: Path, tensors: dict[str, Tensor], count: int, size: int) -> Tensor:
    """The ids that a head drafts, from d2t and t2d, which are taken out of `tensors`."""
    offsets, inside = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if offsets is None:
        if count != size:
            raise ValueError(f"the weights in {folder} lack d2t, but draft_vocab_size ({count}) is not vocab_size ({size})")
        return torch.arange(size)
    if offsets.shape != (count,):
        raise ValueError(f"d2t in {folder} has shape {list(offsets.shape)}, not {[count]}")
    ids = vocabulary_map(folder, "d2t", offsets + torch.arange(count), size)
    if inside is not None and (inside.shape != (size,) or sorted(ids.tolist()) != inside.nonzero().flatten().tolist()):
        raise ValueError(f"d2t and t2d in {folder} do not name the same ids")
    return ids


def layer_names(name: str) -> list[str]:
    """The tensors of a published head that make up ours: of EAGLE-1, and in the speculators layout."""
    return [part.removeprefix("model.") for part in checkpoint_names(name)]


def original_names(name: str) -> list[str]:
    """The same for EAGLE-3 in the original layout."""
    return [part.replace("layers.0.", "midlayer.") for part in layer_names(name)]


def head_tensors(net: EagleNet, lm: LanguageModel, speculators: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a head has of its own, under published names, and the map of what it drafts; d2t[i] = target id - i."""
    tensors = dict(named_tensors(net, original_names if net.eagle == 3 and not speculators else layer_names))
    if torch.equal(net.embed_tokens.weight, lm.model.embed_tokens.weight):
        del tensors["embed_tokens.weight"]  # the target's
    if net.eagle == 1:
        del tensors["lm_head.weight"]  # the target's too
    ids = net.vocabulary.cpu()
    inside = torch.zeros(lm.model.config.vocab_size, dtype=torch.bool)
    inside[ids] = True
    return tensors, {"d2t": ids - torch.arange(len(ids)), "t2d": inside}


def head_config(net: EagleNet, lm: LanguageModel, dtype: torch.dtype) -> dict[str, Any]:
    """The configuration in the original layout."""
    config = plain_config(net.config, dtype)
    config.pop("norm_output", None)
    config |= {"tie_word_embeddings": False, "qkv_bias": net.config.architectures == ["Qwen2ForCausalLM"]}
    if net.eagle == 1:
        return config | {"architectures": ["LlamaForCausalLM"], "bias": net.fc.bias is not None}
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "bias": False}  # vLLM reads it as that of attention
    config |= {"fc_norm": False, "norm_before_fc": False, "draft_vocab_size": len(net.vocabulary)}
    config["norm_before_residual"] = bool(getattr(net.config, "norm_before_residual", False))
    n, layers = lm.model.config.num_hidden_layers, list(net.layers_read)
    if n < 7 or layers != [2, n // 2, n - 3]:
        config["eagle_aux_hidden_state_layer_ids"] = layers
    return config


def save_eagle(folder: Path, net: EagleNet, lm: LanguageModel, own: dict[str, Any]) -> None:
    """Write an EAGLE head of ours, in the original layout. `own`: what only we read."""
    config = head_config(net, lm, torch.bfloat16)
    config |= {"draft_vocab_size": len(net.vocabulary), "minispec": {"target": lm.name, "eagle": net.eagle, **own}}
    write_folder(folder, *head_tensors(net, lm), config)


def export_eagle(drafter: Eagle, lm: LanguageModel, folder: Path, layout: str) -> None:
    """Write a head in the original layout, which vLLM opens too, or in that of speculators.

    Raises ValueError if that layout cannot hold it.
    """
    net, dtype = drafter.net, lm.model.dtype
    if net.eagle == 1 and layout != "original":
        raise ValueError("an EAGLE-1 head is written in its original layout only; use --layout original")
    if net.eagle == 3 and list(net.layers_read) != sorted(net.layers_read):
        raise ValueError(f"vLLM reads layers in ascending order, and this head's are {list(net.layers_read)}")
    normed = bool(getattr(net.config, "norm_output", False))
    if normed and layout != "speculators":
        raise ValueError("a head that is fed its normed state has a place in the speculators layout only")
    config = head_config(net, lm, dtype)
    tensors, maps = head_tensors(net, lm, layout == "speculators")
    if net.eagle == 1 or len(net.vocabulary) == lm.model.config.vocab_size:
        maps = {}
    if layout == "speculators":
        config = speculators_config(config, net, lm, normed, drafter.num_tokens)
    with new_folder(folder) as part:
        write_folder(part, tensors, maps, config, dtype=dtype)


def speculators_config(
    config: dict[str, Any], net: EagleNet, lm: LanguageModel, normed: bool, num_tokens: int
) -> dict[str, Any]:
    outer = ("draft_vocab_size", "norm_before_residual", "norm_before_fc", "fc_norm", "eagle_aux_hidden_state_layer_ids")
    proposal = {"proposal_type": "greedy", "speculative_tokens": num_tokens, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    verifier = {"name_or_path": lm.name, "architectures": lm.model.config.architectures}
    layer = {name: value for name, value in config.items() if name not in outer}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        **{name: config[name] for name in outer[:-1]},
        "eagle_aux_hidden_state_layer_ids": list(net.layers_read),
        "norm_output": normed,
        "target_hidden_size": lm.model.config.hidden_size,
        "embed_requires_grad": False,
        "dtype": config["dtype"],
        "torch_dtype": config["torch_dtype"],
        "tie_word_embeddings": False,
        "transformer_layer_config": layer | {"architectures": ["LlamaForCausalLM"]},
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [proposal],
            "default_proposal_method": "greedy",
            "verifier": verifier,
        },
    }
