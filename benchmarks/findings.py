"""The tables and figures of README.md and results/, from the committed results.

    python benchmarks/findings.py              # rewrites what stands between their marks, and the pages of each result

The findings are those of "Speculative Decoding: Performance or Illusion?" (Liu et al., 2026), each with our verdict.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import rankdata

from minispec.bench import AUTOREGRESSIVE, measured, read_result
from minispec.figures import figures, write
from minispec.report import (
    Bounds,
    Times,
    by_kind,
    by_method,
    cost_model,
    counterparts,
    drafting,
    is_tree,
    kinds_of,
    limits,
    markdown,
    of_kind,
    overlap,
)
from minispec.served import beside

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
HERE = RESULTS / "xeon-avx512-2-cores"
NAMES = "bench", "peers", "batches", "temperatures"  # these come with the package
PAGES = ROOT / "README.md", RESULTS / "README.md", HERE / "serving" / "README.md"


class Finding(NamedTuple):
    there: str  # what the paper found
    verdict: str
    numbers: str
    figure: tuple[str, str]  # result and figure


def listed(values: dict[Any, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def verdict(holds: Sequence[bool]) -> str:
    return "reproduced" if all(holds) else "reproduced in part" if any(holds) else "not reproduced"


def findings(result: dict[str, Any], batches: dict[str, Any], warm: dict[str, Any]) -> Iterator[Finding]:
    """`warm`: the result at several temperatures."""
    names, bounds, base = drafting(result), Bounds(result), Times(result, AUTOREGRESSIVE)
    times = {name: Times(result, name) for name in names}

    def shares(part: str, source: dict[str, Any], temperature: float) -> dict[str, float]:
        return {n: Times(source, n, 1, temperature).share(part) for n in drafting(source, temperature=temperature)}

    verify = shares("verify_s", result, 0.0)
    yield Finding(
        "Verification takes most of the time: 42 to 95%.",
        verdict([share > 0.5 for share in verify.values()]),
        f"Its share of decoding: {listed({name: f'{share:.0%}' for name, share in verify.items()})}.",
        ("bench", "breakdown"),
    )

    hot = max(warm["settings"]["temperatures"])
    greedy, drawn = shares("accept_s", warm, 0.0), shares("accept_s", warm, hot)
    yield Finding(
        "Rejection sampling costs next to nothing: under 1.7%.",
        verdict([share < 0.017 for share in drawn.values()]),
        f"Accepting takes, at temperature {hot:g}: {listed({n: f'{s:.1%}' for n, s in drawn.items()})}; at 0, where it only "
        f"compares: {listed({n: f'{s:.1%}' for n, s in greedy.items()})}.",
        ("temperatures", "accepting"),
    )

    tries = {n: [k // times[n].repeats() for k in times[n].tried()] for n in names}
    rates = {n: [f"{r:.2f} of {k}" for r, k in zip(times[n].conditional(), tries[n], strict=True)] for n in names}
    by_request = {name: [times[name].tokens_a_round([group]) for group in times[name].groups] for name in names}
    per_kind = {n: [times[n].tokens_a_round(of_kind(result, times[n], kind)) for kind in kinds_of(result)] for n in names}
    firsts = {n: " then ".join(row[:3]) for n, row in rates.items()}

    def spans(rows: dict[str, Any]) -> str:
        return listed({name: f"{min(row):.2f} to {max(row):.2f}" for name, row in rows.items()})

    yield Finding(
        "Acceptance varies with the position, the request and the kind of request.",
        verdict([max(row) > 1.5 * min(row) for row in by_request.values()]),
        f"By request, tokens a round: {spans(by_request)}; by kind: {spans(per_kind)}. By position, of what was tried "
        f"there: {listed(firsts)}.",
        ("bench", "acceptance_by_request"),
    )

    shared, gains, by_overlap = [], [], times["ngram"]
    for group in by_overlap.groups:
        shared.append(overlap(result["requests"][group[0]]["prompt"], base.runs[group][0]["tokens"][0]))
        gains.append(by_overlap.rate([group]) / base.rate([group]))
    ranks = statistics.correlation(rankdata(shared).tolist(), rankdata(gains).tolist())
    copied = [kind for kind in kinds_of(result) if gains_of(result, kind)[0][0] == "ngram"]
    yield Finding(
        "n-gram lookup wins where the output repeats the prompt, and their overlap predicts it.",
        verdict([ranks > 0.6, bool(copied)]),
        f"Rank correlation of overlap and speedup over {len(gains)} requests is {ranks:.2f}. n-gram lookup is the fastest "
        f"method with {', '.join(copied) or 'none'}.",
        ("bench", "overlap"),
    )

    sizes = batches["settings"]["batches"]
    speedups = {name: speedup_by_batch(batches, name) for name in drafting(batches)}
    tree, chain = speedups["eagle"], speedups["eagle:chain"]
    long = {n: Times(batches, n).tokens_a_round() for n in ("eagle", "eagle:chain")}
    wins = [size for size in sizes if chain[size] > tree[size]]
    right = {n: accepted_share(batches, n) for n in long}
    whole = {n: {b: of_all(Times(batches, n, b), Times(batches, AUTOREGRESSIVE, b)) for b in sizes} for n in long}
    yield Finding(
        "Trees lengthen acceptance but waste verification, so that chains win as the batch grows.",
        verdict([long["eagle"] > long["eagle:chain"], right["eagle"] < right["eagle:chain"], sizes[-1] in wins]),
        f"Tokens a round at batch 1: {listed({n: f'{long[n]:.2f}' for n in long})}; of the "
        f"drafted accepted: {listed({n: f'{right[n]:.2f}' for n in right})}; speedup of decoding at batch {numbers(sizes)}: "
        f"tree {row(tree)}, chain {row(chain)}: the chain is ahead at {numbers(wins)}. Of whole responses: tree "
        f"{row(whole['eagle'])}, chain {row(whole['eagle:chain'])}.",
        ("batches", "speedup_by_batch"),
    )

    pays = {name: [size for size in sizes if row[size] > 1.0] for name, row in speedups.items()}
    falls = [row[sizes[0]] > row[sizes[-1]] for row in speedups.values()]
    yield Finding(
        "The speedup falls as the batch grows.",
        verdict(falls),
        f"Of decoding, at batch {numbers(sizes)}: "
        + "; ".join(f"{name} {row(speedups[name])}, above 1 at {numbers(where)}" for name, where in pays.items())
        + ".",
        ("batches", "speedup_by_batch"),
    )

    chains = [name for name in names if not is_tree(result, name)]
    fixed = {name: bounds.best_fixed(name) for name in chains}
    best = {name: bounds.oracle(name) for name in names}
    yield Finding(
        "The oracle (each round exactly as many tokens as will be accepted) stands well above the best fixed length.",
        verdict([best[name] > 1.1 * fixed[name][1] for name in chains]),
        "; ".join(f"{n}: oracle {best[n]:.2f}, best fixed length {fixed[n][0]} gives {fixed[n][1]:.2f}" for n in chains)
        + f". Of the trees the oracle is {listed({n: f'{best[n]:.2f}' for n in names if n not in chains})}.",
        ("bench", "bounds"),
    )

    both = bounds.oracle("ngram", "eagle")
    yield Finding(
        "Choosing between n-gram lookup and EAGLE at each step would gain more still.",
        verdict([both > 1.05 * max(best["ngram"], best["eagle"])]),
        f"The oracle that chooses reaches {both:.2f}; n-gram lookup alone {best['ngram']:.2f}, EAGLE {best['eagle']:.2f}.",
        ("bench", "bounds"),
    )


def accepted_share(result: dict[str, Any], name: str) -> float:
    rounds = Times(result, name, 1).rounds()
    return sum(r["accepted"] for r in rounds) / sum(r["nodes"] for r in rounds)


def row(values: dict[int, float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values.values())


def numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "(none)"


def speedup_by_batch(result: dict[str, Any], name: str) -> dict[int, float]:
    sizes = result["settings"]["batches"]
    return {b: Times(result, name, b).decode_rate() / Times(result, AUTOREGRESSIVE, b).decode_rate() for b in sizes}


def gains_of(result: dict[str, Any], kind: str) -> list[tuple[str, float]]:
    """Speedup of whole responses to one kind of request, the fastest method first."""
    base = Times(result, AUTOREGRESSIVE)
    groups = of_kind(result, base, kind)
    gains = [(name, Times(result, name).rate(groups) / base.rate(groups)) for name in drafting(result)]
    return sorted(gains, key=lambda pair: -pair[1])


def choice(result: dict[str, Any]) -> Iterator[Sequence[Any]]:
    yield (
        *("if most requests are like", "the text repeats", "of its prompt", "take", "speedup here", "next best"),
        "slower than plain decoding (below 0.95)",
    )
    base = Times(result, AUTOREGRESSIVE)
    for kind in kinds_of(result):
        groups = of_kind(result, base, kind)
        texts = [(result["requests"][g[0]]["prompt"], base.runs[g][0]["tokens"][0]) for g in groups]
        again, quoted = (statistics.mean(share(*text) for text in texts) for share in (overlap, of_the_prompt))
        (first, gain), (second, less), *_ = gains = gains_of(result, kind)
        losing = ", ".join(name for name, gain in gains if gain < 0.95)
        take = first if gain > 1 else "none"
        yield kind, f"{again:.0%}", f"{quoted:.0%}", take, f"{gain:.2f}", f"{second} ({less:.2f})", losing


def of_the_prompt(prompt: Sequence[int], tokens: Sequence[int], n: int = 3) -> float:
    """The share of the text's runs of n tokens that stand in the prompt."""
    seen = {tuple(prompt[i : i + n]) for i in range(len(prompt) - n + 1)}
    whole = [*prompt[-n + 1 :], *tokens]
    return sum(tuple(whole[i : i + n]) in seen for i in range(len(whole) - n + 1)) / max(1, len(tokens))


def repeated(one: dict[str, Any], two: dict[str, Any]) -> Iterator[Sequence[Any]]:
    """Two runs of the same command: speedups of a typical request and of all, how far apart, and what else came again."""
    speedups = "median of pairs", "again", "apart", "speedup", "again", "apart"
    yield "method", *speedups, "faster on", "again", "of bound", "again"
    for name in drafting(one):
        cells: list[str] = []
        for speedup in (median_of_pairs, of_all):
            first, second = (speedup(Times(r, name), Times(r, AUTOREGRESSIVE)) for r in (one, two))
            cells += f"{first:.3f}", f"{second:.3f}", f"{abs(second / first - 1):.1%}"
        cells += (Times(r, name).faster_on(Times(r, AUTOREGRESSIVE)) for r in (one, two))
        cells += (f"{decoding(r, name) / Bounds(r).bound(name):.0%}" for r in (one, two))
        yield name, *cells


def decoding(result: dict[str, Any], name: str) -> float:
    return Times(result, name).decode_rate() / Times(result, AUTOREGRESSIVE).decode_rate()


def median_of_pairs(times: Times, base: Times) -> float:
    return statistics.median(times.pairs(base))


def of_all(times: Times, base: Times) -> float:
    return times.rate() / base.rate()


def conditions(result: dict[str, Any]) -> str:
    m, options = result["machine"], result["settings"]
    versions = f"torch {m['torch']}, transformers {m['transformers']}"
    size = f"{len(result['requests'])} requests, at most {options['max_new_tokens']} tokens, repeats: {options['repeats']}"
    return f"{m['dtype']}, {m['threads']} threads, {versions}; {size}"


def committed() -> dict[str, dict[str, Any]]:
    return {name: measured(name) for name in NAMES} | {
        n: read_result(HERE / f"{n}.json.gz") for n in ("bench-again", "compiled")
    }


def blocks(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What stands between the marks of the pages, by name."""
    bench = results["bench"]
    made = {
        "conditions": "\n".join(f"- `{name}`: {conditions(result)}" for name, result in results.items()),
        "methods": markdown(by_method(bench, 1, 0.0)),
        "kinds": markdown(by_kind(bench, 0.0)),
        "limits": markdown(limits(bench)),
        "cost model": markdown(cost_model(bench)),
        "choice": markdown(choice(bench)),
        "transformers": markdown(counterparts(results["peers"])),
        "repeated": markdown(repeated(bench, results["bench-again"])),
        "compiled": markdown(by_method(results["compiled"], 1, 0.0)),
        "server": markdown(beside(results["batches"])),
    }
    found = list(findings(bench, results["batches"], results["temperatures"]))
    rows = [(i, f.there, f.verdict) for i, f in enumerate(found, 1)]
    made["findings"] = markdown(iter([("", "the paper", "here"), *rows]))
    drawn = {name: dict(figures(results[name])) for name in {f.figure[0] for f in found}}
    for i, f in enumerate(found, 1):
        result, figure = f.figure
        picture = f"![{drawn[result][figure].alt}]({HERE.name}/{result}/{figure}.png)"
        made[f"finding {i}"] = f"**{f.verdict.capitalize()}.** {f.numbers}\n\n{picture}"
    return made


def filled(text: str, made: dict[str, str]) -> str:
    """A page with what stands between `<!-- NAME -->` and `<!-- end -->` made anew."""

    def block(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{made[match[1]]}\n<!-- end -->"

    return re.sub(r"<!-- ([\w ]+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


def main() -> None:
    results = committed()
    for name, result in results.items():
        write(result, HERE / f"{name}.json")  # NAME.md, and NAME/*.png
    made = blocks(results)
    for page in PAGES:
        part = page.with_name(f".{page.name}.part")
        part.write_text(filled(page.read_text(), made))
        part.replace(page)


if __name__ == "__main__":
    main()
