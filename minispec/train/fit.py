"""The training loop that every drafter shares: AdamW, warm-up and cosine decay, saved and resumed.

fit(model, examples, lengths, Path("runs/draft"), steps=2000, batch=8, lr=5e-4)   # model(examples) is their loss
accelerate launch -m minispec train draft ...         # on several GPUs: Accelerate shares out the batches
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from minispec.train.data import Text

SAVE_S = 150  # seconds between two saves: what a stop may lose
EVALUATIONS = 8  # in a training


class Batches(torch.utils.data.Sampler):
    """Indices of examples, batch by batch, alike in length within a batch; the same ones for the same seed."""

    def __init__(self, lengths: Sequence[int], size: int, steps: int, seed: int):
        if len(lengths) < size:
            raise ValueError(f"a batch takes {size} texts, but there are only {len(lengths)} to train on")
        self.lengths, self.size, self.steps, self.seed = lengths, size, steps, seed
        self.batch_size, self.drop_last = size, True  # what Accelerate asks of one that it shares out

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        chance, left = torch.Generator().manual_seed(self.seed), self.steps
        while left:
            order = torch.randperm(len(self.lengths), generator=chance).tolist()
            groups = []
            for start in range(0, len(order), 32 * self.size):  # sorted by length within a window of 32 batches
                window = sorted(order[start : start + 32 * self.size], key=self.lengths.__getitem__)
                groups += [window[i : i + self.size] for i in range(0, len(window) - self.size + 1, self.size)]
            for i in torch.randperm(len(groups), generator=chance).tolist()[:left]:
                yield groups[i]
                left -= 1


def fit(
    model: nn.Module,
    examples: Sequence[Any],
    lengths: Sequence[int],
    folder: Path,
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int = 0,
    evaluate: Callable[[], Any] | None = None,
) -> list[float]:
    """Train the parameters of `model` that require gradients; `model(list of examples)` is their loss. Each step's loss.

    `lengths`: tokens of each example, so that a batch holds examples of similar length. `evaluate` is called EVALUATIONS
    times on the way; what it returns is kept in `folder`, a line each.
    The state is saved in `folder` every few minutes, beside first and then renamed; a second call goes on from there, with
    the batches that are still to come. Raises ValueError for too few examples, and when the loss is not finite.
    """
    from accelerate import Accelerator, skip_first_batches
    from tqdm import tqdm

    accelerator = Accelerator(device_placement=False)  # the model lies where its caller put it
    loader = torch.utils.data.DataLoader(
        examples,  # pyright: ignore[reportArgumentType] (a list is a dataset)
        batch_sampler=Batches(lengths, batch, steps * accelerator.num_processes, seed),
        collate_fn=list,
    )
    chosen = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses: list[float] = []
    state = folder / "state.pt"
    if state.exists():
        saved = torch.load(state, map_location=chosen[0].device, weights_only=True)
        model.load_state_dict(saved["model"], strict=False)
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        losses = saved["losses"]
    at = time.monotonic()
    main = accelerator.is_main_process
    with tqdm(total=steps, initial=len(losses), unit="step", disable=not (main and sys.stderr.isatty())) as bar:
        for group in skip_first_batches(loader, len(losses)):
            value = wrapped(group)
            mean: Any = accelerator.reduce(value.detach(), "mean")
            losses.append(float(mean))
            if not math.isfinite(losses[-1]):
                raise ValueError(
                    f"the loss is not finite at step {len(losses)}; remove {folder} and use a lower learning rate than {lr}"
                )
            accelerator.backward(value)
            accelerator.clip_grad_norm_(chosen, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            bar.update()
            bar.set_postfix(loss=f"{sum(losses[-50:]) / len(losses[-50:]):.3f}")
            if main and evaluate and len(losses) % max(1, steps // EVALUATIONS) == 0:
                model.eval()
                with (folder / "evaluations.jsonl").open("a") as file:
                    file.write(json.dumps({"step": len(losses), "held_out": evaluate()}) + "\n")
                model.train()
            if main and (time.monotonic() - at > SAVE_S or len(losses) == steps):
                trained = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
                part = folder / ".state.part"
                torch.save(
                    {
                        "model": trained,
                        "optimizer": optimizer.state_dict(),
                        "schedule": schedule.state_dict(),
                        "losses": losses,
                    },
                    part,
                )
                part.replace(state)
                at = time.monotonic()
    return losses


def train_folder(
    out: Path,
    recipe: dict[str, Any],
    texts: Sequence[Text],
    model: nn.Module,
    examples: Callable[[], Sequence[Any]],
    finish: Callable[[Path], dict[str, Any]],
    evaluate: Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """Train `model` by `recipe` (steps, batch, lr, seed, and what tells it from others); put a folder in place of `out`.

    `examples()` is called in one process at a time, so that what it stores is computed once; `finish(folder)` writes the
    weights and says what was measured, which is added to the recipe. Under `accelerate launch` every process trains on its
    own batches, and the first one writes; the others return {}. Until all is done the state lies in a folder beside `out`.
    Raises ValueError for settings out of range, and if `out` holds something else than a drafter of ours.
    """
    from accelerate import PartialState

    if out.exists() and not (out / "recipe.json").exists():
        raise ValueError(f"{out} is there already and is not a trained drafter; name a new folder")
    work, processes = out.with_name(f".{out.name}.part"), PartialState()
    content = hashlib.sha256(b"/".join(ids.tobytes() for text in texts for ids in (text.prompt, text.answer)))
    recipe = recipe | {"texts": len(texts), "text_sha256": content.hexdigest()[:16], "processes": processes.num_processes}
    lengths = [len(text.prompt) + len(text.answer) for text in texts]
    settings = {name: recipe[name] for name in ("steps", "batch", "lr", "seed")}
    Batches(lengths, recipe["batch"], recipe["steps"], recipe["seed"])  # raises before anything is written
    with processes.main_process_first():
        if processes.is_main_process:
            begin_or_resume(work, recipe)
        data = examples()
    model.train()
    losses = fit(model, data, lengths, work, **settings, evaluate=evaluate)
    if not processes.is_main_process:
        return {}
    model.eval()
    shutil.rmtree(work / "done", ignore_errors=True)
    measured = finish(work / "done")
    few = max(1, len(losses) // 20)
    recipe["loss"] = {"first": sum(losses[:few]) / few, "last": sum(losses[-few:]) / few}
    log = work / "evaluations.jsonl"
    if log.exists():
        lines = map(json.loads, log.read_text().splitlines())
        recipe["evaluations"] = list({line["step"]: line for line in lines}.values())  # a resumed run repeats some steps
    (work / "done" / "recipe.json").write_text(json.dumps(recipe | measured, indent=2) + "\n")
    if out.exists():
        shutil.rmtree(out)
    (work / "done").rename(out)
    shutil.rmtree(work)
    return measured


def begin_or_resume(work: Path, recipe: dict[str, Any]) -> None:
    """A folder for the training's state. Raises ValueError if another training was left there half done."""
    note = work / "recipe.json"
    if note.exists() and json.loads(note.read_text()) != recipe:
        raise ValueError(f"{work} holds an unfinished training with other settings; finish it with them, or remove it")
    work.mkdir(parents=True, exist_ok=True)
    part = note.with_suffix(".part")
    part.write_text(json.dumps(recipe))
    part.replace(note)


def rate(step: int, steps: int) -> float:
    """Share of the full learning rate: up over the first 5% of the steps, then down along half a cosine to a tenth."""
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm))
