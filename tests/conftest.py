import os

import pytest
import torch

import minispec as ms

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
