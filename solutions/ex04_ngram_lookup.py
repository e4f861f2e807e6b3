# %% [markdown]
# # Exercise 04 · N-gram lookup
#
# Five tasks, 100 points. Read notebook [04](../notebooks/04_ngram_lookup.ipynb) first. There a text was searched anew in every round, alone
# and without looking where it may end. Here you write what a server needs: guesses that can be used to their last token, a table that
# grows with the text, drafts for a batch whose rows have ended, and a reason for the length of a draft. At the end your functions are a
# drafter, on the real target.
#
# **How it works.** Replace each `raise NotImplementedError(...)` by your code. The cell below it checks your function at once: it says
# what is wrong, which mistake it looks like, and shows the smallest case that fails. `show` draws what your function does, also while
# it is wrong. `hint("4.1")` gives a step of help; call it again for the next one. `status()` at the end gives the points.
#
# Your functions stand on their own: torch and Python, and nothing of minispec. They may call each other. Leave your arguments as they
# are (a table, of course, takes what you put into it): whoever calls you goes on with them. A text is a list of ids, and its places are
# counted from 0.
#
# **Time:** 110 minutes. **Needs:** a CPU.

# %%
import torch

import minispec as ms
from minispec.grading import check, hint, show, status

torch.set_num_threads(min(2, torch.get_num_threads()))  # two threads at most: the same numbers everywhere

# %% [markdown]
# ## 4.1 · Where does it go on?
#
# 15 points · difficulty 2 of 5 · 10 minutes
#
# The notebook copied tokens at once. Here we first want the **place**: the last `size` tokens of `text` are the *ending*; find where the
# same tokens stood before, in the same order, and say where it went on after them. The match may overlap the ending, but it is not the
# ending itself: something must follow it in the text.
#
# `text` is a list of one id or more, `size` is 1 or more (perhaps more than the text has), `which` is `"latest"` or `"earliest"`: which match
# to take if there are several. Return the place of the first token behind the match, a whole number, or None if there is no match.
#
# For example, in `[5, 6, 1, 5, 6, 2, 5, 6]` with size 2, the ending (5, 6) stood at places 0 and 3; it went on at place 2 (earliest) and
# at place 5 (latest).


# %% task="4.1"
def find_match(text, size, which):
    """Return the place at which the text went on after the match, or None."""
    ### BEGIN SOLUTION
    found = [at + size for at in range(len(text) - size) if text[at : at + size] == text[-size:]]
    if not found:
        return None
    return max(found) if which == "latest" else min(found)
    ### END SOLUTION


# %% check="4.1"
passed = check("4.1", find_match)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="4.1"
show("4.1", find_match)

# %% [markdown]
# ## 4.2 · A guess that can be used
#
# 15 points · difficulty 2 of 5 · 15 minutes
#
# A guess that cannot be emitted still makes the pass wider. So draft nothing of that kind.
#
# - `text`: one id or more. `sizes`: the n-gram sizes to try, different whole numbers from 1, **in any order**. The longest that has a match
#   counts, and of its matches the latest (4.1).
# - `most` ≥ 1: no draft is longer.
# - `left` ≥ 1: how many tokens may still be emitted. The target adds one of its own to whatever it accepts, so a draft has `left - 1` tokens
#   at most.
# - `eos`: the id of the end-of-text token or None. Nothing behind it can be emitted. It may be guessed itself: a draft may end with it.
#
# Return the guesses, a list: what followed the match in the text, as much of it as there is and as may be used. It ends where the text ends.
# No match, or no room for a guess: an empty list. (If the longest match is cut down to little or nothing, so be it: no shorter one is tried.)


# %% task="4.2"
def guess_next(text, sizes, most, left, eos):
    """Return the guesses after `text`, a list of ids, perhaps empty."""
    ### BEGIN SOLUTION
    places = [find_match(text, size, "latest") for size in sorted(sizes, reverse=True)]
    place = next((place for place in places if place is not None), len(text))
    copy = text[place : place + min(most, left - 1)]
    return copy[: copy.index(eos) + 1] if eos in copy else copy
    ### END SOLUTION


# %% check="4.2"
passed = check("4.2", guess_next)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="4.2"
show("4.2", guess_next)

# %% [markdown]
# ## 4.3 · A table that grows with the text
#
# 25 points · difficulty 4 of 5 · 30 minutes
#
# To search the text takes longer the longer it is. A table from n-grams to places answers at once, if it is kept up to date: after each
# round a few new tokens come, and only what they change is written.
#
# `table.put(ngram, place)` notes a place for an n-gram (a list of ids), over what was noted for it before; `table.get(ngram)` gives the place
# or None. Before the call, `table` holds every n-gram of `text` (of each size in `sizes`, different whole numbers from 1) **that is followed
# by a token**, with the place of that token; where an n-gram stands more than once, the latest such place. Bring it to the same state for
# `text + new`: `text` is a list of ids that may be empty, and `new` holds the tokens that have come, perhaps none.
#
# Write nothing that is in the table already: each place at which an n-gram has a continuation now and had none before may cost one `put`, and
# what was there before costs none. Nothing is returned.
#
# For example, with sizes [1] after text [5, 6] the table holds (5) → 1. The n-gram (6) is not in it, for nothing follows yet. With new [5, 7]
# it becomes (5) → 3, (6) → 2.


# %% task="4.3"
def extend_table(table, text, new, sizes):
    """Put into the table the n-grams that have got a continuation by the new tokens."""
    ### BEGIN SOLUTION
    whole = [*text, *new]
    for end in range(len(text), len(whole)):  # the token at this place is new: it follows what ends before it
        for size in sizes:
            if 1 <= size <= end:
                table.put(whole[end - size : end], end)
    ### END SOLUTION


# %% check="4.3"
passed = check("4.3", extend_table)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="4.3"
show("4.3", extend_table)

# %% [markdown]
# ## 4.4 · Drafts for a batch whose rows have ended
#
# 25 points · difficulty 4 of 5 · 30 minutes
#
# A server started with several requests, and some have ended. The rows of the batch are now the requests that go on: row i is request number
# `active[i]`.
#
# - `tables`, `texts`, `left`: for **every request**, by its number, a table, a list of one id or more, and how many tokens may still be
#   emitted (for requests that have ended, what they hold means nothing). A table is as in 4.3, and up to date: `table.get(ngram)` gives the
#   place of the continuation or None. Whether it is that of the latest match is the table's business: trust it.
# - `active`: the numbers of the requests that go on, one or more, in any order; their `left` is 1 or more.
# - `most`, `sizes` (in any order), `eos`: as in 4.2, the same for all.
#
# Each row's draft follows the rules of 4.2, with the table in place of the search: ask it about the longest ending that the text has first,
# and at most once for each size.
#
# Return [rows, width], lists or a tensor of whole numbers: the drafts in the order of `active`, padded with -1 on the right; the width is the
# length of the longest of these drafts. If none has a guess, the width is 0: an empty list for each row.


# %% task="4.4"
def draft_batch(tables, texts, active, left, most, sizes, eos):
    """Return the drafts of the active requests, [rows, width], padded with -1."""
    ### BEGIN SOLUTION
    drafts = []
    for request in active:
        text, draft = texts[request], []
        for size in sorted(sizes, reverse=True):
            place = tables[request].get(text[-size:]) if size <= len(text) else None
            if place is not None:
                draft = text[place : place + min(most, left[request] - 1)]
                break
        drafts.append(draft[: draft.index(eos) + 1] if eos in draft else draft)
    width = max(map(len, drafts))
    return [[*draft, *[-1] * (width - len(draft))] for draft in drafts]
    ### END SOLUTION


# %% check="4.4"
passed = check("4.4", draft_batch)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="4.4"
show("4.4", draft_batch)

# %% [markdown]
# ## 4.5 · How long should a draft be?
#
# 20 points · difficulty 3 of 5 · 25 minutes
#
# You have run some requests with long drafts, and measured the cost curve. Which length would have been best? Take every round as it was, but
# with its draft cut to at most n tokens: it accepts no more than n then, and its pass is narrower. (This is an estimate. What was cut off would be
# drafted again in the next round.)
#
# - `rounds`: a list of one round or more, each `[drafted, accepted]`, how many tokens; drafted may be 0. Each round emitted one token more
#   than it accepted.
# - `cost`: `cost[k]` is the time of a pass over k tokens (`cost[0]` is not used). A round's pass reads the pending token and the draft. The list
#   reaches as far as any of the rounds needs.
#
# The **gain** of a length n is how many times as fast the rounds are as plain decoding: the time of as many plain passes as tokens are emitted,
# over the time of the rounds, all rounds together. n = 0 is plain decoding, with gain 1.
#
# Return `(n, gain)`: of all n from 0 to the longest draft in `rounds`, the one with the largest gain, the shortest if several gain the same, and
# that gain.


# %% task="4.5"
def best_length(rounds, cost):
    """Return (n, gain): the most tokens that a draft should have, and the gain then."""
    ### BEGIN SOLUTION
    best = (0, 1.0)
    for n in range(1, max(drafted for drafted, _ in rounds) + 1):
        emitted = sum(min(accepted, n) + 1 for _, accepted in rounds)
        gain = emitted * cost[1] / sum(cost[min(drafted, n) + 1] for drafted, _ in rounds)
        if gain > best[1]:
            best = (n, gain)
    return best
    ### END SOLUTION


# %% check="4.5"
passed = check("4.5", best_length)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="4.5"
show("4.5", best_length)

# %% [markdown]
# ## Points

# %% status="4"
status()

# %% [markdown]
# ## Your own drafter, on the real target
#
# The package asks a drafter for four things. Yours answers them with `extend_table` and `draft_batch`; the rest is keeping count of who is who.
#
# Where a line says False, a task above is not right yet: `status()` says which, and its `check` shows the smallest case.


# %% final="4"
class Table:
    def __init__(self):
        self.places = {}

    def get(self, ngram):
        return self.places.get(tuple(ngram))

    def put(self, ngram, place):
        self.places[tuple(ngram)] = place


class Mine:
    """A drafter for `ms.generate_batch`: n-gram lookup."""

    layers, passes, extra_bytes = (), 0, 0  # it wants no hidden states, makes no passes, and weighs nothing to speak of

    def __init__(self, sizes, most, eos):
        self.sizes, self.most, self.eos = sizes, most, eos

    def start(self, target, cache_rows, prompts, hidden, dice):
        self.tables, self.texts = [Table() for _ in prompts], [[] for _ in prompts]
        self.active = list(range(len(prompts)))
        self.commit([prompt.tolist() for prompt in prompts], None)

    def propose(self, budget):
        left = [0] * len(self.texts)
        for request, most in zip(self.active, budget):
            left[request] = most + 1  # the budget is for guesses alone
        drafts = draft_batch(self.tables, self.texts, self.active, left, self.most, self.sizes, self.eos)
        return ms.TokenTree.chain([[token for token in draft if token >= 0] for draft in drafts])

    def commit(self, tokens, hidden):
        for request, new in zip(self.active, tokens):
            extend_table(self.tables[request], self.texts[request], new, self.sizes)
            self.texts[request] += new

    def keep_rows(self, rows):
        self.active = [self.active[row] for row in rows]


# %% final="4"
target = ms.load("smollm2-135m", device="cpu", dtype="float32")
poem = "Roses are red, violets are blue, sugar is sweet, and so are you."
prompts = [f"Repeat this text word for word: {poem} {poem}", "What is 2 + 2?"]  # the first ends before the second
mine = ms.generate_batch(target, prompts, drafter=Mine([2, 3, 4], 8, min(target.eos_ids)), max_new_tokens=60)
theirs = ms.generate_batch(target, prompts, drafter=ms.NGram(min_ngram=2, max_ngram=4, num_tokens=8), max_new_tokens=60)
plain = ms.generate_batch(target, prompts, max_new_tokens=60)
for a, b, c in zip(mine, theirs, plain):
    print(a.text)
    rounds = [[round.accepted for round in run.trace.rounds] for run in (a, b)]
    print(f"{len(a.tokens)} tokens in {len(rounds[0])} rounds; the same as plain: {torch.equal(a.tokens, c.tokens)}")
    print("the package accepts the same, round by round:", rounds[0] == rounds[1])
