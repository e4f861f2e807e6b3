"""Requests x methods x batch sizes x temperatures: what a method gains here. `report.py` makes tables and figures of it.

    minispec bench --out result.json                      # writes result.json and result.md, and figures in result/

Methods take turns at every request, so that a drift of the machine hits all alike; so do the two things that a bound is made
of: a pass of the target over 1, 2, ... tokens, and each drafter's proposals on the text that autoregressive decoding wrote.

A result is one JSON object, `SCHEMA` 2. Seconds are of `time.perf_counter`; ids are token ids.
    machine, settings, drafters, requests
                what was measured: versions, threads, dtype, checksums; options and seed; how each drafter was built; id,
                kind and prompt of each request
    runs        [{method, batch, temperature, repeat, rows, tokens, seconds, ttft_s, extra_bytes, rounds, same_text}], where
                rows are places in `requests`, tokens the new ids of each row, and rounds of each row lists of `COLUMNS`
    passes      {cells: [[tokens, cached]], seconds: [[of each cell] of each sweep]}
    rehearsals  {drafter: {row: [[of each round: `Rehearsed`] of each repeat]}}
    ahead       {drafter: {row: [a round, had it begun there, for each token of the text]}}
    examples    {method: the first rounds of one request, with what was drafted}
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import itertools
import json
import os
import platform
import random
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from minispec.decode import generate, generate_batch
from minispec.drafters.dynamic_tree import DynamicTree
from minispec.sampling import Dice, Sampling
from minispec.trace import Clock
from minispec.tree import Shape

if TYPE_CHECKING:
    from minispec.drafters.base import Drafter
    from minispec.hub import LanguageModel

SCHEMA = 2
COLUMNS = ("nodes", "tried", "accepted", "emitted", "draft_s", "verify_s", "accept_s", "other_s")
CONTEXT = 200  # tokens before the pass whose cost is measured: the middle of a typical request
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 24, 33, 65)  # tokens in such a pass
OTHER_CONTEXTS = ((1, 50), (1, 800), (8, 50), (8, 800))  # (tokens, cached): what a longer context costs
AUTOREGRESSIVE = "autoregressive"


@dataclass
class Run:
    """One call of one method: tokens of each row, seconds of the whole call and to the first token, and the rounds."""

    tokens: list[list[int]]
    seconds: float
    ttft_s: float | None = None
    rounds: list[list[list[Any]]] | None = None
    extra_bytes: int = 0


Method = Callable[[list[Tensor], int, float, int], Run]  # prompts, tokens to write at most, temperature, seed


def our_method(lm: LanguageModel, drafter: Drafter | None) -> Method:
    def run(prompts: list[Tensor], most: int, temperature: float, seed: int) -> Run:
        start = time.perf_counter()
        done = generate_batch(lm, prompts, drafter, max_new_tokens=most, sampling=Sampling(temperature), seed=seed)
        seconds = time.perf_counter() - start
        rounds = [[as_row(round) for round in generation.trace.rounds] for generation in done]
        extra = max(generation.trace.extra_bytes for generation in done)
        return Run([g.tokens.tolist() for g in done], seconds, done[0].trace.ttft_s, rounds, extra)

    return run


def as_row(round: Any) -> list[Any]:
    seconds = (rounded(getattr(round, name)) for name in COLUMNS[4:])
    return [round.tree.counts[0], round.tried, len(round.accepted), len(round.emitted), *seconds]


def rounded(seconds: float) -> float:
    return round(seconds, 6)


class PassMeter:
    """Times passes of the target over (tokens, cached): a pass over so many tokens after so many cached ones."""

    def __init__(self, lm: LanguageModel, cells: Sequence[tuple[int, int]]):
        self.model = lm.model
        longest = min(max(sum(cell) for cell in cells), self.model.config.max_position_embeddings)
        self.cells = [cell for cell in cells if sum(cell) <= longest]  # a tiny model may not reach so far
        self.tokens = torch.arange(longest, device=self.model.device)[None] % self.model.config.vocab_size
        self.cache = self.model.new_cache(1, longest)
        with torch.inference_mode():
            self.model(self.tokens, self.cache)

    @torch.inference_mode()
    def sweep(self) -> list[float]:
        """Seconds of one pass for each cell."""
        seconds = []
        for tokens, cached in self.cells:
            self.cache.lengths = [cached]
            clock = Clock(self.model.device)
            self.model(self.tokens[:, cached : cached + tokens], self.cache)
            clock.mark()
            seconds += clock.read()
        return seconds


def cost_curve(lm: LanguageModel, sizes: Sequence[int], repeats: int = 15) -> dict[int, float]:
    """Seconds of one pass of the target over so many tokens, after CONTEXT: medians, the sizes in turn."""
    meter = PassMeter(lm, [(size, CONTEXT) for size in sizes])
    meter.sweep()  # the first one warms up
    columns = zip(*(meter.sweep() for _ in range(repeats)), strict=True)
    return {size: statistics.median(column) for size, column in zip(sizes, columns, strict=True)}


class Rehearsed(NamedTuple):
    """One round of a drafter alone: nodes and levels of its tree, tokens accepted and emitted, seconds of drafting."""

    nodes: int
    levels: int
    accepted: int
    emitted: int
    draft_s: float


@torch.inference_mode()
def rehearse(
    lm: LanguageModel, drafter: Drafter, prompt: Tensor, tokens: list[int], most: int, one_by_one: bool = False
) -> list[Rehearsed]:
    """The rounds of a drafter alone, against a text that is known.

    What the target would accept of a draft is read off the text, so no pass of the target runs between two proposals.
    `most`: the token budget under which the text was written. `one_by_one`: go on by one token after each proposal.
    """
    ids = torch.tensor([*prompt.tolist(), *tokens], device=lm.model.device)
    hidden = None
    if drafter.layers:
        *named, _ = lm.model.states(ids[None], lm.model.new_cache(1, len(ids)), layers=drafter.layers)
        hidden = torch.stack(named, 2)  # [1, time, layers, width]
    n = len(prompt)

    def states(at: int, count: int) -> list[Tensor] | None:  # of the positions before tokens[at], tokens[at + 1], ...
        return None if hidden is None else [hidden[0, n + at - 1 : n + at - 1 + count]]

    drafter.start(lm, n + most, [prompt], None if hidden is None else hidden[:, :n], Dice(Sampling(), [0]))
    drafter.commit([tokens[:1]], states(0, 1))
    done, rounds = 1, []
    while done < len(tokens):
        start = time.perf_counter()
        tree = drafter.propose([most - done - 1])
        drafted, parents = tree.tokens[0].tolist(), tree.parents[0].tolist()
        accepted, at = 0, 0
        while True:  # descend while the text's next token is a child of where we are
            nodes = (i + 1 for i, parent in enumerate(parents) if parent == at and drafted[i] == tokens[done + accepted])
            child = next(nodes, None) if done + accepted < len(tokens) else None
            if child is None:
                break
            accepted, at = accepted + 1, child
        emitted = 1 if one_by_one else min(accepted + 1, len(tokens) - done)
        drafter.commit([tokens[done : done + emitted]], states(done, emitted))
        seconds = rounded(time.perf_counter() - start)
        rounds.append(Rehearsed(len(drafted), int(tree.depths.max()), accepted, emitted, seconds))
        done += emitted
    return rounds


def bench(
    lm: LanguageModel,
    drafters: dict[str, Drafter],
    requests: list[dict[str, Any]],
    *,
    max_new_tokens: int,
    batches: Sequence[int] = (1,),
    temperatures: Sequence[float] = (0.0,),
    repeats: int = 1,
    seed: int = 0,
    peers: bool = False,
    compile: bool = False,
    begun: dict[str, Any] | None = None,
    save: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Run everything; the result as it is stored. `save` is called every minute, and when interrupted, with what is there.

    `begun`: such a part, to go on from. Raises ValueError, before anything runs, for a request that does not fit the model,
    a batch that does not fit in memory or whose requests have different limits, and a part of another benchmark.
    """
    from tqdm import tqdm

    if max_new_tokens < 2:
        raise ValueError(
            f"max_new_tokens must be 2 or more, since the first token comes from prefill; it is {max_new_tokens}"
        )
    prompts = [lm.encode(request["messages"]) for request in requests]
    limits = [min(max_new_tokens, request["max_new_tokens"]) for request in requests]
    for request, prompt, most in zip(requests, prompts, limits, strict=True):
        if len(prompt) + most > lm.model.config.max_position_embeddings:
            raise ValueError(f"request {request['id']} with its {most} new tokens exceeds the model's positions")
    if max(batches) > 1 and len(set(limits)) > 1:
        raise ValueError("requests that are measured in batches must have the same limit; give a lower --max-new-tokens")
    if any(getattr(drafter, "num_tokens", 0) >= SIZES[-1] for drafter in drafters.values()):
        raise ValueError(f"a pass is timed over {SIZES[-1]} tokens at most, so --num-tokens must be {SIZES[-1] - 1} or less")
    check_memory(lm, max(batches), max(map(len, prompts)), max(limits))

    ours: dict[str, Method] = {name: our_method(lm, drafter) for name, drafter in drafters.items()}
    ours = {AUTOREGRESSIVE: our_method(lm, None)} | ours
    if compile:  # an eager baseline flatters whatever needs fewer passes
        from minispec.compile import compiled, compiled_drafter

        fast = compiled(lm)
        ours |= {f"{n} compiled": our_method(fast, compiled_drafter(drafters.get(n))) for n in list(ours)}
    theirs: dict[str, Method] = {}
    if peers:
        from minispec.peers import transformers_methods

        theirs = transformers_methods(lm, drafters)
    meter = PassMeter(lm, [*((size, CONTEXT) for size in SIZES), *OTHER_CONTEXTS])
    options = {"max_new_tokens": max_new_tokens, "batches": list(batches), "temperatures": list(temperatures)}
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "machine": machine(lm),
        "settings": {**options, "repeats": repeats, "seed": seed, "methods": [*ours, *theirs]},
        "drafters": {name: settings(drafter) for name, drafter in drafters.items()},
        "requests": [
            {"id": r["id"], "kind": r["kind"], "prompt": p.tolist()} for r, p in zip(requests, prompts, strict=True)
        ],
        "runs": [],
        "passes": {"cells": meter.cells, "seconds": []},
        "rehearsals": {name: {} for name in drafters},
        "ahead": {name: {} for name in drafters},
    }
    if begun:
        result = going_on(begun, result)
    plan = list(schedule(len(requests), batches, temperatures, repeats, seed, list(ours), list(theirs)))
    for method in (*ours.values(), *theirs.values(), lambda *_: meter.sweep()):
        method(prompts[:1], 8, 0.0, 0)  # the first passes of a process are slow
    result["examples"] = {name: example(lm, drafter, prompts[0]) for name, drafter in drafters.items()}
    save(result)  # what cannot be written is better known now
    saved, start = time.monotonic(), len(result["passes"]["seconds"])
    try:
        for step in tqdm(plan[start:], unit="group", initial=start, total=len(plan), disable=not sys.stderr.isatty()):
            most = limits[step.rows[0]]
            group = {
                name: (ours | theirs)[name]([prompts[row] for row in step.rows], most, step.temperature, seed + step.repeat)
                for name in step.turns
            }
            plain = group[AUTOREGRESSIVE].tokens
            rehearsed = {}
            if step.batch == 1 and step.temperature == 0:
                row = step.rows[0]
                known = (lm, prompts[row], plain[0], most)
                rehearsed = {name: rehearsal(drafter, *known, step.repeat) for name, drafter in drafters.items()}
            sweep = [rounded(seconds) for seconds in meter.sweep()]
            # A group is kept whole or not at all.
            for name, run in group.items():
                same = None if step.temperature else [a == b for a, b in zip(run.tokens, plain, strict=True)]
                where = {"batch": step.batch, "temperature": step.temperature, "repeat": step.repeat, "rows": step.rows}
                result["runs"].append({"method": name, **where, **vars(run), "same_text": same})
            for name, (rounds, ahead) in rehearsed.items():
                result["rehearsals"][name].setdefault(str(step.rows[0]), []).append(rounds)
                result["ahead"][name].setdefault(str(step.rows[0]), ahead)
            result["passes"]["seconds"].append(sweep)
            if time.monotonic() - saved > 60:
                save(result)
                saved = time.monotonic()
    finally:
        save(result)
    return result


def rehearsal(
    drafter: Drafter, lm: LanguageModel, prompt: Tensor, tokens: list[int], most: int, repeat: int
) -> tuple[list[Rehearsed], list[Rehearsed]]:
    """The rounds of the drafter alone; and, the first time, what it would draft after every token of the text."""
    ahead = [] if repeat else rehearse(lm, drafter, prompt, tokens, most, one_by_one=True)
    return rehearse(lm, drafter, prompt, tokens, most), ahead


@dataclass(frozen=True)
class Step:
    """One group of requests, by every method in turn. `rows`: as many as the batch; the last ones begin again."""

    repeat: int
    temperature: float
    batch: int
    rows: list[int]
    turns: list[str]


def schedule(
    requests: int,
    batches: Sequence[int],
    temperatures: Sequence[float],
    repeats: int,
    seed: int,
    ours: list[str],
    theirs: list[str],
) -> Iterator[Step]:
    """All groups, in an order that `seed` shuffles; every method is as often first as another. Peers: single, greedy."""
    for repeat, temperature, size in itertools.product(range(repeats), temperatures, batches):
        dice = random.Random(f"{seed} {repeat} {temperature} {size}")
        names = [*ours, *(theirs if size == 1 and temperature == 0 else ())]
        dice.shuffle(names)
        starts = list(range(0, requests, size))
        dice.shuffle(starts)
        for turn, start in enumerate(starts):
            order = names[turn % len(names) :] + names[: turn % len(names)]
            yield Step(repeat, temperature, size, [row % requests for row in range(start, start + size)], order)


def going_on(begun: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """`begun`, if it is a part of what `fresh` is to become. Raises ValueError if not, naming what differs."""
    plain = json.loads(json.dumps(fresh))
    for part in ("machine", "settings", "drafters", "requests"):
        if begun[part] != plain[part]:
            keys = begun[part] if isinstance(begun[part], dict) else ()
            named = ", ".join(key for key in keys if begun[part][key] != plain[part].get(key))
            raise ValueError(f"the file was begun with other {part} ({named or 'they differ'}); name a new file")
    return begun


def is_complete(result: dict[str, Any]) -> bool:
    options = result["settings"]
    starts = sum(len(range(0, len(result["requests"]), size)) for size in options["batches"])
    return len(result["passes"]["seconds"]) == options["repeats"] * len(options["temperatures"]) * starts


def check_memory(lm: LanguageModel, batch: int, longest: int, most: int) -> None:
    """Raises ValueError if the cache of such a batch and its activations at prefill are larger than what is free."""
    import psutil

    c, device = lm.model.config, lm.model.device
    item = torch.finfo(lm.model.dtype).bits // 8
    cache = (longest + most) * c.num_hidden_layers * 2 * c.num_key_value_heads * c.head_dim * item
    prefill = longest * (4 * c.hidden_size + 3 * c.intermediate_size) * item + longest * (longest + most)
    needed = batch * (cache + prefill + 3 * 4 * c.vocab_size)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        gigabytes = f"about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        raise ValueError(f"a batch of {batch} needs {gigabytes}; choose a smaller --batch or --max-new-tokens")


def example(lm: LanguageModel, drafter: Drafter, prompt: Tensor) -> dict[str, Any]:
    """The first rounds of one request with what was drafted, and the texts of its tokens."""
    rounds = generate(lm, prompt, drafter, max_new_tokens=24).trace.rounds
    ids = {id for r in rounds for id in (*r.tree.tokens[0].tolist(), *r.emitted)}
    return {
        "rounds": [[r.tree.tokens[0].tolist(), r.tree.parents[0].tolist(), r.path, r.emitted] for r in rounds],
        "texts": {str(id): lm.tokenizer.decode([id]) if lm.tokenizer else str(id) for id in sorted(ids)},
    }


def settings(drafter: Drafter) -> dict[str, Any]:
    """What a drafter was built with, and the checksum of its weights as they are in memory."""
    known = {
        name: value
        for name, value in vars(drafter).items()
        if isinstance(value, int | float | str | range | Shape | DynamicTree)
    }
    plain = {range: list, Shape: dataclasses.asdict, DynamicTree: dataclasses.asdict}
    parts = (getattr(value, "model", value) for value in vars(drafter).values())
    nets = [part for part in parts if isinstance(part, torch.nn.Module)]
    sums = {"weights_sha256": checksum(nets)} if nets else {}
    return {name: plain.get(type(value), lambda x: x)(value) for name, value in known.items()} | sums


def checksum(nets: Sequence[torch.nn.Module]) -> str:
    digest = hashlib.sha256()
    for net in nets:
        for weight in net.parameters():
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def machine(lm: LanguageModel) -> dict[str, Any]:
    """What a reader needs to know to repeat the run."""
    import transformers

    from minispec import __version__

    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    device = lm.model.device
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "dtype": str(lm.model.dtype).removeprefix("torch."),
        "model": lm.name,
        "weights_sha256": checksum([lm.model]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "minispec": __version__,
        "system": platform.platform(terse=True),
    }


def read_result(file: Path) -> dict[str, Any]:
    """A stored result. Raises ValueError for a file that is none, or is of another schema."""
    try:
        stored = file.read_bytes()
        result = json.loads(gzip.decompress(stored) if file.suffix == ".gz" else stored)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} cannot be read as a result of `minispec bench`: {error}") from error
    found = result.get("schema") if isinstance(result, dict) else None
    if found != SCHEMA or "runs" not in result:
        what = f"has schema {found}" if found else "is no result of `minispec bench`"
        raise ValueError(f"{file} {what}; this version reads schema {SCHEMA}")
    return result


def measured(name: str) -> dict[str, Any]:
    """A result that the course quotes, such as "bench", from `data/measured/`; results/README.md says how it was made."""
    return read_result(Path(__file__).parent / "data" / "measured" / f"{name}.json.gz")


def write_json(result: dict[str, Any], file: Path) -> None:
    """Write beside, then rename."""
    part = file.with_name(f".{file.name}.part")
    part.write_text(json.dumps(result) + "\n")
    part.replace(file)
