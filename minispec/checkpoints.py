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
from torch import Tensor, nn

from minispec.drafters.draft_model import DraftModel
from minispec.drafters.dynamic_tree import DynamicTree
from minispec.drafters.eagle import Eagle, EagleNet
from minispec.drafters.medusa import Medusa, MedusaHeads
from minispec.hub import DEFAULT, LanguageModel, checkpoint_names, fetch, first_line, load, load_weights
from minispec.model import Transformer
from minispec.tree import Shape, grow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from minispec.drafters.base import Drafter

LARGEST = 64  # nodes of a tree
WEIGHTS = Path(__file__).parent / "weights"
# How our draft models draft unless told otherwise: chosen on held-out texts, on two CPU cores (weights/draft.md).
DRAFT_OPTIONS = {"num_tokens": 6, "min_confidence": 0.3}


def load_drafter(method: str, lm: LanguageModel, source: str | Path | None = None, **options: Any) -> Drafter:
    """The drafter that ships with the package for the default target, or the one in `source`: a folder or a hub id.

    `method`: draft, medusa or eagle. `options` go to the drafter: `num_tokens`, the most that a round drafts, and for medusa
    and eagle `tree`: "chain", "static" (the shape that pays most by the rates and the cost curve stored with the weights)
    or, for eagle, "dynamic". Raises ValueError for an unknown method, a target that nothing was shipped for, and a
    source that cannot be read or does not fit the target.
    """
    if method not in ("draft", "medusa", "eagle"):
        raise ValueError(f"no drafter is loaded for the method {method!r}; use draft, medusa or eagle")
    if options.get("num_tokens", 1) < 1:
        raise ValueError(f"num_tokens must be 1 or more, but is {options['num_tokens']}")
    if source is None and lm.name != DEFAULT:
        what = {"draft": "draft model", "medusa": "Medusa heads", "eagle": "EAGLE head"}[method]
        raise ValueError(
            f"the {what} that ships with minispec was trained for {DEFAULT}; name one for {lm.name} (--drafter), or "
            f"leave the method {method} out"
        )
    folder = WEIGHTS / method if source is None else fetch(str(source))
    if method != "draft":
        return (load_medusa if method == "medusa" else load_eagle)(folder, lm, **options)
    file = folder / "config.json"
    if not file.is_file() or "minispec" not in json.loads(file.read_text()):
        small = load(str(source), str(lm.model.device), lm.model.dtype)
        return DraftModel(small, **options)
    return load_own_draft(folder, lm, options)


def read_config(folder: Path, key: str, what: str) -> dict[str, Any]:
    """A drafter's config.json. Raises ValueError if it is not there, or not one of that kind (it lacks `key`)."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{folder} holds no {what} (config.json: {first_line(error)})") from error
    if key not in config or "minispec" not in config:
        raise ValueError(
            f"{folder} holds no {what} of ours: its config.json lacks {key if key not in config else 'minispec'}"
        )
    return config


def load_eagle(folder: Path, lm: LanguageModel, num_tokens: int | None = None, tree: str | None = None) -> Eagle:
    """An EAGLE head that `save_eagle` wrote."""
    from transformers import LlamaConfig

    stored = read_config(folder, "draft_vocab_size", "EAGLE head")
    own = stored["minispec"]
    theirs = lm.model.config
    if (stored["vocab_size"], stored["hidden_size"]) != (theirs.vocab_size, theirs.hidden_size):
        raise ValueError(f"the EAGLE head in {folder} was trained for {own['target']}, not for {lm.name}")
    config = LlamaConfig.from_dict({**stored, "architectures": ["LlamaForCausalLM"]})
    vocabulary = read_tensor(folder, "d2t") + torch.arange(stored["draft_vocab_size"])
    with torch.device("meta"):
        net = EagleNet(config, own["layers"], vocabulary, own["eagle"])
    shared = {"embed_tokens.weight": lm.model.embed_tokens.weight}
    if own["eagle"] == 1:
        shared["lm_head.weight"] = nn.Parameter(lm.model.lm_head.weight[vocabulary])
    names = EAGLE_NAMES[own["eagle"]]
    load_weights(net, folder, lm.model.device, lm.model.dtype, shared, extra=("d2t", "t2d"), names=names)
    net.vocabulary = vocabulary.to(lm.model.device)
    most = min(num_tokens or LARGEST, len(own["cost"]) - 1)  # no tree is larger than the cost curve reaches
    dynamic = own["dynamic"] | {"nodes": min(most, num_tokens or own["dynamic"]["nodes"]), "cost": tuple(own["cost"])}
    plans: dict[str, Any] = {
        "chain": lambda: None,
        "static": lambda: grow(own["rates"], lambda n: own["cost"][n - 1], most=most),
        "dynamic": lambda: DynamicTree(**dynamic),
    }
    plan = pick(tree or own["tree"], plans)
    return Eagle(net.eval().requires_grad_(False), num_tokens or own["num_tokens"], plan)


def load_medusa(folder: Path, lm: LanguageModel, num_tokens: int | None = None, tree: str | None = None) -> Medusa:
    """Medusa heads that `save_medusa` wrote: residual blocks, and the ids whose rows of the target's output matrix serve."""
    from safetensors.torch import load_file

    stored = read_config(folder, "medusa_num_heads", "Medusa heads")
    own, width = stored["minispec"], lm.model.config.hidden_size
    if (stored["vocab_size"], stored["hidden_size"]) != (lm.model.config.vocab_size, width):
        raise ValueError(f"the Medusa heads in {folder} were trained for {own['target']}, not for {lm.name}")
    vocabulary = read_tensor(folder, "vocabulary").long().to(lm.model.device)
    shared = lm.model.lm_head.weight[vocabulary]
    net = MedusaHeads(stored["medusa_num_heads"], width, vocabulary, shared, stored["medusa_num_layers"])
    tensors = {f"blocks.{name}": weight for name, weight in load_file(folder / "model.safetensors").items()}
    tensors.pop("blocks.vocabulary")
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"the Medusa heads in {folder} do not fit their config.json: {first_line(error)}") from error
    net = net.to(lm.model.device, lm.model.dtype).eval().requires_grad_(False)
    most = min(num_tokens or LARGEST, len(own["cost"]) - 1)
    plans: dict[str, Any] = {
        "chain": lambda: Shape.of([[0] * n for n in range(1, min(most, len(net.blocks)) + 1)]),
        "static": lambda: grow(own["rates"], lambda n: own["cost"][n - 1], most=most),
    }
    return Medusa(net, pick(tree or "static", plans), lm.model.config.num_hidden_layers)


def pick(tree: str, plans: dict[str, Any]) -> Any:
    if tree not in plans:
        raise ValueError(f"there is no tree {tree!r} for this method; use {' or '.join(plans)}")
    return plans[tree]()


def read_tensor(folder: Path, name: str) -> Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / "model.safetensors", framework="pt") as file:
            return file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"the tensor {name} in {folder} cannot be read ({first_line(error)})") from error


def load_own_draft(folder: Path, lm: LanguageModel, options: dict[str, Any]) -> DraftModel:
    """A folder that `save_draft` wrote: perhaps without embeddings and output matrix, which are then the target's own."""
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
    vocabulary = read_tensor(folder, "vocabulary").to(lm.model.device, torch.int64)
    small = LanguageModel(model.eval().requires_grad_(False), lm.tokenizer, lm.eos_ids, None, folder.name)
    return DraftModel(small, vocabulary=vocabulary, **DRAFT_OPTIONS | options)


def eagle1_names(name: str) -> list[str]:
    """The tensors of a published EAGLE-1 head that make up ours."""
    return [part.removeprefix("model.") for part in checkpoint_names(name)]


def eagle3_names(name: str) -> list[str]:
    """The tensors of a published EAGLE-3 head that make up ours."""
    return [part.replace("layers.0.", "midlayer.") for part in eagle1_names(name)]


EAGLE_NAMES = {1: eagle1_names, 3: eagle3_names}


def named_tensors(model: Transformer, names: Callable[[str], list[str]] = checkpoint_names) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names that published checkpoints use, stacked matrices taken apart."""
    c = model.config
    heads = [c.num_attention_heads, c.num_key_value_heads, c.num_key_value_heads]
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        parts = names(name)
        sizes = [weight.shape[0] * n // sum(heads) for n in heads] if len(parts) == 3 else len(weight) // len(parts)
        yield from zip(parts, weight.split(sizes), strict=True)


def save_draft(folder: Path, model: Transformer, vocabulary: Tensor, lm: LanguageModel, shared: bool) -> None:
    """Write a draft model for `lm`: bfloat16; what it shares with the target (`shared`) is left out."""
    tensors = dict(named_tensors(model))
    if shared:
        tensors = {name: weight for name, weight in tensors.items() if name.startswith(("model.layers.", "model.norm."))}
    config = json.loads(model.config.to_json_string())
    config["minispec"] = {"target": lm.name, "shares_embeddings": shared}
    write_folder(folder, tensors, {"vocabulary": vocabulary.int()}, config)


def write_folder(folder: Path, weights: dict[str, Tensor], others: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Weights in bfloat16, and other tensors as they are, with their configuration."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in weights.items()}
    file = folder / "model.safetensors"
    save_file({**stored, **{name: x.cpu() for name, x in others.items()}}, file, metadata={"format": "pt"})
    file.chmod(0o644)  # written for its owner alone; others may read it
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def save_eagle(folder: Path, net: EagleNet, lm: LanguageModel, own: dict[str, Any]) -> None:
    """Write an EAGLE head in the original layout (d2t holds offsets: target id = i + d2t[i]). `own`: what only we read."""
    tensors = dict(named_tensors(net, EAGLE_NAMES[net.eagle]))
    for name in ("embed_tokens.weight", *(["lm_head.weight"] if net.eagle == 1 else [])):
        del tensors[name]  # the target's
    ids = net.vocabulary.cpu()
    inside = torch.zeros(lm.model.config.vocab_size, dtype=torch.bool)
    inside[ids] = True
    config = json.loads(net.config.to_json_string())
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(ids),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(net.layers_read), "use_aux_hidden_state": True},
        "minispec": {"target": lm.name, "eagle": net.eagle, "layers": list(net.layers_read), **own},
    }
    write_folder(folder, tensors, {"d2t": ids - torch.arange(len(ids)), "t2d": inside}, config)


def save_medusa(folder: Path, net: MedusaHeads, lm: LanguageModel, own: dict[str, Any]) -> None:
    """Write Medusa heads that share the target's output matrix: residual blocks alone, under their published names."""
    config = {
        "medusa_num_heads": len(net.blocks),
        "medusa_num_layers": len(list(net.blocks[0].children())),
        "version": "2",
        "base_model_name_or_path": lm.name,
        "hidden_size": lm.model.config.hidden_size,
        "vocab_size": lm.model.config.vocab_size,
        "minispec": {"target": lm.name, **own},
    }
    write_folder(folder, dict(net.blocks.state_dict()), {"vocabulary": net.vocabulary.int()}, config)


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
