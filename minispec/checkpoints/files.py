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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minispec.hub import checkpoint_names, first_line, part_rows, refuse_twice, weight_files

if TYPE_CHECKING:
    from minispec.model import Transformer

HEAD_FILES = ("medusa_lm_head.pt", "pytorch_model*.bin")  # where published heads are not in safetensors
LARGEST = 64  # nodes of a tree
COUNTS = ("medusa_num_heads", "medusa_num_layers", "num_heads", "num_hidden_layers", "hidden_size", "vocab_size", "head_dim")
COUNTS += ("truncated_vocab_size", "draft_vocab_size", "target_hidden_size", "intermediate_size", "num_attention_heads")
COUNTS += ("num_key_value_heads", "max_position_embeddings", "num_tokens", "depth", "top_k", "nodes")
FLAGS = ("bias", "qkv_bias", "medusa_fc_bias", "original_lm_head", "norm_before_residual", "norm_output")
FLAGS += ("shares_embeddings",)
POSITIVE = ("rms_norm_eps", "rope_theta", "factor")
OBJECTS = ("eagle_config", "transformer_layer_config", "rope_scaling", "rope_parameters", "minispec", "dynamic")
LISTS = ("eagle_aux_hidden_state_layer_ids",)
# What a field that is read here must hold, and the names of those fields.
KINDS: dict[str, tuple[Callable[[Any], bool], tuple[str, ...]]] = {
    "whole number from 1 to 16 million": (
        lambda x: type(x) is int and 0 < x <= 16_000_000,
        COUNTS,
    ),  # more would hang, not load
    "number above 0": (lambda x: type(x) in (int, float) and 0 < x < float("inf"), POSITIVE),
    "true or false": (lambda x: type(x) is bool, FLAGS),
    "object": (lambda x: type(x) is dict, OBJECTS),
    "list": (lambda x: type(x) is list, ("cost", "rates")),
    "list of names": (lambda x: type(x) is list and all(type(i) is str for i in x), ("architectures",)),
    "list of whole numbers": (lambda x: type(x) is list and all(type(i) is int for i in x), LISTS),
}


def read_config(folder: Path, what: str) -> dict[str, Any]:
    """A drafter's config.json. Raises ValueError if it is not there or no JSON object."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{folder} holds no {what}: config.json cannot be read ({first_line(error)})") from error
    if not isinstance(config, dict):
        raise ValueError(f"{folder} holds no {what}: its config.json is not an object")
    check_types(folder, config)
    return config


def check_types(folder: Path, config: dict[str, Any]) -> None:
    """Raise ValueError if a field that is read here holds another type than it should; null stands for absent."""
    for kind, (fits, names) in KINDS.items():
        for name in names:
            value = config.get(name)
            if value is not None and not fits(value):
                raise ValueError(f"config.json in {folder} says {name} = {json.dumps(value)[:40]}, which is no {kind}")
            if isinstance(value, dict):
                check_types(folder, value)


def read_tensors(folder: Path, what: str) -> dict[str, Tensor]:
    """All tensors of a folder, by name, on the CPU. Raises ValueError, naming the file, if one cannot be read whole."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = weight_files(folder, "*.safetensors") or weight_files(folder, *HEAD_FILES)
    if not files:
        raise ValueError(f"{folder} holds no {what}: neither a .safetensors file nor {' or '.join(HEAD_FILES)}")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            content = load_file(file) if file.suffix == ".safetensors" else read_pickle(file)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} is damaged ({first_line(error)}); fetch it again") from error
        refuse_twice(folder, tensors, content)
        tensors |= content
    return tensors


def read_pickle(file: Path) -> dict[str, Tensor]:
    """The tensors that a pickle holds, if it holds nothing else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged file makes the reader stumble over is anything
        found = re.search(r"GLOBAL \S+|TorchScript|operand \d+", str(error))
        if found and (found[0][:7] != "operand" or file.read_bytes()[:1] == pickle.PROTO):
            raise ValueError(
                f"{file} is not a pickle of plain tensors ({found[0]}), so it was not opened: it could run code. Convert it "
                "to safetensors where you trust it"
            ) from error
        reason = f"{type(error).__name__}: {first_line(error).partition('. ')[0]}"
        raise ValueError(f"{file} is damaged, or no file of torch.save ({reason}); fetch it again") from error
    if not (isinstance(content, dict) and all(isinstance(name, str) and plain(x) for name, x in content.items())):
        raise ValueError(f"{file} holds a {type(content).__name__} that is not a table of tensors alone")
    return content


def plain(x: Any) -> bool:
    """Whether something is a tensor that holds its own numbers, each of them."""
    return isinstance(x, Tensor) and x.layout is torch.strided and x.device.type == "cpu" and not x.is_quantized


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
    if not len(ids):
        raise ValueError(f"{name} in {folder} names no ids")
    if not 0 <= int(ids.min()) <= int(ids.max()) < size:
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
    try:
        return plans[tree]()
    except (TypeError, LookupError) as error:
        raise ValueError(f"what config.json keeps under minispec shapes no tree ({error!r}); use --tree chain") from error


def named_tensors(model: Transformer, names: Callable[[str], list[str]] = checkpoint_names) -> Iterator[tuple[str, Tensor]]:
    """The weights under the names that published checkpoints use, stacked matrices taken apart."""
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        parts = names(name)
        yield from zip(parts, weight.split(part_rows(model.config, len(weight), len(parts))), strict=True)


def write_folder(
    folder: Path,
    weights: dict[str, Tensor],
    others: dict[str, Tensor],
    config: dict[str, Any],
    file: str = "model.safetensors",
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Weights in `dtype`, and other tensors as they are, with their configuration. Raises ValueError if there is no room."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    # Each a copy of its own: neither format takes two names for one place well, nor a part of something larger.
    stored = {name: weight.detach().to("cpu", dtype, copy=True).contiguous() for name, weight in weights.items()}
    stored |= {name: x.to("cpu", copy=True) for name, x in others.items()}
    try:
        if file.endswith(".safetensors"):
            save_file(stored, folder / file, metadata={"format": "pt"})
        else:
            torch.save(stored, folder / file)
    except (SafetensorError, RuntimeError) as error:  # what a full disk comes to
        raise ValueError(f"could not write {folder / file} ({first_line(error)}); is there room for it?") from error
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


def plain_config(config: Any, dtype: torch.dtype) -> dict[str, Any]:
    """A transformers configuration for older readers too, which know dtype and rope by other names."""
    plain = {name: value for name, value in json.loads(config.to_json_string()).items() if value is not None}
    for name in ("minispec", "_model_name_or_path", "_name_or_path"):
        plain.pop(name, None)
    rope = dict(plain["rope_parameters"])
    plain |= {"rope_theta": rope["rope_theta"], "head_dim": plain.get("head_dim")}
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    plain["rope_scaling"] = None if rope["rope_type"] == "default" else scaling
    plain["dtype"] = plain["torch_dtype"] = str(dtype).removeprefix("torch.")
    return plain


def sizes(names: Sequence[str], pattern: str) -> list[int]:
    """Of names such as 3.0.linear.weight: one more than the largest of each number that `pattern` picks."""
    found = [tuple(map(int, m.groups())) for m in map(re.compile(pattern).fullmatch, names) if m]
    return [1 + max(column) for column in zip(*found, strict=True)]
