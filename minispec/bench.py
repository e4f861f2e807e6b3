"""Requests x methods x batch sizes: what a method gains here, with its bound, its oracle and its peers beside it.

    minispec bench --peers transformers --out result.json # then prints the tables of `report`

Methods take turns at every request, so that a drift of the machine hits all alike. A method's bound is what its drafts would
allow on the texts of autoregressive decoding if nothing cost time but the target's passes and the proposals, both measured
alone: what is missing to it is overhead. (Autoregressive decoding has overhead too, so a ratio can also exceed its bound.)
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from minispec.decode import generate_batch
from minispec.drafters.dynamic_tree import DynamicTree
from minispec.sampling import Dice, Sampling
from minispec.theory import oracle_bound
from minispec.tree import Shape

if TYPE_CHECKING:
    from minispec.drafters.base import Drafter
    from minispec.hub import LanguageModel

CONTEXT = 200  # tokens before the pass whose cost is measured: the middle of a typical request
AUTOREGRESSIVE = "autoregressive"
PARTS = ("draft_s", "verify_s", "accept_s", "other_s")


@dataclass
class Run:
    """One call of one method: tokens of each row, seconds of the whole call and to the first token, and the rounds."""

    tokens: list[list[int]]
    seconds: float
    ttft_s: float | None = None
    rounds: list[list[dict[str, Any]]] | None = None
    extra_bytes: int = 0


Method = Callable[[list[Tensor], int], Run]  # prompts, tokens to write at most


def our_method(lm: LanguageModel, drafter: Drafter | None) -> Method:
    def run(prompts: list[Tensor], most: int) -> Run:
        start = time.perf_counter()
        done = generate_batch(lm, prompts, drafter, max_new_tokens=most)
        seconds = time.perf_counter() - start
        rounds = [[as_facts(round) for round in generation.trace.rounds] for generation in done]
        extra = max(generation.trace.extra_bytes for generation in done)
        return Run([g.tokens.tolist() for g in done], seconds, done[0].trace.ttft_s, rounds, extra)

    return run


def as_facts(round: Any) -> dict[str, Any]:
    seconds = {part: round_off(getattr(round, part)) for part in PARTS}
    return {"nodes": round.tree.counts[0], "accepted": len(round.accepted), "emitted": len(round.emitted), **seconds}


def round_off(seconds: float) -> float:
    return round(seconds, 7)


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
        def run(prompts: list[Tensor], most: int) -> Run:
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


@torch.inference_mode()
def cost_curve(lm: LanguageModel, sizes: Sequence[int], repeats: int = 15) -> dict[int, float]:
    """Seconds of one pass of the target over so many tokens, after CONTEXT: medians, the sizes in turn."""
    from minispec.trace import Clock

    model, longest = lm.model, max(sizes)
    tokens = torch.arange(CONTEXT + longest, device=model.device)[None] % model.config.vocab_size
    cache = model.new_cache(1, CONTEXT + longest)
    model(tokens[:, :CONTEXT], cache)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for repeat in range(repeats + 1):
        for size in sizes:
            cache.lengths = [CONTEXT]
            clock = Clock(model.device)
            model(tokens[:, :size], cache)
            clock.mark()
            times[size] += clock.read() if repeat else []  # the first round warms up
    return {size: statistics.median(times[size]) for size in sizes}


@torch.inference_mode()
def rehearse(
    lm: LanguageModel, drafter: Drafter, prompt: Tensor, tokens: list[int], most: int
) -> list[tuple[int, int, int, float]]:
    """The drafter alone, against a text that is known: (nodes, accepted, emitted, seconds of drafting) of each round.

    What the target would accept of a draft is read off the text, so no pass of the target runs between two proposals.
    `most`: the token budget under which the text was written.
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
        emitted = min(accepted + 1, len(tokens) - done)
        drafter.commit([tokens[done : done + emitted]], states(done, emitted))
        rounds.append((len(drafted), accepted, emitted, time.perf_counter() - start))
        done += emitted
    return rounds


def bench(
    lm: LanguageModel,
    drafters: dict[str, Drafter | None],
    requests: list[dict[str, Any]],
    *,
    max_new_tokens: int,
    batches: Sequence[int] = (1,),
    repeats: int = 1,
    peers: bool = False,
    save: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Run everything; the result as it is stored. `save` is called every minute with what there is so far.

    Raises ValueError, before anything runs, for a request that does not fit the model, and for batches whose requests
    have different limits.
    """
    from tqdm import tqdm

    if max_new_tokens < 2:
        raise ValueError(
            f"max_new_tokens must be 2 or more, since the first token comes from prefill; it is {max_new_tokens}"
        )
    if max(batches) > len(requests):
        raise ValueError(f"a batch of {max(batches)} needs as many requests, but there are {len(requests)}")
    prompts = [lm.encode(request["messages"]) for request in requests]
    limits = [min(max_new_tokens, request["max_new_tokens"]) for request in requests]
    for request, prompt, most in zip(requests, prompts, limits, strict=True):
        if len(prompt) + most > lm.model.config.max_position_embeddings:
            raise ValueError(f"request {request['id']} with its {most} new tokens exceeds the model's positions")
    if max(batches) > 1 and len(set(limits)) > 1:
        raise ValueError("requests that are measured in batches must have the same limit; give a lower --max-new-tokens")

    ours: dict[str, Method] = {name: our_method(lm, drafter) for name, drafter in drafters.items()}
    ours = {AUTOREGRESSIVE: our_method(lm, None)} | ours
    theirs = transformers_methods(lm, drafters) if peers else {}
    result: dict[str, Any] = {
        "schema": 1,
        "machine": machine(lm),
        "max_new_tokens": max_new_tokens,
        "sampling": {"temperature": 0.0, "seed": 0},
        "drafters": {name: settings(drafter) for name, drafter in drafters.items() if drafter},
        "requests": [
            {"id": r["id"], "kind": r["kind"], "prompt_tokens": len(p)} for r, p in zip(requests, prompts, strict=True)
        ],
        "runs": [],
    }
    for method in (*ours.values(), *theirs.values()):
        method(prompts[:1], 8)  # the first passes of a process are slow
    plan = list(
        schedule(len(requests), batches, repeats, {size: [*ours, *(theirs if size == 1 else ())] for size in batches})
    )
    texts: dict[tuple[int, int], list[int]] = {}
    save(result)  # what cannot be written is better known now
    saved = time.monotonic()
    for repeat, size, group, turns in tqdm(plan, unit="group", disable=not sys.stderr.isatty()):
        for name in turns:
            run = (ours | theirs)[name]([prompts[row] for row in group], limits[group[0]])
            result["runs"].append({"method": name, "batch": size, "repeat": repeat, "rows": group, **vars(run)})
            if name == AUTOREGRESSIVE:
                texts |= {(size, row): tokens for row, tokens in zip(group, run.tokens, strict=True)}
        if time.monotonic() - saved > 60:
            save(result)
            saved = time.monotonic()
    for run in result["runs"]:
        run["same_text"] = [
            texts[run["batch"], row] == tokens for row, tokens in zip(run["rows"], run["tokens"], strict=True)
        ]
    add_bounds(lm, drafters, prompts, limits, texts, result)
    save(result)
    return result


def schedule(
    requests: int, batches: Sequence[int], repeats: int, methods: dict[int, list[str]]
) -> Iterator[tuple[int, int, list[int], list[str]]]:
    """(repeat, batch size, rows, methods in the order of their turn): every method is as often first as any other."""
    for repeat in range(repeats):
        for size in batches:
            names = methods[size]
            for turn, start in enumerate(range(0, requests, size), repeat):
                order = names[turn % len(names) :] + names[: turn % len(names)]
                yield repeat, size, list(range(start, min(start + size, requests))), order


def add_bounds(
    lm: LanguageModel,
    drafters: dict[str, Drafter | None],
    prompts: list[Tensor],
    limits: list[int],
    texts: dict[tuple[int, int], list[int]],
    result: dict[str, Any],
) -> None:
    """Each drafter alone on the autoregressive texts, then the cost curve: what the bounds are made of."""

    def thrice(drafter: Drafter, row: int) -> list[tuple[int, int, int, float]]:
        runs = [rehearse(lm, drafter, prompts[row], texts[1, row], limits[row]) for _ in range(3)]
        return [(*rounds[0][:3], round_off(statistics.median(r[3] for r in rounds))) for rounds in zip(*runs, strict=True)]

    rows = [row for row in range(len(prompts)) if (1, row) in texts]
    result["rehearsals"] = {
        name: {str(row): thrice(drafter, row) for row in rows} for name, drafter in drafters.items() if drafter
    }
    nodes = [n for rounds_of in result["rehearsals"].values() for rounds in rounds_of.values() for n, *_ in rounds]
    result["cost_curve_s"] = {str(n): s for n, s in cost_curve(lm, range(1, max(nodes, default=0) + 2)).items()}


def settings(drafter: Drafter) -> dict[str, Any]:
    """What a drafter was built with."""
    known = {
        name: value
        for name, value in vars(drafter).items()
        if isinstance(value, int | float | str | range | Shape | DynamicTree)
    }
    plain = {range: list, Shape: dataclasses.asdict, DynamicTree: dataclasses.asdict}
    return {name: plain.get(type(value), lambda x: x)(value) for name, value in known.items()}


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
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "minispec": __version__,
        "system": platform.platform(terse=True),
    }


def report(result: dict[str, Any]) -> str:
    """The tables, in Markdown: speed by method, then by kind of request, at each batch size."""
    m = result["machine"]
    where = m["cpu"] if m["device"] == "cpu" else f"{m['cpu']} and {m['device']}"
    lines = [
        f"{m['model']}, {m['dtype']}, on {m['threads']} threads of {where}; "
        f"torch {m['torch']}, transformers {m['transformers']}; {len(result['requests'])} requests, "
        f"at most {result['max_new_tokens']} tokens each, repeats: {1 + max(run['repeat'] for run in result['runs'])}.",
    ]
    for batch in sorted({run["batch"] for run in result["runs"]}):
        lines += ["", f"Batch {batch}:", "", *by_method(result, batch)]
        lines += ["", *phases(result, batch)]
        lines += ["", *by_kind(result, batch)] if batch == 1 else []
    if "cost_curve_s" in result:
        curve = {int(n): s for n, s in result["cost_curve_s"].items()}
        shown = ", ".join(f"{n}: {1e3 * s:.1f}" for n, s in curve.items())
        lines += ["", f"One pass of the target, milliseconds by tokens, after {CONTEXT}: {shown}."]
    return "\n".join(lines)


def by_method(result: dict[str, Any], batch: int) -> Iterator[str]:
    columns = ("method", "tokens/s", "speedup", "quartiles over requests", "decode only", "tokens a round", "bound")
    columns += ("of bound", "oracle", "same text")
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    bounded = batch == 1 and "cost_curve_s" in result  # a run that was stopped has none
    base = Times(result, AUTOREGRESSIVE, batch)
    for name in dict.fromkeys(run["method"] for run in result["runs"] if run["batch"] == batch):
        mine = Times(result, name, batch)
        ratios = [mine.rate([group]) / base.rate([group]) for group in mine.groups]
        low, high = quartiles(ratios)
        row = [name, f"{mine.rate():.1f}", f"{mine.rate() / base.rate():.2f}", f"{low:.2f} to {high:.2f}"]
        if mine.has_rounds:
            decode = mine.decode_rate() / base.decode_rate()
            row += [f"{decode:.2f}", f"{mine.tokens_a_round():.2f}"]
            found = bounds(result, name, range(len(result["requests"]))) if bounded and name != AUTOREGRESSIVE else None
            row += [f"{found[0]:.2f}", f"{decode / found[0]:.0%}", f"{found[1]:.2f}"] if found else ["", "", ""]
        else:
            row += [""] * 5
        yield f"| {' | '.join([*row, f'{mine.same} of {mine.texts}'])} |"


def phases(result: dict[str, Any], batch: int) -> Iterator[str]:
    """Where the time of our methods goes, acceptance by position, and what the drafter needs."""
    columns = ("method", "first token, ms", "a token, ms", "draft", "verify", "accept", "other", "spread", "MB more")
    yield f"| {' | '.join(columns)} | accepted at positions 1, 2, ... |"
    yield "|" + "---|" * (len(columns) + 1)
    for name in dict.fromkeys(run["method"] for run in result["runs"] if run["batch"] == batch and run["rounds"]):
        mine = Times(result, name, batch)
        runs = [run for runs in mine.runs.values() for run in runs]
        longest = [max(run["rounds"], key=len) for run in runs]  # the rows of a batch share the time of their rounds
        parts = [sum(r[part] for rounds in longest for r in rounds) for part in PARTS]
        shares = [f"{part / max(sum(parts), 1e-9):.1%}" for part in parts]
        first = 1e3 * statistics.median(run["ttft_s"] for run in runs)
        extra = max(run["extra_bytes"] for run in runs) / 1e6
        yield (
            f"| {name} | {first:.0f} | {1e3 / mine.decode_rate():.1f} | {' | '.join(shares)} | {mine.spread():.0%} | "
            f"{extra:.1f} | {', '.join(f'{rate:.2f}' for rate in mine.acceptance()[:8])} |"
        )


def by_kind(result: dict[str, Any], batch: int) -> Iterator[str]:
    """Speedup of the whole response, and in brackets the tokens a round, by kind of request."""
    kinds = list(dict.fromkeys(request["kind"] for request in result["requests"]))
    names = [n for n in dict.fromkeys(run["method"] for run in result["runs"]) if n != AUTOREGRESSIVE]
    base = Times(result, AUTOREGRESSIVE, batch)
    yield f"| speedup (tokens a round) | {' | '.join(kinds)} |"
    yield "|" + "---|" * (len(kinds) + 1)
    for name in names:
        mine, row = Times(result, name, batch), [name]
        for kind in kinds:
            groups = [g for g in mine.groups if result["requests"][g[0]]["kind"] == kind]
            cell = f"{mine.rate(groups) / base.rate(groups):.2f}"
            row.append(f"{cell} ({mine.tokens_a_round(groups):.2f})" if mine.has_rounds else cell)
        yield f"| {' | '.join(row)} |"


class Times:
    """What one method took at one batch size: for each group of rows, the median over the repeats."""

    def __init__(self, result: dict[str, Any], method: str, batch: int):
        runs = [run for run in result["runs"] if run["method"] == method and run["batch"] == batch]
        self.groups = list(dict.fromkeys(tuple(run["rows"]) for run in runs))
        self.runs = {group: [run for run in runs if tuple(run["rows"]) == group] for group in self.groups}
        self.has_rounds = runs[0]["rounds"] is not None
        first = [self.runs[group][0] for group in self.groups]
        self.texts = sum(len(run["tokens"]) for run in first)
        self.same = sum(sum(run.get("same_text", [])) for run in first)

    def rate(self, groups: Sequence[tuple[int, ...]] | None = None) -> float:
        """Tokens a second of whole responses."""
        groups = self.groups if groups is None else groups
        tokens = sum(len(row) for group in groups for row in self.runs[group][0]["tokens"])
        return tokens / sum(statistics.median(run["seconds"] for run in self.runs[group]) for group in groups)

    def decode_rate(self) -> float:
        """Tokens a second after the first tokens."""
        tokens = sum(len(row) - 1 for group in self.groups for row in self.runs[group][0]["tokens"])
        spent = (statistics.median(run["seconds"] - run["ttft_s"] for run in self.runs[group]) for group in self.groups)
        return tokens / sum(spent)

    def spread(self) -> float:
        """Of the time of a group over the repeats: (longest - shortest) / median, the median over groups; 0 for one run."""
        times = [[run["seconds"] for run in runs] for runs in self.runs.values()]
        return statistics.median((max(t) - min(t)) / statistics.median(t) for t in times)

    def acceptance(self) -> list[float]:
        """Of the rounds that drafted a token at a position and accepted all before it, the share that accepted it."""
        rounds = [r for runs in self.runs.values() for row in runs[0]["rounds"] for r in row]
        reached = [
            sum(r["nodes"] > i <= r["accepted"] for r in rounds) for i in range(max(r["accepted"] for r in rounds) + 1)
        ]
        return [sum(r["accepted"] > i for r in rounds) / n for i, n in enumerate(reached) if n]

    def tokens_a_round(self, groups: Sequence[tuple[int, ...]] | None = None) -> float:
        rows = [row for group in groups or self.groups for row in self.runs[group][0]["rounds"]]
        return sum(r["emitted"] for row in rows for r in row) / max(1, sum(map(len, rows)))


def bounds(result: dict[str, Any], method: str, rows: Sequence[int]) -> tuple[float, float]:
    """The speedup that nothing but passes and proposals would allow, and the oracle's, over these requests.

    The oracle knows how much of a draft will be accepted, not what the drafter would have drafted beyond its limits.
    """
    curve = {int(n): s for n, s in result["cost_curve_s"].items()}
    rounds = [r for row in rows for r in result["rehearsals"][method][str(row)]]
    tokens = sum(emitted for _, _, emitted, _ in rounds)
    spent = sum(curve[1 + nodes] + seconds for nodes, _, _, seconds in rounds)
    per_token = sum(s for *_, s in rounds) / max(1, sum(n for n, *_ in rounds))
    return tokens * curve[1] / spent, oracle_bound(
        [emitted - 1 for _, _, emitted, _ in rounds], curve.__getitem__, per_token
    )


def quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def write_json(result: dict[str, Any], file: Path) -> None:
    """Write beside, then rename."""
    part = file.with_name(f".{file.name}.part")
    part.write_text(json.dumps(result) + "\n")
    part.rename(file)
