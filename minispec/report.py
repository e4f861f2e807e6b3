"""Tables from a result of `minispec bench`, and what they are made of; `figures.py` draws the same.

    minispec report result.json                           # prints the tables; writes result.md, and figures in result/

Everything is derived from the raw rounds. Four numbers circulate as "acceptance", and the table `acceptance` names each:
accepted tokens a round (without the target's own token: transformers' and gpt-fast's count, Medusa's accept length); tokens
a round (with it: EAGLE's τ, vLLM's mean acceptance length, Spec-Bench's mean accepted tokens); the share of the drafted
nodes that is accepted; and by position, either of those tried there (all before them accepted) or of all drafts (vLLM's).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from minispec.bench import AUTOREGRESSIVE, COLUMNS, Rehearsed
from minispec.served import beside
from minispec.theory import Cost, CostModel, fixed_length, interpolated, oracle

PARTS = COLUMNS[4:]
COUNTERPARTS = {AUTOREGRESSIVE: "autoregressive", "ngram": "prompt lookup", "draft": "assisted"}  # in transformers
Table = Iterator[Sequence[Any]]  # the names of the columns, then the rows
Groups = Sequence[tuple[int, ...]] | None


class Times:
    """One method under one condition: its runs by group of rows, and what follows from them."""

    def __init__(self, result: dict[str, Any], method: str, batch: int | None = None, temperature: float | None = None):
        condition = (method, *or_least(result, batch, temperature))
        runs = [run for run in result["runs"] if (run["method"], run["batch"], run["temperature"]) == condition]
        self.runs: dict[tuple[int, ...], list[dict[str, Any]]] = {}
        for run in runs:
            self.runs.setdefault(tuple(run["rows"]), []).append(run)
        self.groups, self.has_rounds = sorted(self.runs), bool(runs) and runs[0]["rounds"] is not None
        same = [equal for group in self.groups for equal in self.runs[group][0]["same_text"] or ()]
        self.same = f"{sum(same)} of {len(same)}" if same else ""

    def rate(self, groups: Groups = None, decoding: bool = False) -> float:
        """Tokens a second of whole responses, or of what follows the first tokens: of each group the median repeat."""
        spent = tokens = 0.0
        for group in self.groups if groups is None else groups:
            pairs = [(run["seconds"], size(run)) for run in self.runs[group]]
            if decoding:
                pairs = [(run["seconds"] - run["ttft_s"], size(run) - len(run["tokens"])) for run in self.runs[group]]
            mean = statistics.mean(n for _, n in pairs)
            spent += mean * statistics.median(s / max(1, n) for s, n in pairs)
            tokens += mean
        return tokens / spent if spent else math.nan  # texts of one token have nothing to decode

    def decode_rate(self, groups: Groups = None) -> float:
        return self.rate(groups, decoding=True)

    def pairs(self, base: Times) -> list[float]:
        """Speedup over `base` of every pair of runs that stood next to each other."""
        ratios = []
        for group in self.groups:
            before = {run["repeat"]: run for run in base.runs.get(group, ())}
            for run in self.runs[group]:
                if other := before.get(run["repeat"]):
                    ratios.append(other["seconds"] / size(other) / (run["seconds"] / size(run)))
        return ratios

    def faster_on(self, base: Times) -> str:
        """Of how many requests (in batches: groups) the text came faster than by `base`, each by its median repeat."""
        both = [group for group in self.groups if group in base.runs]
        return f"{sum(self.rate([group]) > base.rate([group]) for group in both)} of {len(both)}"

    def repeats(self) -> int:
        return max(map(len, self.runs.values()))

    def spread(self) -> float:
        """Of the time of a group over the repeats: (longest - shortest) / median, the median over groups."""
        times = [[run["seconds"] / size(run) for run in runs] for runs in self.runs.values()]
        return statistics.median((max(t) - min(t)) / statistics.median(t) for t in times)

    def rounds(self, groups: Groups = None) -> list[dict[str, Any]]:
        """All rounds of all repeats."""
        runs = [run for group in (self.groups if groups is None else groups) for run in self.runs[group]]
        return [named(r) for run in runs for row in run["rounds"] for r in row]

    def tokens_a_round(self, groups: Groups = None) -> float:
        return mean_of(r["emitted"] for r in self.rounds(groups))

    def conditional(self) -> list[float]:
        """Acceptance by position, of the tokens that were tried there."""
        return [sum(r["accepted"] > i for r in self.rounds()) / n for i, n in enumerate(self.tried())]

    def tried(self) -> list[int]:
        """How many tokens were tried at each position: all before them had been accepted."""
        rounds = self.rounds()
        return [sum(r["tried"] > i for r in rounds) for i in range(max((r["tried"] for r in rounds), default=0))]

    def unconditional(self) -> list[float]:
        """Acceptance by position, of all rounds in which something was drafted."""
        rounds = [r for r in self.rounds() if r["nodes"]]
        deepest = max((r["tried"] for r in rounds), default=0)
        return [mean_of(r["accepted"] > i for r in rounds) for i in range(deepest)]

    def middle(self) -> list[dict[str, Any]]:
        """Of each group the repeat that took the median time (of an even number the quicker of the two)."""
        return [sorted(runs, key=lambda run: run["seconds"])[(len(runs) - 1) // 2] for runs in self.runs.values()]

    def emitted(self) -> int:
        """Tokens of the middle runs after the first of each row; in a batch those of all rows."""
        return sum(size(run) - len(run["tokens"]) for run in self.middle())

    def share(self, part: str) -> float:
        """Of decoding, the share of one phase."""
        parts = self.parts()
        return parts[part] / sum(parts.values())

    def parts(self) -> dict[str, float]:
        """Seconds by phase, of the middle runs; the rows of a batch share the time of their rounds."""
        longest = [named(r) for run in self.middle() for r in max(run["rounds"], key=len)]
        return {name: sum(r[name] for r in longest) for name in PARTS}


def named(round: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(COLUMNS, round, strict=True))


def size(run: dict[str, Any]) -> int:
    return sum(map(len, run["tokens"]))


def mean_of(values: Any) -> float:
    values = list(values)
    return sum(values) / max(1, len(values))


class Bounds:
    """What the interleaved passes and rehearsals say that a drafter could gain on the texts of autoregressive decoding."""

    def __init__(self, result: dict[str, Any]):
        cells = list(map(tuple, result["passes"]["cells"]))
        seconds = [statistics.median(column) for column in zip(*result["passes"]["seconds"], strict=True)]
        context = cells[0][1]
        self.curve = {n: s for (n, cached), s in zip(cells, seconds, strict=True) if cached == context}
        self.cost: Cost = interpolated(self.curve)
        self.model = CostModel.fit(cells, seconds)
        self.result = result

    def rounds(self, drafter: str) -> list[tuple[Rehearsed, float]]:
        """The rehearsed rounds, and the seconds of drafting of each: the median over the repeats."""
        again = [zip(*repeats, strict=True) for repeats in self.result["rehearsals"][drafter].values()]
        rounds = [[Rehearsed(*r) for r in same] for rounds in again for same in rounds]
        return [(same[0], statistics.median(r.draft_s for r in same)) for same in rounds]

    def ahead(self, drafter: str) -> list[list[Rehearsed]]:
        return [[Rehearsed(*r) for r in row] for row in self.result["ahead"][drafter].values() if row]

    def level_s(self, drafter: str) -> float:
        """Seconds to draft one token of a way down."""
        rounds = [r for row in self.ahead(drafter) for r in row]
        return sum(r.draft_s for r in rounds) / max(1, sum(r.levels for r in rounds))

    def bound(self, drafter: str) -> float:
        rounds = self.rounds(drafter)
        spent = sum(self.cost(1 + r.nodes) + seconds for r, seconds in rounds)
        return sum(r.emitted for r, _ in rounds) * self.cost(1) / spent

    def oracle(self, *drafters: str) -> float:
        """Each round only tokens that will be accepted, by whichever of the drafters suits it best; over all requests."""
        level_s = [self.level_s(name) for name in drafters]
        spent = tokens = 0.0
        for rows in zip(*(self.ahead(name) for name in drafters), strict=True):
            gain = oracle([[r.accepted for r in row] for row in rows], self.cost, level_s)
            tokens, spent = tokens + len(rows[0]), spent + len(rows[0]) / gain
        return tokens / max(spent, 1e-9)

    def pair(self) -> tuple[str, str] | None:
        """The two drafters between which a choice at each step is asked about, if both were rehearsed."""
        pair = "ngram", "eagle"
        return pair if all(self.result["rehearsals"].get(name) for name in pair) else None

    def best_fixed(self, drafter: str) -> tuple[int, float]:
        """The fixed length, and its speedup, that would have been best for a drafter of chains."""
        ahead, level_s = self.ahead(drafter), self.level_s(drafter)
        best = (0, 1.0)
        for length in range(1, max(r.levels for row in ahead for r in row) + 1):
            offers = [[(r.levels, r.accepted) for r in row] for row in ahead]
            spent = sum(len(row) / fixed_length(row, length, self.cost, level_s) for row in offers)
            best = max(best, (length, sum(map(len, ahead)) / spent), key=lambda found: found[1])
        return best

    def predicted(self, times: Times) -> tuple[float, float]:
        """Seconds of verifying that the cost model predicts for a method's runs, and those that were measured."""
        predicted = measured = 0.0
        for run in times.middle():
            prompts = [len(self.result["requests"][row]["prompt"]) for row in run["rows"]]
            done = [1] * len(prompts)
            for step in range(max(map(len, run["rounds"]))):
                going = [(i, named(row[step])) for i, row in enumerate(run["rounds"]) if step < len(row)]
                tokens = len(going) * (1 + max(r["nodes"] for _, r in going))
                predicted += self.model(tokens, sum(prompts[i] + done[i] - 1 for i, _ in going))
                measured += going[0][1]["verify_s"]
                for i, r in going:
                    done[i] += r["emitted"]
        return predicted, measured


def or_least(result: dict[str, Any], batch: int | None, temperature: float | None) -> tuple[int, float]:
    """The condition that is meant: what is not given is the smallest batch that was run, and its lowest temperature."""
    least = min((run["batch"], run["temperature"]) for run in result["runs"])
    return least[0] if batch is None else batch, least[1] if temperature is None else temperature


def methods_of(result: dict[str, Any], batch: int | None = None, temperature: float | None = None) -> list[str]:
    condition = or_least(result, batch, temperature)
    there = {run["method"] for run in result["runs"] if (run["batch"], run["temperature"]) == condition}
    return [name for name in result["settings"]["methods"] if name in there]


def drafting(result: dict[str, Any], **condition: Any) -> list[str]:
    return [name for name in methods_of(result, **condition) if name in result["drafters"]]


def report(result: dict[str, Any], per_request: bool = False) -> str:
    """The tables, in Markdown; `per_request` adds one with a line a request."""
    m, options = result["machine"], result["settings"]
    where = m["cpu"] if m["device"] == "cpu" else f"{m['cpu']} and {m['device']}"
    repeats = len({run["repeat"] for run in result["runs"]})
    blocks = [
        f"{m['model']}, {m['dtype']}, on {m['threads']} threads of {where}; torch {m['torch']}, transformers "
        f"{m['transformers']}; {len(result['requests'])} requests, at most {options['max_new_tokens']} tokens each, "
        f"repeats: {repeats}, seed {options['seed']}."
    ]
    if not result["runs"]:
        return f"{blocks[0]}\n\nNothing has been measured yet."
    for temperature in options["temperatures"]:
        for batch in options["batches"]:
            if not methods_of(result, batch, temperature):
                continue
            blocks += [f"Batch {batch}, temperature {temperature:g}:", markdown(by_method(result, batch, temperature))]
            blocks += [markdown(latency(result, batch, temperature)), markdown(acceptance(result, batch, temperature))]
            blocks += [markdown(by_kind(result, temperature))] if batch == 1 else []
    if "served" in result:
        blocks += ["Beside a server (a batch starts together; a server's requests wait in its queue):"]
        blocks += [markdown(beside(result))]
    if any(run["method"] in map("transformers {}".format, COUNTERPARTS.values()) for run in result["runs"]):
        blocks += ["Beside transformers' own `generate`, medians of pairs of runs:", markdown(counterparts(result))]
    if rehearsed(result):
        blocks += ["What the drafts allow, at batch 1:", markdown(limits(result))]
    curve = ", ".join(f"{n}: {1e3 * s:.1f}" for n, s in Bounds(result).curve.items())
    blocks += [f"One pass of the target, milliseconds by tokens, after {result['passes']['cells'][0][1]}: {curve}."]
    blocks += [markdown(cost_model(result))]
    if per_request and methods_of(result, 1):
        blocks += ["By request: milliseconds to the first token, milliseconds a token, seconds in all, tokens a round."]
        blocks += [markdown(by_request(result))]
    return "\n\n".join(blocks)


def markdown(table: Table) -> str:
    head, *rows = ([str(cell) for cell in row] for row in table)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)).replace(" --- ", "---")


def rehearsed(result: dict[str, Any]) -> bool:
    return any(result["rehearsals"].values())


def baseline(method: str) -> str:
    """What a method is compared with: a compiled one with compiled plain decoding, and that with eager plain decoding."""
    plain = f"{AUTOREGRESSIVE} compiled"
    return plain if method.endswith(" compiled") and method != plain else AUTOREGRESSIVE


def by_method(result: dict[str, Any], batch: int, temperature: float) -> Table:
    yield (
        *("method", "tokens/s", "speedup", "median of pairs", "quartiles", "faster on"),
        *("decode only", "tokens a round", "spread", "same text"),
    )
    for name in methods_of(result, batch, temperature):
        mine, base = Times(result, name, batch, temperature), Times(result, baseline(name), batch, temperature)
        low, middle, high = quartiles(mine.pairs(base))
        row = [name, f"{mine.rate():.1f}", f"{mine.rate() / base.rate():.2f}"]
        row += [f"{middle:.2f}", f"{low:.2f} to {high:.2f}", "" if name == baseline(name) else mine.faster_on(base)]
        row += (
            [f"{mine.decode_rate() / base.decode_rate():.2f}", f"{mine.tokens_a_round():.2f}"]
            if mine.has_rounds
            else ["", ""]
        )
        yield *row, f"{mine.spread():.0%}" if mine.repeats() > 1 else "", mine.same


def latency(result: dict[str, Any], batch: int, temperature: float) -> Table:
    """Time to first token and per output token, the whole response, its phases, and the memory that a drafter adds."""
    a_token = "a token, ms" if batch == 1 else "a token of any row, ms"
    yield "method", "first token, ms", a_token, "response, s", "draft", "verify", "accept", "other", "MB more"
    for name in methods_of(result, batch, temperature):
        mine = Times(result, name, batch, temperature)
        runs = [run for runs in mine.runs.values() for run in runs]
        whole = f"{statistics.median(run['seconds'] for run in runs):.2f}"
        if not mine.has_rounds:
            yield name, "", "", whole, "", "", "", "", ""
            continue
        first = 1e3 * statistics.median(run["ttft_s"] for run in runs)
        parts = mine.parts()
        shares = [f"{seconds / max(sum(parts.values()), 1e-9):.1%}" for seconds in parts.values()]
        extra = max(run["extra_bytes"] for run in runs) / 1e6
        yield name, f"{first:.0f}", f"{1e3 / mine.decode_rate():.1f}", whole, *shares, f"{extra:.1f}"


def acceptance(result: dict[str, Any], batch: int, temperature: float) -> Table:
    yield (
        *("method", "nodes a round", "accepted a round", "tokens a round", "accepted / drafted"),
        *("of those tried, by position", "of all drafts, by position"),
    )
    for name in drafting(result, batch=batch, temperature=temperature):
        mine = Times(result, name, batch, temperature)
        rounds = mine.rounds()
        nodes, accepted = mean_of(r["nodes"] for r in rounds), mean_of(r["accepted"] for r in rounds)
        positions = (", ".join(f"{rate:.2f}" for rate in rates[:8]) for rates in (mine.conditional(), mine.unconditional()))
        share = f"{accepted / nodes:.2f}" if nodes else ""
        yield name, f"{nodes:.1f}", f"{accepted:.2f}", f"{mine.tokens_a_round():.2f}", share, *positions


def kinds_of(result: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(request["kind"] for request in result["requests"]))


def of_kind(result: dict[str, Any], times: Times, kind: str) -> list[tuple[int, ...]]:
    return [group for group in times.groups if result["requests"][group[0]]["kind"] == kind]


def by_kind(result: dict[str, Any], temperature: float) -> Table:
    """Speedup of the whole response, in brackets the tokens a round; and of plain decoding the milliseconds a token."""
    base = Times(result, AUTOREGRESSIVE, 1, temperature)
    kinds = [kind for kind in kinds_of(result) if of_kind(result, base, kind)]
    yield "speedup (tokens a round)", *kinds
    for name in methods_of(result, 1, temperature):
        mine, plain = Times(result, name, 1, temperature), Times(result, baseline(name), 1, temperature)
        row = [name]
        for kind in kinds:
            groups = of_kind(result, mine, kind)
            if name == AUTOREGRESSIVE:
                row.append(f"{1e3 / mine.decode_rate(groups):.1f} ms a token")
                continue
            cell = f"{mine.rate(groups) / plain.rate(groups):.2f}"
            row.append(f"{cell} ({mine.tokens_a_round(groups):.2f})" if mine.has_rounds else cell)
        yield row


def counterparts(result: dict[str, Any]) -> Table:
    """Each method against what transformers has of the same kind, on the same weights: single requests, greedy."""
    yield (
        "method",
        "ours, tokens/s",
        "transformers, tokens/s",
        "ours / transformers",
        "quartiles",
        "gain, ours",
        "gain, theirs",
    )
    base, peer = Times(result, AUTOREGRESSIVE, 1, 0.0), Times(result, f"transformers {AUTOREGRESSIVE}", 1, 0.0)
    for name, theirs in COUNTERPARTS.items():
        mine, other = Times(result, name, 1, 0.0), Times(result, f"transformers {theirs}", 1, 0.0)
        if mine.runs and other.runs:
            low, middle, high = quartiles(mine.pairs(other))
            gains = f"{mine.rate() / base.rate():.2f}", f"{other.rate() / peer.rate():.2f}"
            rates = f"{mine.rate():.1f}", f"{other.rate():.1f}"
            yield f"{name} ({theirs})", *rates, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", *gains


def limits(result: dict[str, Any]) -> Table:
    """Bound and oracle beside what was observed (decoding alone, greedy)."""
    yield "method", "observed", "bound", "of bound", "best fixed length", "oracle"
    bounds, base = Bounds(result), Times(result, AUTOREGRESSIVE)
    names = [name for name in drafting(result) if result["rehearsals"][name]]
    for name in names:
        mine = Times(result, name)
        found, bound = mine.decode_rate() / base.decode_rate(), bounds.bound(name)
        fixed = "" if is_tree(result, name) else "{} ({:.2f})".format(*bounds.best_fixed(name))
        yield name, f"{found:.2f}", f"{bound:.2f}", f"{found / bound:.0%}", fixed, f"{bounds.oracle(name):.2f}"
    if pair := bounds.pair():
        yield f"{' or '.join(pair)}, whichever suits", "", "", "", "", f"{bounds.oracle(*pair):.2f}"


def is_tree(result: dict[str, Any], name: str) -> bool:
    return any(parent != i for _, parents, *_ in result["examples"][name]["rounds"] for i, parent in enumerate(parents))


def cost_model(result: dict[str, Any]) -> Table:
    """Seconds of verifying by the model fitted to eager passes of one row, against those measured in the runs."""
    bounds = Bounds(result)
    m = bounds.model
    model = f"{1e3 * m.fixed:.1f} + {1e3 * m.per_token:.2f} a token + {1e3 * m.per_cached:.4f} a cached token"
    yield f"verifying: {model}, ms", "predicted, s", "measured, s", "predicted / measured"
    for batch in result["settings"]["batches"]:
        for name in methods_of(result, batch):
            mine = Times(result, name, batch)
            if mine.has_rounds and not name.endswith(" compiled"):
                predicted, measured = bounds.predicted(mine)
                label = name if batch == 1 else f"{name}, batch {batch}"
                yield label, f"{predicted:.1f}", f"{measured:.1f}", f"{predicted / max(measured, 1e-9):.2f}"


def by_request(result: dict[str, Any]) -> Table:
    names = [name for name in methods_of(result) if Times(result, name).has_rounds]
    yield "request", *names
    times = {name: Times(result, name) for name in names}
    for group in times[AUTOREGRESSIVE].groups:
        row = [result["requests"][group[0]]["id"]]
        for mine in times.values():
            runs = mine.runs[group]
            first, whole = (statistics.median(run[key] for run in runs) for key in ("ttft_s", "seconds"))
            a_token = (whole - first) / max(1, size(runs[0]) - 1)
            row.append(f"{1e3 * first:.0f} / {1e3 * a_token:.1f} / {whole:.2f} / {mine.tokens_a_round([group]):.2f}")
        yield row


def quartiles(values: list[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def overlap(prompt: Sequence[int], tokens: Sequence[int], n: int = 3) -> float:
    """The share of the text's runs of n tokens that stand in the prompt, or earlier in the text."""
    whole, hits = [*prompt, *tokens], 0
    seen = {tuple(prompt[i : i + n]) for i in range(len(prompt) - n + 1)}
    for at in range(max(len(prompt), n - 1), len(whole)):
        gram = tuple(whole[at - n + 1 : at + 1])
        hits += gram in seen
        seen.add(gram)
    return hits / max(1, len(tokens))
