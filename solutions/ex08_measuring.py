# %% [markdown]
# # Exercise 08 · Measuring
#
# Six tasks, 100 points. Read notebooks [01](../notebooks/01_autoregressive_decoding.ipynb) and
# [02](../notebooks/02_greedy_speculative_decoding.ipynb) first. "Twice as fast, with 80 % acceptance": which 80 %, of what, and how sure is the
# "twice"? Here you compute from a trace what such sentences mean, what speculation can gain at best, and what a row of measured speedups
# allows to claim. At the end your functions read rounds of the real target.
#
# **How it works.** Replace each `raise NotImplementedError(...)` by your code; the cell below it checks your function, `show` draws what it
# does, `hint("8.1")` helps, `status()` gives the points. Your functions stand on their own: torch and Python, and nothing of minispec. They
# may call each other. Leave your arguments as they are: whoever calls you goes on with them. Numbers are compared to one millionth.
#
# **A round** is written as three numbers, `(drafted, accepted, emitted)`: how many tokens were drafted, how many of them the target accepted (from
# the left: the first `accepted` ones), and how many the round emitted. Emitted is accepted + 1, for the target adds a token of its own, except
# where the text ended inside the draft. There it is accepted, and drafted is cut to the same number: what lay behind the end does not count.
#
# **Time:** 105 minutes. **Needs:** a CPU.

# %%
import math
import statistics

import torch

import minispec as ms
from minispec.grading import check, hint, show, status

torch.set_num_threads(min(2, torch.get_num_threads()))  # two threads at most: the same numbers everywhere

# %% [markdown]
# ## 8.1 · Acceptance, place by place
#
# 15 points · difficulty 2 of 5 · 15 minutes
#
# How good is a drafter at its first guess, at its second, at its third? A guess is put to the test only if all before it were accepted: what stands
# behind a rejected one says nothing, neither good nor bad. And a guess that was never drafted, because the draft was short, was not tested either.
#
# `rounds` is a list of one round or more, each `(drafted, accepted, emitted)`. Return a list: for the first place, the second, and so on, the share
# of the guesses tested there that were accepted. It ends with the last place that any round tested, so it is empty if nothing was drafted.
#
# For example, `[(3, 1, 2), (1, 1, 2), (2, 0, 1)]` gives 2/3 and 0: three first guesses were tested, and one second.


# %% task="8.1"
def acceptance_by_position(rounds):
    """Return the share of the tested guesses that were accepted, place by place, a list."""
    ### BEGIN SOLUTION
    tested = [min(drafted, accepted + 1) for drafted, accepted, _ in rounds]
    rates = []
    for i in range(max(tested)):
        passed = sum(accepted > i for _, accepted, _ in rounds)
        rates.append(passed / sum(n > i for n in tested))
    return rates
    ### END SOLUTION


# %% check="8.1"
passed = check("8.1", acceptance_by_position)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="8.1"
show("8.1", acceptance_by_position)

# %% [markdown]
# ## 8.2 · Four numbers called acceptance
#
# 15 points · difficulty 1 of 5 · 10 minutes
#
# Papers and servers print "acceptance", and mean four different things. From the same `rounds` (one or more) return all four, in this order:
#
# 1. **share**: of all tokens that were drafted, the share that was accepted; those behind a rejected guess count as drafted. 0 if nothing was drafted.
# 2. **accepted a round**: the mean number of accepted tokens over all rounds, without the target's own token.
# 3. **emitted a round**: the mean number of emitted tokens over all rounds, the target's own included (often called *acceptance length*; the course
#    says *tokens per pass*).
# 4. **first guess**: of the rounds that drafted anything, the share that accepted its first guess. 0 if there is no such round.


# %% task="8.2"
def four_acceptances(rounds):
    """Return share, accepted a round, emitted a round, rate of the first guess."""
    ### BEGIN SOLUTION
    drafted = sum(n for n, _, _ in rounds)
    accepted = sum(n for _, n, _ in rounds)
    emitted = sum(n for _, _, n in rounds)
    firsts = [accepted > 0 for drafted, accepted, _ in rounds if drafted > 0]
    share = accepted / drafted if drafted else 0.0
    return share, accepted / len(rounds), emitted / len(rounds), sum(firsts) / max(1, len(firsts))
    ### END SOLUTION


# %% check="8.2"
passed = check("8.2", four_acceptances)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="8.2"
show("8.2", four_acceptances)

# %% [markdown]
# ## 8.3 · What a reader waits for
#
# 10 points · difficulty 1 of 5 · 10 minutes
#
# A reader waits twice: for the first token, while the prompt is read, and then for each token more. Speculation shortens only the second wait, so the
# two must not be mixed.
#
# `passes` is a list of passes of the target, in order, each `(moment, tokens)`: seconds from the sending of the request to the end of the pass, and how
# many tokens it emitted. The first pass reads the prompt and emits one token; each of the others is a round. Return three numbers:
#
# 1. the time to the first token, in seconds;
# 2. the time per output token after it: the seconds from the first token to the last, divided by the tokens that came after the first; 0 if there
#    is no round;
# 3. the tokens per pass: the mean number of tokens that a round emitted, the first pass left aside; 0 if there is no round.


# %% task="8.3"
def reading_times(passes):
    """Return time to first token, time per output token after it, tokens per pass."""
    ### BEGIN SOLUTION
    first, last, rounds = passes[0][0], passes[-1][0], len(passes) - 1
    if not rounds:
        return first, 0.0, 0.0
    tokens = sum(n for _, n in passes[1:])
    return first, (last - first) / tokens, tokens / rounds
    ### END SOLUTION


# %% check="8.3"
passed = check("8.3", reading_times)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="8.3"
show("8.3", reading_times)

# %% [markdown]
# ## 8.4 · The best length, and the oracle
#
# 25 points · difficulty 4 of 5 · 30 minutes
#
# From acceptance and cost follows how long a draft should be, before anything is run.
#
# - `rates`: acceptance by position, as in 8.1: `rates[0]` for the first guess, `rates[1]` for the second if the first was accepted, and so on.
#   Drafts may have 0 to `len(rates)` tokens. It may be empty.
# - `cost`: `cost[n]` is the time of a target pass over n tokens, from n = 1 to `len(rates) + 1`; `cost[0]` means nothing. A wider pass may be the cheaper one.
# - `draft_s`: the time to draft one token.
#
# A round with n guesses reads the pending token and the guesses, drafts n tokens, and emits what is accepted and one token more. Its **speedup** is
# its mean tokens by its time, over those of plain decoding: 1 token in `cost[1]`. With n = 0 it is 1.
#
# An **oracle** knows in every round how many of `len(rates)` guesses would be accepted, and drafts exactly so many. It does not guess better; it only
# wastes nothing. Its speedup is its mean tokens a round by its mean time a round, over those of plain decoding.
#
# Return three numbers: the length with the highest speedup (the shortest, of equal ones), that speedup, and the oracle's.


# %% task="8.4"
def length_and_oracle(rates, cost, draft_s):
    """Return the best draft length, its speedup, and the speedup of an oracle."""
    ### BEGIN SOLUTION
    reached = [math.prod(rates[:n]) for n in range(len(rates) + 1)]  # the chance that the first n are all accepted
    time = [cost[1 + n] + n * draft_s for n in range(len(rates) + 1)]
    gains = [sum(reached[: n + 1]) * cost[1] / time[n] for n in range(len(rates) + 1)]
    exactly = [a - b for a, b in zip(reached, [*reached[1:], 0.0])]  # the chance of n, and no more
    oracle = sum(reached) * cost[1] / sum(chance * t for chance, t in zip(exactly, time))
    return gains.index(max(gains)), max(gains), oracle
    ### END SOLUTION


# %% check="8.4"
passed = check("8.4", length_and_oracle)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="8.4"
show("8.4", length_and_oracle)

# %% [markdown]
# ## 8.5 · A ratio that survives the machine
#
# 15 points · difficulty 2 of 5 · 15 minutes
#
# A machine is never the same for long: it gets warm, others use it, something happens in the background. So the baseline and the method that is to be
# judged take turns, and every run of the one has a neighbour in time of the other.
#
# `base` and `mine` are lists with a list for each request: `base[i][j]` and `mine[i][j]` are the seconds that the baseline and the method took for request
# i in repeat j, one right after the other. All are above 0; there is at least one request, and every request has as many repeats, one or more.
#
# The speedup of a **pair** of neighbours is the baseline's time by the method's. The speedup of a **request** is the median over its pairs. Return three
# numbers: the median of the requests' speedups, the smallest of them, and the largest. (The median of an even number of values is the mean of the
# two in the middle.)


# %% task="8.5"
def paired_speedup(base, mine):
    """Return the median, the smallest and the largest of the requests' speedups."""
    ### BEGIN SOLUTION
    speedups = [statistics.median(a / b for a, b in zip(*pairs)) for pairs in zip(base, mine)]
    return statistics.median(speedups), min(speedups), max(speedups)
    ### END SOLUTION


# %% check="8.5"
passed = check("8.5", paired_speedup)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="8.5"
show("8.5", paired_speedup)

# %% [markdown]
# ## 8.6 · A verdict on a claim
#
# 20 points · difficulty 4 of 5 · 25 minutes
#
# "At least 1.3 times as fast, for the middle request." You have speedups of n requests, one each. They are a sample; the median of all requests that there
# might be is not known, but it can be enclosed, without assuming anything about how speedups are spread. The k-th smallest and the k-th largest of n values
# enclose it with a probability of at least
#
# $$1 - 2 \cdot \frac{\binom{n}{0} + \binom{n}{1} + \dots + \binom{n}{k-1}}{2^n}$$
#
# (each value lies below the median with probability 1/2: this counts how often fewer than k of n do). The **interval** is that of the largest k, from 1
# on, for which this is at least 0.95. For few values there is none.
#
# `ratios` is a list of speedups, one to a thousand, in any order; `claim` is a number: "the median is at least `claim`". Return `(low, high, verdict)`: the two
# ends of the interval, and one of three strings:
#
# - `"supported"`, if even the lower end is at least the claim;
# - `"not supported"`, if even the upper end is below the claim;
# - `"cannot tell"` otherwise. If there is no interval, return `(None, None, "cannot tell")`.


# %% task="8.6"
def claim_verdict(ratios, claim):
    """Return the ends of the 95 % interval of the median, and the verdict on the claim."""
    ### BEGIN SOLUTION
    n, k = len(ratios), 0
    while 1 - 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n >= 0.95:
        k += 1
    if k == 0:
        return None, None, "cannot tell"
    ordered = sorted(ratios)
    low, high = ordered[k - 1], ordered[-k]
    if low >= claim:
        return low, high, "supported"
    return low, high, "not supported" if high < claim else "cannot tell"
    ### END SOLUTION


# %% check="8.6"
passed = check("8.6", claim_verdict)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="8.6"
show("8.6", claim_verdict)

# %% [markdown]
# ## Points

# %% status="8"
status()

# %% [markdown]
# ## Your own numbers, of the real target
#
# Rounds of the real target with the draft model that ships with the course. (It stops where it is unsure, so its rates are those of the guesses that
# it dared to make.) What a pass and a drafted token cost, in milliseconds, was measured on two cores of a Xeon server in bfloat16; and so were the
# speedups of whole responses, for 24 requests, each run three times. They come with the package: `measured("bench")`, read in `results/README.md`.
# So nothing that is printed below depends on the clock of your machine. What does your own verdict say?

# %% final="8"
from minispec import theory
from minispec.bench import measured
from minispec.report import Bounds, Times

target = ms.load("smollm2-135m", device="cpu", dtype="float32")
drafter = ms.load_drafter("draft", target, num_tokens=4)
question = "Write a Python function that returns the sum of a list."
trace = ms.generate(target, question, drafter=drafter, max_new_tokens=60).trace
rounds = [(len(r.drafted), len(r.accepted), len(r.emitted)) for r in trace.rounds]
passes = [(trace.prefill_s, 1)]
for r in trace.rounds:
    passes.append((passes[-1][0] + r.seconds, len(r.emitted)))

result = measured("bench")
bounds, plain = Bounds(result), Times(result, "autoregressive")
cost, draft_ms = [0.0, *(1e3 * bounds.cost(n) for n in range(1, 6))], 1e3 * bounds.level_s("draft")


def speedups(name):
    """Of each request, over plain decoding: whole responses, the median repeat."""
    mine = Times(result, name)
    return [mine.rate([group]) / plain.rate([group]) for group in mine.groups]


# %% final="8"
def equal(mine, theirs):
    """To rounding: sums may be taken in another order."""
    return len(mine) == len(theirs) and all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(mine, theirs))


rates = acceptance_by_position(rounds)
print(f"rounds: {rounds}")
print(f"acceptance by position: {', '.join(f'{rate:.3f}' for rate in rates)}")
print(f"the same as the package's: {equal(rates, trace.acceptance_by_position)}")
share, kept, written, first = four_acceptances(rounds)
print(f"share {share:.3f}, accepted a round {kept:.3f}, emitted a round {written:.3f}, first guess {first:.3f}")
same = equal(reading_times(passes), (trace.ttft_s, trace.tpot_s, trace.tokens_per_pass))
print(f"your times and tokens per pass are the package's: {same}")

n, speedup, oracle = length_and_oracle(rates, cost, draft_ms)
same = equal((n, speedup), theory.best_draft_length(rates, cost.__getitem__, draft_ms))
print(f"best length {n}, speedup {speedup:.3f} (the package says so too: {same}), oracle {oracle:.3f}")
for name, claim in (("ngram", 1.1), ("ngram", 2.0), ("eagle", 1.0), ("draft", 1.0)):
    low, high, verdict = claim_verdict(speedups(name), claim)
    print(f"{name}, at least {claim} times as fast: {verdict} ({low:.2f} to {high:.2f})")
