"""Requests x methods x batch sizes: what a method gains here, with its bound, its oracle and its peers beside it.

    minispec bench --peers transformers --out result.json # then prints the tables of `report`

Methods take turns at every request, so that a drift of the machine hits all alike. A method's bound is what its own rounds
would allow if nothing cost time but the target's passes and the proposals, both measured alone: what is missing to it
is overhead.
"""

from __future__ import annotations

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
from minispec.sampling import Dice, Sampling
from minispec.theory import oracle_bound

if TYPE_CHECKING:
    from minispec.drafters.base import Drafter
    from minispec.hub import LanguageModel

CONTEXT = 200  # tokens before the pass whose cost is measured: the middle of a typical request
AUTOREGRESSIVE = "autoregressive"


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
    seconds = {name: round_off(getattr(round, name)) for name in ("draft_s", "verify_s", "accept_s", "other_s")}
    return {"nodes": round.tree.counts[0], "accepted": len(round.accepted), "emitted": len(round.emitted), **seconds}


def round_off(seconds: float) -> float:
    return round(seconds, 7)


def transformers_methods(lm: LanguageModel, drafters: dict[str, Any]) -> dict[str, Method]:
    """transformers' own `generate` on the same weights, and its counterparts of draft and ngram; single requests only."""
    import tempfile

    import transformers
    from transformers import AutoModelForCausalLM

    from minispec.checkpoints import export_draft

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()

    def opened(folder: Any) -> Any:
        model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=lm.model.dtype)
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
        small.generation_config.num_assistant_tokens = drafters["draft"].num_tokens
        small.generation_config.num_assistant_tokens_schedule = "constant"
        small.generation_config.assistant_confidence_threshold = drafters["draft"].min_confidence
        settings["transformers assisted"] = {"assistant_model": small}

    def method(extra: dict[str, Any]) -> Method:
        @torch.inference_mode()
        def run(prompts: list[Tensor], most: int) -> Run:
            ids = prompts[0][None].to(lm.model.device)
            start = time.perf_counter()
            out = peer.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=most, pad_token_id=0, **extra
            )
            return Run([out[0, ids.shape[1] :].tolist()], time.perf_counter() - start)

        return run

    return {name: method(extra) for name, extra in settings.items()}


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
def rehearse(lm: LanguageModel, drafter: Drafter, prompt: Tensor, tokens: list[int]) -> list[tuple[int, int, float]]:
    """The drafter alone, against a text that is known already: (nodes, accepted, seconds of drafting) of each round.

    What the target would accept of a draft is read off the text, so no pass of the target runs between two proposals.
    """
    ids = torch.tensor([*prompt.tolist(), *tokens], device=lm.model.device)
    hidden = None
    if drafter.layers:
        *named, _ = lm.model.states(ids[None], lm.model.new_cache(1, len(ids)), layers=drafter.layers)
        hidden = torch.stack(named, 2)  # [1, time, layers, width]
    n = len(prompt)

    def states(at: int, count: int) -> list[Tensor] | None:  # of the positions before tokens[at], tokens[at + 1], ...
        return None if hidden is None else [hidden[0, n + at - 1 : n + at - 1 + count]]

    drafter.start(lm, len(ids), [prompt], None if hidden is None else hidden[:, :n], Dice(Sampling(), [0]))
    drafter.commit([tokens[:1]], states(0, 1))
    done, rounds = 1, []
    while done < len(tokens):
        start = time.perf_counter()
        tree = drafter.propose([len(tokens) - done - 1])
        drafted, parents = tree.tokens[0].tolist(), tree.parents[0].tolist()
        accepted, at = 0, 0
        while True:  # descend while the text's next token is a child of where we are
            nodes = (i + 1 for i, parent in enumerate(parents) if parent == at and drafted[i] == tokens[done + accepted])
            child = next(nodes, None) if done + accepted < len(tokens) - 1 else None
            if child is None:
                break
            accepted, at = accepted + 1, child
        drafter.commit([tokens[done : done + accepted + 1]], states(done, accepted + 1))
        rounds.append((len(drafted), accepted, time.perf_counter() - start))
        done += accepted + 1
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
    """Run everything; the result as it is stored. `save` is called after each repeat with what there is so far."""
    from tqdm import tqdm

    ours: dict[str, Method] = {name: our_method(lm, drafter) for name, drafter in drafters.items()}
    ours = {AUTOREGRESSIVE: our_method(lm, None)} | ours
    theirs = transformers_methods(lm, drafters) if peers else {}
    prompts = [lm.encode(request["messages"]) for request in requests]
    result: dict[str, Any] = {
        "schema": 1,
        "machine": machine(lm),
        "max_new_tokens": max_new_tokens,
        "sampling": {"temperature": 0.0, "seed": 0},
        "requests": [
            {"id": r["id"], "kind": r["kind"], "prompt_tokens": len(p)} for r, p in zip(requests, prompts, strict=True)
        ],
        "runs": [],
    }
    for method in (*ours.values(), *theirs.values()):
        method(prompts[:1], 8)  # the first passes of a process are slow
    plan = list(schedule(len(requests), batches, repeats, [*ours, *theirs]))
    texts: dict[tuple[int, int], list[int]] = {}
    for i, (repeat, size, group, names) in enumerate(tqdm(plan, unit="group", disable=not sys.stderr.isatty())):
        for name in names:
            if name in theirs and size > 1:
                continue
            limits = [min(max_new_tokens, requests[row]["max_new_tokens"]) for row in group]
            run = (ours | theirs)[name]([prompts[row] for row in group], min(limits))
            result["runs"].append({"method": name, "batch": size, "repeat": repeat, "rows": group, **vars(run)})
            if name == AUTOREGRESSIVE:
                texts |= {(size, row): tokens for row, tokens in zip(group, run.tokens, strict=True)}
        if i + 1 == len(plan) or plan[i + 1][0] != repeat:
            save(result)
    for run in result["runs"]:
        run["same_text"] = [
            texts[run["batch"], row] == tokens for row, tokens in zip(run["rows"], run["tokens"], strict=True)
        ]
    add_bounds(lm, drafters, prompts, texts, result)
    save(result)
    return result


def schedule(
    requests: int, batches: Sequence[int], repeats: int, names: list[str]
) -> Iterator[tuple[int, int, list[int], list[str]]]:
    """(repeat, batch size, rows, methods in the order of their turn): every method is as often first as any other."""
    turn = 0
    for repeat in range(repeats):
        for size in batches:
            for start in range(0, requests, size):
                order = names[turn % len(names) :] + names[: turn % len(names)]
                yield repeat, size, list(range(start, min(start + size, requests))), order
                turn += 1


def add_bounds(
    lm: LanguageModel,
    drafters: dict[str, Drafter | None],
    prompts: list[Tensor],
    texts: dict[tuple[int, int], list[int]],
    result: dict[str, Any],
) -> None:
    """Each drafter alone on the autoregressive texts, then the cost curve: what the bounds are made of."""
    result["rehearsals"] = {
        name: {
            str(row): rehearse(lm, drafter, prompts[row], texts[1, row]) for row in range(len(prompts)) if (1, row) in texts
        }
        for name, drafter in drafters.items()
        if drafter
    }
    nodes = [n for rows in result["rehearsals"].values() for rounds in rows.values() for n, _, _ in rounds]
    result["cost_curve_s"] = {str(n): s for n, s in cost_curve(lm, range(1, max(nodes, default=0) + 2)).items()}


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
    lines = [
        f"{m['model']}, {m['dtype']}, {m['threads']} threads of {m['cpu'] if m['device'] == 'cpu' else m['device']}; "
        f"torch {m['torch']}, transformers {m['transformers']}; {len(result['requests'])} requests, "
        f"at most {result['max_new_tokens']} tokens each, repeats: {1 + max(run['repeat'] for run in result['runs'])}.",
    ]
    for batch in sorted({run["batch"] for run in result["runs"]}):
        lines += ["", f"Batch {batch}:", "", *by_method(result, batch)]
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
    base = Times(result, AUTOREGRESSIVE, batch)
    for name in dict.fromkeys(run["method"] for run in result["runs"] if run["batch"] == batch):
        mine = Times(result, name, batch)
        ratios = [mine.rate([group]) / base.rate([group]) for group in mine.groups]
        low, high = quartiles(ratios)
        row = [name, f"{mine.rate():.1f}", f"{mine.rate() / base.rate():.2f}", f"{low:.2f} to {high:.2f}"]
        if mine.has_rounds:
            decode = mine.decode_rate() / base.decode_rate()
            row += [f"{decode:.2f}", f"{mine.tokens_a_round():.2f}"]
            found = bounds(result, name, range(len(result["requests"]))) if batch == 1 and name != AUTOREGRESSIVE else None
            row += [f"{found[0]:.2f}", f"{decode / found[0]:.0%}", f"{found[1]:.2f}"] if found else ["", "", ""]
        else:
            row += [""] * 5
        yield f"| {' | '.join([*row, f'{mine.same} of {mine.texts}'])} |"


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

    def tokens_a_round(self, groups: Sequence[tuple[int, ...]] | None = None) -> float:
        rows = [row for group in groups or self.groups for row in self.runs[group][0]["rounds"]]
        return sum(r["emitted"] for row in rows for r in row) / max(1, sum(map(len, rows)))


def bounds(result: dict[str, Any], method: str, rows: Sequence[int]) -> tuple[float, float]:
    """The speedup that nothing but passes and proposals would allow, and the oracle's, over these requests."""
    curve = {int(n): s for n, s in result["cost_curve_s"].items()}
    rounds = [r for row in rows for r in result["rehearsals"][method][str(row)]]
    tokens = sum(accepted + 1 for _, accepted, _ in rounds)
    spent = sum(curve[1 + nodes] + seconds for nodes, _, seconds in rounds)
    per_token = sum(s for _, _, s in rounds) / max(1, sum(n for n, _, _ in rounds))
    return tokens * curve[1] / spent, oracle_bound([a for _, a, _ in rounds], curve.__getitem__, per_token)


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
