"""transformers' own `generate` and its counterparts of our methods, on the same weights, in the same process.

for name, method in transformers_methods(lm, {"ngram": NGram()}).items(): ...
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minispec.bench import AUTOREGRESSIVE, Method, Run

if TYPE_CHECKING:
    from minispec.hub import LanguageModel


def transformers_methods(lm: LanguageModel, drafters: dict[str, Any]) -> dict[str, Method]:
    """transformers' own `generate` on the same weights, and its counterparts of draft and ngram; single requests only.

    The assistant is the same draft model, restricted to the same ids. Prompt lookup matches down to one token and takes the
    earliest match, which cannot be changed there.
    """
    import tempfile

    import transformers
    from transformers import AutoModelForCausalLM, GenerationConfig

    from minispec.checkpoints import export_draft

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()

    def opened(folder: Any) -> Any:
        model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=lm.model.dtype)
        # Nothing that the model's own generation settings may ask for, such as a repetition penalty.
        model.generation_config = GenerationConfig(eos_token_id=sorted(lm.eos_ids) or None, pad_token_id=0)
        return model.eval().to(lm.model.device)

    if lm.folder is None:
        raise ValueError(f"{lm.name} has no folder that transformers could open; leave --peers out")
    peer = opened(lm.folder)
    settings: dict[str, dict[str, Any]] = {f"transformers {AUTOREGRESSIVE}": {}}
    if "ngram" in drafters:
        ngram = drafters["ngram"]
        lookup = {"prompt_lookup_num_tokens": ngram.num_tokens, "max_matching_ngram_size": max(ngram.sizes)}
        settings["transformers prompt lookup"] = lookup
    if "draft" in drafters:
        with tempfile.TemporaryDirectory() as folder:
            export_draft(drafters["draft"], lm, Path(folder) / "draft")
            small = opened(Path(folder) / "draft")
        if drafters["draft"].vocabulary is not None:
            small.lm_head = TrimmedHead(small.lm_head.weight, drafters["draft"].vocabulary)
        small.generation_config.num_assistant_tokens = drafters["draft"].num_tokens
        small.generation_config.num_assistant_tokens_schedule = "constant"
        small.generation_config.assistant_confidence_threshold = drafters["draft"].min_confidence
        settings["transformers assisted"] = {"assistant_model": small}

    def method(extra: dict[str, Any]) -> Method:
        @torch.inference_mode()
        def run(prompts: list[Tensor], most: int, *_: Any) -> Run:  # always greedy
            ids = prompts[0][None].to(lm.model.device)
            start = time.perf_counter()
            out = peer.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=most, **extra)
            return Run([out[0, ids.shape[1] :].tolist()], time.perf_counter() - start)

        return run

    return {name: method(extra) for name, extra in settings.items()}


class TrimmedHead(torch.nn.Module):
    """An output matrix for some ids: the others get a logit of minus infinity."""

    def __init__(self, weight: Tensor, ids: Tensor):
        super().__init__()
        self.weight, self.ids, self.vocab = torch.nn.Parameter(weight[ids].detach(), requires_grad=False), ids, len(weight)

    def forward(self, state: Tensor) -> Tensor:
        logits = state.new_full((*state.shape[:-1], self.vocab), float("-inf"))
        return logits.index_copy_(-1, self.ids, torch.nn.functional.linear(state, self.weight))
