# %% [markdown]
# # 07 · Where the time goes: performance or illusion?
#
# Six notebooks have built methods that emit more than one token a pass. How much of that arrives at the clock, and where does the rest go? This
# notebook takes one finished benchmark apart, round by round, and asks of each number what it hides.
#
# **You will be able to** say what share of a round is drafting, verifying, accepting; derive from the same rounds the four numbers that are called
# "acceptance"; compute a bound and an oracle, and name what is missing to each; predict the speedup of a method before you look at the clock; judge
# eight published findings by your own numbers.
#
# **You should know** rounds, acceptance and the cost curve (notebook 02), n-gram lookup (04), and EAGLE's tree (06). **Time:** 45 minutes, of which
# less than one is computing. **Needs:** a CPU. With a GPU, change one line in the next cell.

# %%
import statistics
from math import isclose

import numpy as np
import torch

import minispec as ms
from minispec import plots
from minispec.bench import COLUMNS, measured, rehearse
from minispec.notebook import here, show
from minispec.report import Bounds, Times

device = "cpu"  # "cuda" if you have a GPU
torch.set_num_threads(
    min(2, torch.get_num_threads())
)  # two threads at most: the same numbers everywhere

# %% [markdown]
# ## Eight findings
#
# "Speculative Decoding: Performance or Illusion?" (Liu, Yu, Park, Stoica, Cheung 2026) measured n-gram lookup, draft models, EAGLE heads and
# multi-token prediction in vLLM, with targets of 8 to 106 billion parameters on H100 cards. Eight of its findings, with its numbers (from the
# paper's abstract, arXiv 2601.11580, and the authors' own summary of it, `specdecode-bench.github.io`):
#
# | | finding | there |
# |---|---|---|
# | 1 | verification dominates the time | 42 to 95% of it |
# | 2 | rejection sampling is negligible | under 1.7% |
# | 3 | acceptance varies with position, request and kind of request | n-gram on one data set: 1.1 to 15 tokens a step (the middle 90%) |
# | 4 | n-gram lookup wins where the output repeats the prompt, and overlap predicts it | from an overlap of 0.6 on |
# | 5 | trees lengthen acceptance but waste verification, so chains win as the batch grows | from chain to tree 2.25 to 2.92 tokens, but .42 to .10 of those drafted |
# | 6 | speedup falls with batch size | all its curves fall |
# | 7 | an oracle that drafts just what will be accepted stands well above the best fixed length | 2.75 against 2.1 |
# | 8 | choosing between n-gram and EAGLE at each step would gain more still | 4.9 against 2.2 on code edits, little on sums |
#
# Our model is sixty times smaller than their smallest, on two processor cores. **Before you go on, write down for each of the eight: will it hold
# here?** At the end your list is compared with the numbers.
#
# ## What was measured
#
# `minispec bench` ran our requests by every method in turn and kept every round. The result comes with the package, so the numbers in this notebook
# are those of one machine, the one named below. What depends on yours stands between ⟦ and ⟧, as always.

# %%
result = measured("bench")
machine, settings, requests = result["machine"], result["settings"], result["requests"]
methods, drafters = settings["methods"], list(result["drafters"])
most = settings["max_new_tokens"]
print(f"{machine['model']}, {machine['dtype']}, {machine['threads']} threads of {machine['cpu']}")
print(f"{len(requests)} requests, at most {most} tokens each, {settings['repeats']} times")
print("in turn at every request:", ", ".join(methods))

# %% [markdown]
# A round is a row of eight numbers: how many nodes were drafted, how many positions were put to the test, how many tokens were accepted and
# emitted, and the seconds of its four phases. Everything below is made from such rows. Here are the first ones of n-gram lookup on a request to
# summarise a text: copies that go through whole, one that ends early, a round without a match, and an accident.
#
# Three small functions will serve for the whole notebook. `runs_of` picks the runs of a method, on all requests or on some. `rounds_in` turns their
# rows of numbers into dicts, so that `r["accepted"]` can be written instead of `r[2]`. And `once` takes the first repeat only; a moment later you will see why.


# %%
def runs_of(method, among=None):
    """The runs of a method: of all requests, or of some (places in `requests`)."""
    runs = [run for run in result["runs"] if run["method"] == method]
    return [run for run in runs if among is None or run["rows"][0] in among]


def rounds_in(runs):
    """Their rounds, as dicts."""
    return [dict(zip(COLUMNS, r)) for run in runs for r in run["rounds"][0]]


# %%
def once(method, among=None):
    """The runs of the first repeat alone."""
    return [run for run in runs_of(method, among) if run["repeat"] == 0]


row_of = {request["id"]: row for row, request in enumerate(requests)}
print(" ".join(f"{name:>9}" for name in COLUMNS), " (seconds as ms)")
for r in rounds_in(once("ngram", [row_of["summarise-1"]]))[:6]:
    print(" ".join(f"{r[c] if c in COLUMNS[:4] else round(1e3 * r[c], 1):>9}" for c in COLUMNS))

# %% [markdown]
# Every request was run several times, for the seconds' sake. Did the repeats do the same *work*?


# %%
def work(run):
    """The first four columns: what was counted."""
    return [r[:4] for r in run["rounds"][0]]


alike = []
for m in methods:
    for row in range(len(requests)):
        repeats = runs_of(m, [row])
        alike.append(all(work(run) == work(repeats[0]) for run in repeats))
print(f"the same counts in all repeats: {sum(alike)} of {len(alike)} (method, request)")
assert all(alike)

# %% [markdown]
# They did, to the token. A repeat brings new seconds and no new counts, so a count that is taken over all of them claims more than
# it knows: `once` takes it from the first.
#
# One thing more before the numbers: is it the same text?

# %%
for m in drafters:
    print(f"{m:<8} the text of plain decoding: {Times(result, m).same}")

# %% [markdown]
# In bfloat16 a pass over several tokens rounds otherwise than a pass over one, so many texts part somewhere, at places where two tokens were almost
# equally likely (README, "The same text?"; in float32 all are equal). So the counts of a run belong to the text that this method wrote.
#
# ## Does your machine do the same work?
#
# Seconds differ from machine to machine; counted work need not. At temperature 0 the text is given, and n-gram lookup reads nothing but the text.
# So lookup, **replayed on your machine** against the texts that plain decoding wrote there, must go through the same rounds, number by number.


# %%
def counts(rounds):
    """(nodes, levels, accepted, emitted) of rehearsed rounds: all but the seconds."""
    return [tuple(r[:4]) for r in rounds]


target = ms.load("smollm2-135m", device=device, dtype="float32")
texts = {run["rows"][0]: run["tokens"][0] for run in runs_of("autoregressive")}

# %%
all_rows = sorted(texts)
same = 0
for row, request in enumerate(requests):
    replayed = rehearse(target, ms.NGram(), torch.tensor(request["prompt"]), texts[row], most)
    same += counts(replayed) == counts(result["rehearsals"]["ngram"][str(row)][0])
assert same == len(requests)
print(f"{same} of {len(requests)} texts: the same rounds here as in the committed result")

# %% [markdown]
# Now for real, on two of the requests, with passes of the target: plain decoding, lookup, and EAGLE. We compute in float32, where a pass over
# several tokens gives the same answers as a pass over one; the counts on the left are then the same everywhere, and only the times in the brackets
# are yours.

# %%
PHASES = COLUMNS[4:]
eagle = ms.load_drafter("eagle", target)
chosen = [torch.tensor(requests[row_of[id]]["prompt"]) for id in ("rewrite-5", "reasoning-1")]
live = {
    name: [ms.generate(target, prompt, drafter, max_new_tokens=24) for prompt in chosen]
    for name, drafter in (("autoregressive", None), ("ngram", ms.NGram()), ("eagle", eagle))
}

# %%
for name, runs in live.items():
    for run, plain in zip(runs, live["autoregressive"]):
        assert run.tokens.tolist() == plain.tokens.tolist()
    mine = [r for run in runs for r in run.trace.rounds]
    nodes, right = sum(r.tree.counts[0] for r in mine), sum(len(r.accepted) for r in mine)
    parts = {p[:-2]: sum(getattr(r, p) for r in mine) for p in PHASES}
    shares = ", ".join(f"{p} {s / sum(parts.values()):.0%}" for p, s in parts.items())
    each = 1e3 * sum(parts.values()) / sum(len(r.emitted) for r in mine)
    print(f"{name:<15}{len(mine):>3} rounds,{nodes:>4} nodes,{right:>3} accepted; ", end="")
    print(here(f"{each:.0f} ms a token: {shares}"))

# %% [markdown]
# The same texts from fewer rounds. Keep the shares that your machine printed beside the ones that follow.
#
# ## Findings 1 and 2: the breakdown of a round
#
# Why not simply the mean over all repeats? Because the machine is shared. Now and then something else takes the processor for seconds, and one such run
# would weigh as much as twenty others. A median does not notice it. So: take of each request the repeat that took the median time, add up the seconds of each phase over the rounds, and divide by the tokens they
# emitted. (*Draft* holds all that the drafter does:
# reading the prompt, proposing, taking in what was emitted. *Verify* is the target's pass. *Accept* compares drafted tokens with the target's
# answers. *Other* is bookkeeping. Prefill, the pass over the prompt, is not a round.)


# %%
def middle(method):
    """Of each request the run that took the median time."""
    ordered = (sorted(runs_of(method, [row]), key=lambda run: run["seconds"]) for row in all_rows)
    return [runs[(len(runs) - 1) // 2] for runs in ordered]


middles = {m: rounds_in(middle(m)) for m in methods}
spent = {m: {p: sum(r[p] for r in middles[m]) for p in PHASES} for m in methods}
emitted = {m: sum(r["emitted"] for r in middles[m]) for m in methods}
for m in methods:  # the package's version
    package = Times(result, m).parts()
    assert all(isclose(spent[m][p], package[p]) for p in PHASES)

# %%
a_token = {m: {p[:-2]: 1e3 * spent[m][p] / emitted[m] for p in PHASES} for m in methods}
total = {m: sum(parts.values()) for m, parts in a_token.items()}
share = {m: {p: s / total[m] for p, s in a_token[m].items()} for m in methods}
show(
    plots.breakdown(a_token),
    alt="A bar for each method, its length the milliseconds a token; verification fills nearly all "
    "of each bar, drafting a part of the draft model's and EAGLE's, and accepting hardly any.",
    numbers="milliseconds a token, and the share of draft / verify / accept / other: "
    + "; ".join(
        f"{m} {total[m]:.0f}, {' / '.join(f'{s:.1%}' for s in share[m].values())}" for m in methods
    ),
)

# %% [markdown]
# **Verification is nearly everything**, here more than there: on a processor the target's pass is slow and all else is cheap beside it. The
# consequence is the thread of this notebook: a method is fast if it needs *few and narrow passes*. Nothing that is done to the drafting can gain
# more than the drafting's share.
#
# Finding 2 speaks of rejection sampling, and the run above was greedy: accepting was comparing numbers. A second committed result has eight
# requests at several temperatures. There the target's logits at every node become a distribution, and a guess is tested against it (notebook 03).

# %%
hot = measured("temperatures")
accepting = {}
for temperature in hot["settings"]["temperatures"]:
    for m in hot["drafters"]:
        runs = [r for r in hot["runs"] if (r["method"], r["temperature"]) == (m, temperature)]
        rounds = rounds_in(runs)
        whole = sum(r[p] for r in rounds for p in PHASES)
        accepting[temperature, m] = 100 * sum(r["accept_s"] for r in rounds) / whole

# %%
rows = {
    f"temperature {t:g}": [accepting[t, m] for m in hot["drafters"]]
    for t in hot["settings"]["temperatures"]
}
show(
    plots.bars(
        rows,
        list(hot["drafters"]),
        "What accepting costs",
        "percent of decoding",
        level=1.7,
    ),
    alt="Bars for each drafter, one a temperature, against a line at 1.7 percent, the most that "
    "the paper found: accepting takes a few percent of the time at most.",
    numbers="; ".join(
        f"{label}: " + ", ".join(f"{m} {s:.1f}%" for m, s in zip(hot["drafters"], row))
        for label, row in rows.items()
    ),
)

# %% [markdown]
# The line is the paper's 1.7%. A draw from 49,152 tokens takes its time on a processor, and our target is so small that its pass does not hide it.
# Whether a bar reaches above the line or not: beside the pass it is small, and a cheaper rule would gain next to nothing.
#
# ## What verification is made of
#
# "Verification dominates" does not yet say what to do about it. A pass over the pending token has to be paid in any case. What the guesses add is
# the difference to a wider pass, and the cost curve splits it: the part for guesses that were right, and the part for guesses that were wrong.
# First the curve. Between the runs, passes over 1, 2, 3, ... tokens after 200 others were timed alone, again and again; take the median of each
# size.

# %%
columns = zip(*result["passes"]["seconds"])  # a column for each (tokens, cached)
medians = [statistics.median(column) for column in columns]
curve = {n: s for (n, cached), s in zip(result["passes"]["cells"], medians) if cached == 200}


def t(n):
    """Seconds of a pass over n tokens: straight lines between the sizes that were timed."""
    return float(np.interp(n, list(curve), list(curve.values())))


# %%
bounds = Bounds(result)  # the package's version
assert curve == bounds.curve and t(10) == bounds.cost(10)
show(
    plots.cost_curve({machine["dtype"]: {n: curve[n] for n in (1, 2, 4, 8, 17, 33, 65)}}),
    alt="The time of a pass against the number of tokens in it: it rises slowly at first, and "
    "stays far below the line of as many passes over one token.",
    numbers="in passes over one token: "
    + ", ".join(f"{n}: {curve[n] / curve[1]:.2f}" for n in (1, 2, 4, 8, 17, 33, 65)),
)

# %% [markdown]
# Before you believe a curve, look for something that was measured twice. A round of plain decoding is a pass over one token, too:

# %%
plain_pass = statistics.median(r["verify_s"] for r in rounds_in(runs_of("autoregressive")))
trust = curve[1] / plain_pass
assert 0.7 < trust < 1.4
print(
    f"a pass over one token: alone {1e3 * curve[1]:.1f} ms, in the runs {1e3 * plain_pass:.1f} ms"
)
print(f"alone / in the runs: {trust:.2f}")

# %% [markdown]
# That ratio is the grain of salt for all that follows: what is computed from the curve cannot be surer than this. The two were measured minutes
# apart, on a machine whose speed drifts. (Where the ratio is below 1, the bounds below are too low, and a method may seem to do better than its
# bound.)
#
# Now the split, for each token that was emitted: its share of the passes over one token, of the width for right guesses, of the width for wrong
# ones, and of the drafting. A round with five nodes of which two were accepted, for example, costs t(6). Of that t(1) is the pass over the pending token, t(3) - t(1) is
# the width of the two right guesses, and t(6) - t(3) is that of the three wrong ones. Added up over all rounds and divided by the tokens that came out of them, the
# four parts say what one token was paid for.

# %%
split = {}
for m in methods:
    rounds = middles[m]
    fixed = len(rounds) * t(1)
    right = sum(t(1 + r["accepted"]) - t(1) for r in rounds)
    wrong = sum(t(1 + r["nodes"]) - t(1 + r["accepted"]) for r in rounds)
    parts = {"one token": fixed, "right guesses": right, "wrong guesses": wrong}
    parts["drafting"] = spent[m]["draft_s"]
    split[m] = {name: 1e3 * s / emitted[m] for name, s in parts.items()}

# %%
wasted = {}
for m in drafters:
    nodes, right = (sum(r[c] for r in middles[m]) for c in ("nodes", "accepted"))
    wasted[m] = (nodes - right) / (nodes + len(middles[m]))
figure = plots.breakdown(split)
figure.axes[0].set_title("What a token is paid for", fontsize=11, loc="left")
show(
    figure,
    alt="A bar for each method: the passes over one token are by far the largest part; the width "
    "for right guesses, the width for wrong ones and drafting are smaller parts behind it.",
    numbers="milliseconds a token, one token / right / wrong / drafting: "
    + "; ".join(
        f"{m} {' / '.join(f'{s:.1f}' for s in parts.values())}" for m, parts in split.items()
    ),
)
print(
    "rows of the target's passes that were thrown away: "
    + ", ".join(f"{m} {w:.0%}" for m, w in wasted.items())
)

# %% [markdown]
# Read the bars from the left. The first part shrinks with every token more that a round emits: that is the gain. The third is what is paid for
# guesses that came to nothing. Where the curve is flat, a wrong guess costs little, and a method may throw away most of its rows and still win;
# where it is steep, it may not.
#
# ## Finding 3: acceptance is not one number
#
# **By position in the draft.** A position is *tried* if all before it were accepted. With every rate stands the number of tries that it rests on.

# %%
rates, tries = {}, {}
for m in drafters:
    rounds = rounds_in(once(m))
    deepest = max(r["tried"] for r in rounds)
    tries[m] = [sum(r["tried"] > k for r in rounds) for k in range(deepest)]
    right = [sum(r["accepted"] > k for r in rounds) for k in range(deepest)]
    rates[m] = [a / n for a, n in zip(right, tries[m])]
    assert rates[m] == Times(result, m).conditional()  # the package's version

# %%
show(
    plots.lines(
        {m: dict(enumerate(rates[m], 1)) for m in drafters},
        "Acceptance by position in the draft, of those tried there",
        "position in the draft (in a tree: depth)",
        "share accepted",
        level=1,
    ),
    alt="Four lines of the share accepted against the position in the draft: n-gram lookup's "
    "stays high, Medusa's falls.",
    numbers="accepted of tried, by position: "
    + "; ".join(
        f"{m} " + ", ".join(f"{rate:.2f} of {n}" for rate, n in zip(rates[m], tries[m]))
        for m in drafters
    ),
)

# %% [markdown]
# Two things to see. Lookup's later positions are *better* than its first: once a copy has begun, it goes on. A single rate for all positions (the α
# of Leviathan et al. 2023, section 3.1) describes no method here. And the tries fall fast: a rate that rests on a dozen of them is an anecdote, not
# a rate.
#
# **By place in the answer.** Take the answers that were written to the full length only, so that the same requests stand behind every point, and
# sort their rounds by how many tokens were there when the round began.


# %%
def by_progress(method, part=24):
    """Tokens a round, of rounds that began in the first, second, ... `part` tokens."""
    found = {}
    for run in once(method):
        done = 1
        for r in run["rounds"][0] if len(run["tokens"][0]) == most else ():
            found.setdefault(done - done % part, []).append(r[3])
            done += r[3]
    return {start: sum(found[start]) / len(found[start]) for start in sorted(found)}


progress = {m: by_progress(m) for m in drafters}

# %%
show(
    plots.lines(
        progress,
        "Tokens a round, by how far the answer has come",
        "tokens written before the round, from ... on",
        "tokens a round",
        level=1,
    ),
    alt="A line for each method of tokens a round against the tokens already written; "
    "n-gram lookup's moves most.",
    numbers="; ".join(
        f"{m} " + ", ".join(f"from {at}: {n:.2f}" for at, n in row.items())
        for m, row in progress.items()
    ),
)

# %% [markdown]
# Lookup's line rises: the longer the text, the more there is to be found (and the more often a small model repeats itself). The paper saw the same
# of lookup on long chains of reasoning.
#
# **By request.** Each method's requests, sorted from its best to its worst; and **by kind**.


# %%
def a_round(method, among=None):
    """Tokens a round."""
    rounds = rounds_in(once(method, among))
    return sum(r["emitted"] for r in rounds) / len(rounds)


each = {m: sorted((a_round(m, [row]) for row in texts), reverse=True) for m in drafters}
assert all(isclose(a_round(m), Times(result, m).tokens_a_round()) for m in drafters)
show(
    plots.lines(
        {m: dict(enumerate(row, 1)) for m, row in each.items()},
        "Tokens a round, request by request",
        "requests, from the best to the worst",
        "tokens a round",
        level=1,
    ),
    alt="A falling line for each method over its requests: n-gram lookup's starts far above the "
    "others and ends near one.",
    numbers="best, median and worst request: "
    + "; ".join(
        f"{m} {row[0]:.2f}, {statistics.median(row):.2f}, {row[-1]:.2f}" for m, row in each.items()
    ),
)

# %%
kinds = list(dict.fromkeys(request["kind"] for request in requests))
rows_of = {
    kind: [row for row, request in enumerate(requests) if request["kind"] == kind] for kind in kinds
}
by_kind = {m: [a_round(m, rows_of[kind]) for kind in kinds] for m in drafters}
show(
    plots.bars(
        by_kind,
        [kind.replace(" ", "\n") for kind in kinds],
        "Tokens a round, by kind of request",
        "tokens a round",
        level=1,
    ),
    alt="Four bars for each kind of request: n-gram lookup's are very uneven, those of the three "
    "trained drafters much less.",
    numbers="; ".join(
        f"{m}: " + ", ".join(f"{kind} {n:.2f}" for kind, n in zip(kinds, row))
        for m, row in by_kind.items()
    ),
)

# %% [markdown]
# Lookup is moody: on its best request it emits many times what it emits on its worst. Medusa hardly moves. An average over such requests belongs to
# the mix of requests as much as to the method.
#
# ## Four numbers with one name
#
# "The acceptance was 1.6." "No, it was 0.2." Both may be right, and of the same rounds:

# %%
print(f"{'':<50}" + "".join(f"{m:>8}" for m in drafters))
four = {m: [] for m in drafters}
for m in drafters:
    rounds = rounds_in(once(m))
    right, nodes = (sum(r[c] for r in rounds) for c in ("accepted", "nodes"))
    drafting = [r for r in rounds if r["nodes"]]
    four[m] += [right / len(rounds), a_round(m), right / nodes, rates[m][0]]
    four[m] += [sum(r["accepted"] > 1 for r in drafting) / len(drafting)]

# %%
names = (
    "accepted tokens a round",
    "tokens a round (with the target's own)",
    "share of the drafted nodes that was accepted",
    "at position 1, of the tries there",
    "at position 2, of all drafts",
)
for i, name in enumerate(names):
    print(f"{name:<50}" + "".join(f"{four[m][i]:>8.2f}" for m in drafters))

# %% [markdown]
# The first is what transformers, gpt-fast and Medusa count, the second EAGLE's τ and close to vLLM's mean acceptance length, the third an
# "acceptance rate", and the fourth is acceptance *by position*, which comes in two ways: of those tried there, or of all drafts (vLLM's).
# (`minispec/report.py` says who counts what.) They do not even put the methods in the same order: a tree does badly by the third, since most of its
# nodes are alternatives to each other. None of them is a speedup. The package prints them side by side:

# %%
from minispec.report import acceptance, markdown

table = [list(row) for row in acceptance(result, batch=1, temperature=0.0)]
for line in table[1:]:
    assert line[2:5] == [f"{x:.2f}" for x in four[line[0]][:3]]
orders = {tuple(sorted(drafters, key=lambda m: four[m][i])) for i in range(5)}
assert len(orders) > 1  # not the same order by all
print(markdown(row[:5] for row in table))

# %% [markdown]
# ## From promise to performance
#
# Tokens a round are the promise: the speedup if checking and drafting were free. The **bound** charges for both: the tokens would have taken a pass
# over one token each; divide that by the passes that the rounds took, by the curve, and the drafting, timed alone.
#
# $$\text{bound} = \frac{\text{tokens} \cdot t(1)}{\sum_{\text{rounds}} \big(t(1 + \text{nodes}) + \text{draft}\big)}$$
#
# For this the benchmark let every drafter *rehearse*: draft alone, against the text that plain decoding wrote, once for each repeat. So the clock
# of the real runs is not used at all.


# %%
def bound(method, among=all_rows):
    tokens = seconds = 0.0
    for row in among:
        for same_round in zip(*result["rehearsals"][method][str(row)]):  # in each repeat
            nodes, _, _, emitted, _ = same_round[0]
            tokens += emitted
            seconds += t(1 + nodes) + statistics.median(r[-1] for r in same_round)
    return tokens * t(1) / seconds


# %%
for m in drafters:
    assert isclose(bound(m), bounds.bound(m))  # the package's version
print("bound:", ", ".join(f"{m} {bound(m):.2f}" for m in drafters))


# %% [markdown]
# And what was observed: the time after the first token, and the time of the whole response, in which prefill is paid without a gain. Of each
# request the median repeat; then the ratio of totals (notebook 09 says why not the mean of ratios).


# %%
def seconds_a_token(method, among=all_rows, whole=False):
    seconds = tokens = 0.0
    for row in among:
        runs = runs_of(method, [row])
        new = len(runs[0]["tokens"][0])  # the text of a method is the same in all repeats
        seconds += statistics.median(run["seconds"] - run["ttft_s"] * (not whole) for run in runs)
        tokens += new - (not whole)
    return seconds / tokens


# %%
def speedup(method, among=all_rows, whole=False):
    plain = seconds_a_token("autoregressive", among, whole)
    return plain / seconds_a_token(method, among, whole)


base = Times(result, "autoregressive")
for m in drafters:
    assert isclose(speedup(m), Times(result, m).decode_rate() / base.decode_rate())

# %%
ladder = {
    "tokens a round": [a_round(m) for m in drafters],
    "bound": [bound(m) for m in drafters],
    "decoding": [speedup(m) for m in drafters],
    "whole response": [speedup(m, whole=True) for m in drafters],
}

# %%
show(
    plots.bars(ladder, drafters, "From promise to performance", "times as fast", level=1),
    alt="Four bars for each method that mostly fall from left to right: tokens a round, bound, "
    "speedup of decoding, speedup of the whole response; the trained drafters lose most at the "
    "first step.",
    numbers="; ".join(
        f"{label}: " + ", ".join(f"{m} {x:.2f}" for m, x in zip(drafters, row))
        for label, row in ladder.items()
    ),
)

# %% [markdown]
# This is the figure for the wall. The first step down is the price of *verification and drafting*; no code can avoid it without other drafts or
# another curve. The second is *overhead*, which better code could take away. In a rehearsal, for example, nobody waits while the drafter reads the
# prompt. (The step carries the grain of salt from above: where a method stands at its bound or beyond, read "no overhead that this curve could
# show".) The third is *prefill*. Where the last bar is at the line, the method is an illusion on this machine: as many tokens a round as you like,
# and nothing to show.
#
# ## Predict, then look
#
# A speedup that you can only measure is not understood. So predict one: **n-gram lookup on requests to rewrite a text.** You need what you already
# have, for these requests: tokens a round, nodes a round, and the curve. Lookup's drafting is as good as free.

# %%
rewrite = rows_of["rewrite"]
rounds = rounds_in(runs_of("ngram", rewrite))
width = sum(t(1 + r["nodes"]) for r in rounds) / len(rounds)
print(f"tokens a round: {a_round('ngram', rewrite):.2f}")
print(f"nodes a round: {sum(r['nodes'] for r in rounds) / len(rounds):.1f}")
print(f"a pass over one token: {1e3 * t(1):.0f} ms; these passes, on average: {1e3 * width:.0f} ms")

# %% [markdown]
# **Write down your number, then run the next cell.** (What would one round's tokens have cost one by one, and what does the round cost?)

# %%
prediction = a_round("ngram", rewrite) * t(1) / width
print(f"predicted: {prediction:.2f} times as fast")
print(f"observed:  {speedup('ngram', rewrite):.2f}")

# %% [markdown]
# Then all methods on all kinds, by the same three steps. Count the rounds, their nodes, and the tokens that they emitted. Price each round: a pass of its width by the curve,
# and one proposal as the rehearsals timed it. Divide what the tokens would have cost in passes over one token by what the rounds cost. No clock of the runs goes in. A dot on the diagonal is
# a prediction that came true; a dot below it is time that neither the passes nor the drafting explain, or a machine that had slowed down just then.


# %%
def forecast(method, among):
    """Predicted speedup of decoding."""
    rounds = rounds_in(once(method, among))
    repeats = [again for row in among for again in result["rehearsals"][method][str(row)]]
    drafting = statistics.mean(r[-1] for again in repeats for r in again)
    seconds = sum(t(1 + r["nodes"]) + drafting for r in rounds)
    return sum(r["emitted"] for r in rounds) * t(1) / seconds


predicted = {m: [forecast(m, rows_of[kind]) for kind in kinds] for m in drafters}
observed = {m: [speedup(m, rows_of[kind]) for kind in kinds] for m in drafters}

# %%
pairs = {m: list(zip(predicted[m], observed[m])) for m in drafters}
figure = plots.dots(pairs, "Predicted, and observed", "predicted speedup", "observed speedup")
diagonal = figure.axes[0].axline((1, 1), slope=1, color="grey", linestyle=":")

# %%
show(
    figure,
    alt="A dot for each method and kind of request, the observed speedup against the predicted "
    "one; all lie close to the dotted diagonal.",
    numbers="(predicted, observed): "
    + "; ".join(
        f"{m} " + ", ".join(f"({x:.2f}, {y:.2f})" for x, y in ps) for m, ps in pairs.items()
    ),
)
off = sorted(abs(y / x - 1) for ps in pairs.values() for x, y in ps)
print(f"off by {statistics.median(off):.0%} in the median, and by {off[-1]:.0%} at most")

# %%
hits = 0
for i, kind in enumerate(kinds):
    first, second = (max(drafters, key=lambda m: table[m][i]) for table in (predicted, observed))
    hits += first == second
    print(f"{kind:<10} fastest drafter predicted: {first:<7} observed: {second}")
print(f"the same for {hits} of {len(kinds)} kinds")

# %% [markdown]
# This is what to do with a notebook like this one. Before you deploy a drafter, measure three cheap things: your cost curve, the time of one
# proposal, and tokens and nodes a round on *your* requests (a rehearsal on texts that you have costs no run of the target). They tell the speedup
# well enough to decide whether it is worth a benchmark.
#
# ## Finding 4: overlap
#
# Count the share of an answer's tokens that end a 3-gram which stood before, in the prompt or in the answer (notebook 04), and set beside it how
# lookup does *against EAGLE* on that request: above the line it wins.


# %%
def overlap(prompt, answer):
    whole, before, hits = [*prompt, *answer], set(), 0
    for at in range(2, len(whole)):
        gram = tuple(whole[at - 2 : at + 1])
        hits += at >= len(prompt) and gram in before
        before.add(gram)
    return hits / len(answer)


from minispec import report

duel = {kind: [] for kind in kinds}
for row, request in enumerate(requests):
    answer = once("ngram", [row])[0]["tokens"][0]
    x = overlap(request["prompt"], answer)
    assert x == report.overlap(request["prompt"], answer)  # the package's version
    duel[request["kind"]].append((x, speedup("ngram", [row]) / speedup("eagle", [row])))

# %%
show(
    plots.dots(
        duel,
        "n-gram lookup against EAGLE",
        "overlap: share of the answer that repeats what stood before",
        "speed of lookup over EAGLE's",
        level=1,
    ),
    alt="A dot for each request: the larger the overlap, the higher the speed of n-gram lookup "
    "over that of EAGLE; with little overlap most dots lie below the line.",
    numbers="(overlap, lookup over EAGLE): "
    + "; ".join(
        f"{k} " + ", ".join(f"({x:.2f}, {y:.2f})" for x, y in ps) for k, ps in duel.items()
    ),
)

# %%
from scipy.stats import spearmanr

xs, ys = (np.array(axis) for axis in zip(*(pair for pairs in duel.values() for pair in pairs)))
rank = spearmanr(xs, ys).statistic
high = xs > np.median(xs)
wins = {name: int((ys[part] > 1).sum()) for name, part in (("high", high), ("low", ~high))}
print(f"rank correlation {rank:.2f}")
print(f"lookup wins {wins['high']} of the {high.sum()} requests with high overlap,", end=" ")
print(f"and {wins['low']} of the {(~high).sum()} others")

# %% [markdown]
# You can know the overlap of a *kind* of request before any model runs: an editor asks for edits. That is why a system may choose its drafter by
# where a request comes from.
#
# ## Finding 7: the oracle
#
# What if a drafter knew how many of its guesses will be accepted, and drafted just those? No row would be wasted. For this the benchmark noted what
# each drafter would draft after *every* token of a text, and how much of it is right. Where a draft has four right tokens one may take four, or
# fewer, if a better draft begins in between. So we look for the fastest way from the end of the text backwards: the least time for what follows
# token *i*, over all choices at *i*.
#
# Read the code from the inside. At token *i* there is always one choice: a pass without a draft, after which the text stands at *i* + 1. If *k* guesses are
# right there, drafting just those costs *k* guesses and a pass over 1 + *k* tokens, and the text stands at *i* + *k* + 1, since the target adds a token of
# its own. What follows from there has been worked out already, because we come from the end: that is the whole trick of dynamic programming. The best of
# all choices is kept, and the answer for the whole text stands at its beginning.


# %%
def least_time(right, cost, token_s):
    """Seconds for a text if only right tokens are drafted; right[d][i]: drafter d's after i."""
    n = len(right[0])
    rest = [0.0] * (n + 1)
    for i in reversed(range(n)):
        rest[i] = cost[1] + rest[i + 1]  # no draft
        for mine, guess_s in zip(right, token_s):
            for k in range(1, min(mine[i], n - i) + 1):
                after = rest[min(n, i + k + 1)]
                rest[i] = min(rest[i], cost[1 + k] + k * guess_s + after)
    return rest[0]


cost = {n: t(n) for n in range(1, 12)}
print("four tokens, of which 2, 1, 0, 0 are right ahead, in passes over one token:", end=" ")
print(least_time([[2, 1, 0, 0]], dict.fromkeys(range(1, 6), 1.0), [0.0]))

# %% [markdown]
# (Two passes: the first takes two guesses and adds the target's own token, the second writes the last. The paper's oracle always takes all that is
# right; this one may take less, so it is never below.) The time of a guess is that of drafting over the depth drafted.


# %%
def ahead(method, row):
    """(levels drafted, right ones) after each token of a text."""
    return [(levels, right) for _, levels, right, _, _ in result["ahead"][method][str(row)]]


def guess_s(method):
    every = [r for row in texts for r in result["ahead"][method][str(row)]]
    return sum(r[4] for r in every) / sum(r[1] for r in every)


def oracle(*names, among=all_rows):
    seconds = sum(
        least_time(
            [[right for _, right in ahead(m, row)] for m in names],
            cost,
            [guess_s(m) for m in names],
        )
        for row in among
    )
    return sum(len(ahead(names[0], row)) for row in among) * t(1) / seconds


perfect = {m: oracle(m) for m in drafters}
assert all(isclose(perfect[m], bounds.oracle(m)) for m in drafters)  # the package's version
print("oracle:", ", ".join(f"{m} {gain:.2f}" for m, gain in perfect.items()))

# %% [markdown]
# Its rival is the best *fixed* length, which anybody can set: draft always *n* tokens (or as many as there are). Here nobody looks ahead. We walk along the text:
# at each place the drafter offers what it has, cut to *n* tokens; some of it is right; the pass is paid for all of it; and the walk goes on behind what was accepted
# and the token that the target adds.


# %%
def fixed_length(method, length):
    seconds = tokens = 0.0
    for row in texts:
        offers, at = ahead(method, row), 0
        while at < len(offers):
            drafted, right = (min(length, n) for n in offers[at])
            seconds += t(1 + drafted) + drafted * guess_s(method)
            at += right + 1
        tokens += len(offers)
    return tokens * t(1) / seconds


chains = ["draft", "ngram"]  # the two that draft chains
longest = {m: max(n for row in texts for n, _ in ahead(m, row)) for m in chains}
fixed = {m: {n: fixed_length(m, n) for n in range(1, longest[m] + 1)} for m in chains}
top = {m: max(fixed[m].items(), key=lambda found: found[1]) for m in chains}
for m in chains:  # the package's version, in which no draft at all is a length, too
    assert np.allclose(max(top[m], (0, 1.0), key=lambda found: found[1]), bounds.best_fixed(m))

# %%
level = {f"{m}, oracle": dict.fromkeys(fixed[m], perfect[m]) for m in chains}
show(
    plots.lines(
        {f"{m}, fixed length": fixed[m] for m in chains} | level,
        "A fixed length, and an oracle that knows what will be accepted",
        "drafted tokens a round, at most",
        "times as fast, by the cost curve",
        level=1,
    ),
    alt="For the draft model and n-gram lookup a line of the speedup against a fixed draft length, "
    "and above each a level line for the oracle.",
    numbers="; ".join(
        f"{m}: best fixed {top[m][1]:.2f} at {top[m][0]}, oracle {perfect[m]:.2f}" for m in chains
    ),
)

# %% [markdown]
# The distance between a curve's top and its level line is what a better decision *when and how much to draft* could gain, with the same drafter.
# (Ours have such a decision already: this draft model stops when unsure, and lookup drafts nothing without a match, so part of the oracle's gain is
# in the fixed lengths. And the oracle knows only drafts of these drafters at their shipped settings: eight tokens of lookup at most.)
#
# ## Finding 8: two drafters
#
# Lookup knows what stood before, EAGLE how language goes on. After each token of one answer: how many tokens ahead is each of them right?

# %%
pair = ("ngram", "eagle")
gains = {
    row: oracle(*pair, among=[row]) / max(oracle(m, among=[row]) for m in pair) for row in texts
}
example = max(gains, key=gains.get)
lengths = {m: dict(enumerate((right for _, right in ahead(m, example)), 1)) for m in pair}
only = {
    m: sum(lengths[m][i] > 0 == lengths[o][i] for i in lengths[m]) for m, o in (pair, pair[::-1])
}
show(
    plots.lines(
        lengths,
        f"Right tokens ahead, along one answer ({requests[example]['id']})",
        "tokens written",
        "next tokens drafted right",
    ),
    alt="Two jagged lines along an answer: long slopes of n-gram lookup, and between them places "
    "where only EAGLE has something right.",
    numbers=f"of {len(lengths['ngram'])} places, only lookup has something right at "
    f"{only['ngram']}, only EAGLE at {only['eagle']}",
)

# %% [markdown]
# This is the request on which choosing gains most. An oracle that also picks the drafter at every step is one more loop, which `least_time` has
# already:

# %%
either = oracle(*pair)
assert isclose(either, bounds.oracle(*pair))  # the package's version
by_oracle = {
    label: [oracle(*names, among=rows_of[kind]) for kind in kinds]
    for label, names in (("n-gram", pair[:1]), ("EAGLE", pair[1:]), ("whichever suits", pair))
}
show(
    plots.bars(
        by_oracle,
        [kind.replace(" ", "\n") for kind in kinds],
        "Three oracles, by kind of request",
        "times as fast, by the cost curve",
        level=1,
    ),
    alt="Three bars for each kind of request, the oracle of n-gram lookup, of EAGLE, and of "
    "whichever suits; the third is never below the others.",
    numbers="; ".join(
        f"{label}: " + ", ".join(f"{kind} {g:.2f}" for kind, g in zip(kinds, row))
        for label, row in by_oracle.items()
    ),
)
print(f"over all: n-gram {perfect['ngram']:.2f}, EAGLE {perfect['eagle']:.2f}, either {either:.2f}")

# %% [markdown]
# An oracle is no method. It knows the text. But it says where looking for one may pay. (vLLM's contributors have such a hybrid under discussion:
# draft by lookup where something matches, else by EAGLE, pull request 24344.)
#
# ## Findings 5 and 6: trees, chains and batches
#
# These belong to notebook 08, which builds what is only looked at here: another committed result, with batches. The same EAGLE head drafts once a
# tree and once a chain.

# %%
crowd = measured("batches")
sizes = crowd["settings"]["batches"]
shapes, kept = {"tree": "eagle", "chain": "eagle:chain"}, {}
for shape, m in shapes.items():
    alone = Times(crowd, m).rounds()
    right, nodes = (sum(r[c] for r in alone) for c in ("accepted", "nodes"))
    tokens, kept[shape] = sum(r["emitted"] for r in alone) / len(alone), right / nodes
    print(f"{shape:<6}{tokens:.2f} tokens a round; {kept[shape]:.2f} of its nodes accepted")

# %% [markdown]
# (Our tree is dynamic, notebook 06: it stays small where the head is unsure. The paper's trees had fixed shapes, of 6 and 21 nodes.)


# %%
def in_company(method, size):
    """Speedup of decoding in batches of a size, against plain decoding in such batches."""
    plain = Times(crowd, "autoregressive", size)
    return Times(crowd, method, size).decode_rate() / plain.decode_rate()


company = {m: {size: in_company(m, size) for size in sizes} for m in crowd["drafters"]}
show(
    plots.lines(
        company,
        "Speedup against the size of the batch",
        "requests in the batch",
        "speedup of decoding",
        level=1,
        log=True,
    ),
    alt="A line for each method: the speedup of decoding against the number of requests in the "
    "batch, with a dotted line at 1.",
    numbers="; ".join(
        f"{m} " + ", ".join(f"{size}: {gain:.2f}" for size, gain in row.items())
        for m, row in company.items()
    ),
)

# %% [markdown]
# ## The verdict
#
# Eight findings against our numbers. Each verdict is computed by a rule in the next cells: *yes* if all that has to be true is true, *in part* if
# some of it is. Where the line is drawn is a choice; read the rules, and change them where you disagree. Verification dominates if it takes more than half with every
# drafter. Acceptance varies if the best request emits half as much again as the worst, for each. Overlap predicts if the ranks agree to 0.6. Trees must emit more, waste
# more, and lose to the chain in the largest batch: three conditions, of which some may hold. The oracle has to be a tenth above the best fixed length, and choosing between
# two drafters a twentieth above the better of them.

# %%
verifying = [share[m]["verify"] for m in drafters]
hottest = [accepting[max(hot["settings"]["temperatures"]), m] for m in hot["drafters"]]
spread = [row[0] / row[-1] for row in each.values()]
above = [perfect[m] / max(1.0, top[m][1]) for m in chains]
more = either / max(perfect[m] for m in pair)
tree, chain = (Times(crowd, shapes[shape]) for shape in ("tree", "chain"))
longer = tree.tokens_a_round() / chain.tokens_a_round()
last = {m: row[sizes[-1]] for m, row in company.items()}
falls = [row[sizes[-1]] < row[sizes[0]] for row in company.values()]

# %%
rules = {  # finding: (our number, what has to be true)
    "1 verification dominates": (
        f"{min(verifying):.0%} to {max(verifying):.0%}",
        [x > 0.5 for x in verifying],
    ),
    "2 sampling is negligible": (
        f"{min(hottest):.1f} to {max(hottest):.1f}%",
        [x < 1.7 for x in hottest],
    ),
    "3 acceptance varies": (
        f"best over worst request: {min(spread):.1f} to {max(spread):.1f}",
        [x > 1.5 for x in spread],
    ),
    "4 overlap predicts lookup": (f"rank correlation {rank:.2f}", [rank > 0.6]),
    "5 trees longer, chains later": (
        f"tokens {longer:.2f} times; batch {sizes[-1]}: "
        f"tree {last['eagle']:.2f}, chain {last['eagle:chain']:.2f}",
        [longer > 1, kept["tree"] < kept["chain"], last["eagle:chain"] > last["eagle"]],
    ),
    "6 speedup falls with batches": (f"{sum(falls)} of {len(falls)} methods", falls),
    "7 oracle above fixed length": (
        ", ".join(f"{m} by {x - 1:.0%}" for m, x in zip(chains, above)),
        [x > 1.1 for x in above],
    ),
    "8 choosing gains more": (f"by {more - 1:.0%}", [more > 1.05]),
}

# %%
for finding, (number, true) in rules.items():
    verdict = "yes" if all(true) else "in part" if any(true) else "no"
    print(f"{finding:<30}{verdict:<9}{number}")

# %% [markdown]
# Compare with the list that you wrote at the start. Some reasons for what you see:
#
# - *What does not depend on the machine* (3, 4 and most of 7 and 8) comes from texts and drafters. It turns up with a small model as with a large
#   one.
# - *What depends on the ratio of costs* (1, 2) may move. Our pass is slow against a lookup, and short against a draw from 49,152 tokens.
# - *What depends on slack* (5, 6) is decided by the cost curve. A card has idle arithmetic at batch 1, and loses it as the batch grows; two cores
#   have little to lose. Where a rule says *no*, that is no refutation: it is another machine. Notebook 08 takes the reason apart.
#
# **Performance or illusion?** Both, and the ladder tells which. Tokens a round that the passes eat up again are an illusion, and so is a speedup
# over a slow baseline, of chosen requests, or at batch 1 for a server that never sees it. What is left in the last bar is performance.
#
# ## Summary
#
# - A round is drafting, verifying, accepting, bookkeeping. Verifying is most of it: what counts is *few and narrow passes*.
# - Acceptance is four numbers, and each varies with position, request and kind. Name the one you mean, and what it rests on.
# - Bound = tokens by the cost of the passes that they took. What is missing to it is overhead; what the bound lacks to tokens a round is the price
#   of guessing.
# - The oracle (draft just what will be accepted) and the oracle over two drafters are not methods; they show where a better decision could gain.
# - Predict before you measure: curve, proposal, tokens and nodes a round are enough.
#
# ## Questions
#
# **1.** A colleague makes a drafter's code twice as fast, and drafting was 12% of a round. Tokens a round stay. What is gained at most? And if
# drafting became free?
#
# <details><summary>Answer</summary>
#
# Half of 12% is saved: 1 / (1 - 0.06) = 1.06 times as fast. Free: 1 / 0.88 = 1.14 times. No more than the share, whatever the code does.
#
# </details>
#
# **2.** Method A emits 1.7 tokens a round with 3 nodes, method B 1.9 with 16. A pass over 4 tokens costs 1.1 passes over one, one over 17 tokens
# 1.9. Drafting is free. Which has the higher bound? Which has the higher "acceptance", by which of the four numbers?
#
# <details><summary>Answer</summary>
#
# A: 1.7 / 1.1 = 1.55. B: 1.9 / 1.9 = 1.0, nothing gained. By accepted tokens a round (0.7 and 0.9) and by tokens a round B is ahead; by the share
# of nodes accepted A is: 0.7 / 3 = 0.23 against 0.9 / 16 = 0.06. That the share points the right way here is luck: on a flat curve B would win.
# (The fourth, by position, is not given.)
#
# </details>
#
# **3.** The oracle for your drafter stands at 1.4, the best fixed length at 1.35, the observed speedup at 1.1. Where do you look first: at a better
# rule for the draft length, at a better drafter, or at the code?
#
# <details><summary>Answer</summary>
#
# At the code: 1.1 against 1.35 is overhead, time that neither passes nor drafting explain (or a curve that is not that of your runs: measure one
# number twice). A cleverer length could gain 4% at most. Only then a better drafter, which moves all three.
#
# </details>
#
# ## Change it
#
# - An ideal machine, on which every pass costs as much as one over a token: `result["passes"]["seconds"] = [[s[0]] * len(s) for s in
#   result["passes"]["seconds"]]`, right after `measured`. Which method has the highest bound now, and how far above the best fixed length does the
#   oracle stand?
# - Predict without the clock of the runs, then look: `forecast("eagle", [row_of["code-1"]])`, then `speedup`. On single requests, how often is the
#   faster of lookup and EAGLE predicted rightly?
# - Make the hybrid: at every token take lookup's draft if it has one, else EAGLE's. Replay it along `ahead(...)` as `fixed_length` does, and see
#   how much of the way to the oracle it goes.
# - Your own machine: `minispec bench --repeats 1 --out mine.json` (it shows how long it will take), then `read_result(Path("mine.json"))`, from
#   `minispec.bench` and `pathlib`, in place of `measured("bench")`.
#
# **Exercise:** [ex08](../exercises/ex08_measuring.ipynb), acceptance, waiting times, best length and oracle from raw rounds; each task is checked
# at once.
#
# **The way on.** One request at a time is the kindest case. [Notebook 08](08_batches_and_concurrency.ipynb) puts many into a pass.
