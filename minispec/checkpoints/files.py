"""Folders of weights: read whole or not at all, written beside their place and then renamed.

read_tensors(folder, "EAGLE head")                                    # {name: tensor}, from safetensors or a pickle

A pickle can run code when it is opened, so only one of plain tensors is opened at all.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minispec.hub import checkpoint_names, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from minispec.model import Transformer

HEAD_FILES = ("medusa_lm_head.pt", "pytorch_model*.bin")  # where published heads are not in safetensors
LARGEST = 64  # nodes of a tree
COUNTS = ("medusa_num_heads", "medusa_num_layers", "num_heads", "num_hidden_layers", "hidden_size", "vocab_size")
COUNTS += ("truncated_vocab_size", "draft_vocab_size", "target_hidden_size", "intermediate_size", "num_attention_heads")
KINDS = {
    int: (*COUNTS, "num_key_value_heads", "head_dim"),
    bool: ("bias", "qkv_bias", "medusa_fc_bias", "original_lm_head", "norm_before_residual", "norm_output"),
    dict: ("eagle_config", "transformer_layer_config", "minispec"),
    list: ("eagle_aux_hidden_state_layer_ids",),
}
NAMES = {int: "whole number", bool: "true or false", dict: "object", list: "list of whole numbers"}


def read_config(folder: Path, what: str) -> dict[str, Any]:
    """A drafter's config.json. Raises ValueError if it is not there or no JSON object."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no {what}: config.json cannot be read ({first_line(error)})") from error
    if not isinstance(config, dict):
        raise ValueError(f"{folder} holds no {what}: its config.json is not an object")
    check_types(folder, config)
    return config


def check_types(folder: Path, config: dict[str, Any]) -> None:
    """Raise ValueError if a field that is read here holds another type than it should; null stands for absent."""
    for name, value in config.items():
        kind = next((kind for kind, names in KINDS.items() if name in names), None)
        ids = not isinstance(value, list) or all(type(i) is int for i in value)
        if kind is not None and value is not None and (type(value) is not kind or not ids):
            raise ValueError(f"config.json in {folder} says {name} = {json.dumps(value)[:40]}, which is no {NAMES[kind]}")
        if kind is dict and isinstance(value, dict):
            check_types(folder, value)


def read_tensors(folder: Path, what: str) -> dict[str, Tensor]:
    """All tensors of a folder, by name, on the CPU. Raises ValueError, naming the file, if one cannot be read whole."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors")) or sorted(f for pattern in HEAD_FILES for f in folder.glob(pattern))
    if not files:
        raise ValueError(f"{folder} holds no {what}: neither a .safetensors file nor {' or '.join(HEAD_FILES)}")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file) if file.suffix == ".safetensors" else read_pickle(file)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} is damaged ({first_line(error)}); fetch it again") from error
    return tensors


def read_pickle(file: Path) -> dict[str, Tensor]:
    """The tensors that a pickle holds, if it holds nothing else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"unsupported (GLOBAL|operand) (\S+)", str(error), re.IGNORECASE)
        reason = f"{found[1].lower()} {found[2]}" if found else first_line(error)
        raise ValueError(
            f"{file} is not a pickle of plain tensors ({reason}), so it was not opened: it could run code. Convert it to "
            "safetensors where you trust it"
        ) from error
    except Exception as error:  # what a damaged file makes the reader stumble over is anything
        raise ValueError(f"{file} is damaged ({type(error).__name__}: {first_line(error)}); fetch it again") from error
    if not (isinstance(content, dict) and all(isinstance(x, Tensor) for x in content.values())):
        raise ValueError(f"{file} holds a {type(content).__name__} that is not a table of tensors alone")
    return content


def refuse_flags(folder: Path, config: dict[str, Any], computed: dict[str, Any]) -> None:
    """Raise ValueError if a flag is set to another value than the one that is computed here; absent is that value."""
    for flag, value in computed.items():
        if config.get(flag, value) not in (value, None):
            raise ValueError(
                f"config.json in {folder} says {flag} = {json.dumps(config[flag])}, but only {json.dumps(value)} is computed"
            )


def match(folder: Path, tensors: dict[str, Tensor], wanted: dict[str, list[int]]) -> None:
    """Raise ValueError, naming them, if tensors are missing, left over or of another shape than `wanted`."""
    missing = [name for name in wanted if name not in tensors]
    if missing:
        raise ValueError(f"the weights in {folder} lack {', '.join(missing[:3])}")
    if left := sorted(set(tensors) - set(wanted)):
        raise ValueError(f"the weights in {folder} hold tensors that are not expected: {', '.join(left[:3])}")
    for name, shape in wanted.items():
        if list(tensors[name].shape) != shape:
            raise ValueError(f"{name} in {folder} has shape {list(tensors[name].shape)}, not {shape}")


def vocabulary_map(folder: Path, name: str, ids: Tensor, size: int) -> Tensor:
    """Ids [n] of the target that a head drafts, as int64. Raises ValueError unless they are different ids below `size`."""
    if ids.dtype not in (torch.int32, torch.int64) or ids.dim() != 1:
        raise ValueError(f"{name} in {folder} must be a list of int64, but is {ids.dtype} of shape {list(ids.shape)}")
    ids = ids.long()
    if not len(ids) or not 0 <= int(ids.min()) <= int(ids.max()) < size:
        raise ValueError(f"{name} in {folder} names ids outside the target's vocabulary of {size}")
    if len(ids.unique()) < len(ids):
        raise ValueError(f"{name} in {folder} names an id twice")
    return ids


def pick(tree: str, plans: dict[str, Callable[[], Any]], own: dict[str, Any]) -> Any:
    """What to draft. Raises ValueError for a tree that the method lacks, or that needs what only our own weights have."""
    if tree not in plans:
        raise ValueError(f"there is no tree {tree!r} for this method; use {' or '.join(plans)}")
    if tree == "static" and "rates" not in own:
        raise ValueError("these weights were stored without the rates that shape a static tree; use --tree chain")
    return plans[tree]()


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


def write_folder(
    folder: Path,
    weights: dict[str, Tensor],
    others: dict[str, Tensor],
    config: dict[str, Any],
    file: str = "model.safetensors",
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Weights in `dtype`, and other tensors as they are, with their configuration."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: weight.detach().to("cpu", dtype).contiguous() for name, weight in weights.items()}
    stored |= {name: x.cpu() for name, x in others.items()}
    if file.endswith(".safetensors"):
        save_file(stored, folder / file, metadata={"format": "pt"})
    else:
        torch.save({name: x.clone() for name, x in stored.items()}, folder / file)  # a part would bring its whole along
    (folder / file).chmod(0o644)  # written for its owner alone; others may read it
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into that takes its name when all is written. Raises ValueError if that name is taken."""
    if folder.exists():
        raise ValueError(f"{folder} is there already; name a new folder")
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def plain_config(config: Any, dtype: torch.dtype, **changes: Any) -> dict[str, Any]:
    """A transformers configuration for older readers too, which know dtype and rope by other names."""
    plain = {name: value for name, value in json.loads(config.to_json_string()).items() if value is not None}
    for name in ("minispec", "_model_name_or_path", "_name_or_path"):
        plain.pop(name, None)
    rope = dict(plain["rope_parameters"])
    plain |= {"rope_theta": rope["rope_theta"], "head_dim": plain.get("head_dim")}
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    plain["rope_scaling"] = None if rope["rope_type"] == "default" else scaling
    plain["dtype"] = plain["torch_dtype"] = str(dtype).removeprefix("torch.")
    return plain | changes


def sizes(names: Sequence[str], pattern: str) -> list[int]:
    """Of names such as 3.0.linear.weight: one more than the largest of each number that `pattern` picks."""
    found = [tuple(map(int, m.groups())) for m in map(re.compile(pattern).fullmatch, names) if m]
    return [1 + max(column) for column in zip(*found, strict=True)]
