# %% [markdown]
# # 11 · Capstone: your own drafter
#
# All drafters of this course answer one question: what will the target write next? There are more answers than the course has shown. Here
# you write one. A gate tells you whether it is sound, and a judge how good it is.
#
# **You will be able to** write a drafter that plugs into the decoding loop; show within a minute that it changes nothing in the target's text; rank
# it against the shipped ones before you touch a clock; combine two drafters.
#
# **You should know** the loop *draft, verify, accept, commit* (notebook 02), what q is (notebook 03), and n-gram lookup (notebook 04). **Time:** 60
# minutes or a weekend, of which two are computing. **Needs:** a CPU.

# %%
import torch

import minispec as ms
from minispec import audit, plots
from minispec.notebook import here, show

torch.set_num_threads(
    min(2, torch.get_num_threads())
)  # two threads at most: the same numbers everywhere
target = ms.load("smollm2-135m", device="cpu", dtype="float32")

# %% [markdown]
# ## The protocol
#
# The loop talks to a drafter in three sentences (`minispec/drafters/base.py`):
#
# ```
# time ->   prefill      round 1                      round 2                      round 3
#
# target    reads the    reads pending token          reads pending token          ...
#           prompt       and draft, in one pass       and draft
#             |            ^         |                  ^         |
#             | first      | draft   | what was         | draft   | what was
#             | token      |         v emitted          |         v emitted
# drafter   start, commit, propose   commit             propose   commit             ...
# ```
#
# - `start(target, cache_rows, prompts, hidden, dice)`: a new generation begins. Forget the last one.
# - `propose(budget)`: return a `TokenTree` with a guess for each row of the batch, of at most `budget[row]` nodes. It may be empty. A list of
#   chains becomes a tree by `ms.TokenTree.chain(chains)`.
# - `commit(tokens, hidden)`: this is what each row **really** emitted: accepted guesses and the target's own token. Only this is text.
#
# Here `prompts` is a list of one-dimensional tensors of ids, `tokens` a list of lists, `budget` a list of whole numbers, one for each row. Most drafters
# need nothing of the rest: `hidden` are states of the target, for heads; `dice` draws, for drafters that sample; `cache_rows` is the room that a cache needs.
#
# Besides, rows of a batch end at different times, and a fourth method, `keep_rows(rows)`, says which of the present rows go on, in which order: after
# `keep_rows([0, 2])` what was row 2 is row 1. It comes before the `commit` of that round, which then speaks of the rows that go on. (`Diary`
# below has none: it is for one request.) And three attributes: `layers` (which hidden states of the target it wants; most want none), `passes` and
# `extra_bytes` (what it costs).
#
# To see a conversation, let us listen to one. `Diary` hands everything on to another drafter, and writes it down.


# %%
class Diary:
    def __init__(self, drafter, words):
        self.drafter, self.words = drafter, words
        self.layers, self.passes, self.extra_bytes = drafter.layers, 0, 0

    def start(self, target, cache_rows, prompts, hidden, dice):
        print(f"start    a prompt of {len(prompts[0])} tokens")
        self.drafter.start(target, cache_rows, prompts, hidden, dice)

    def propose(self, budget):
        tree = self.drafter.propose(budget)
        print(f"propose  at most {budget[0]}: {self.words(tree.tokens[0].tolist())}")
        return tree

    def commit(self, tokens, hidden):
        print(f"commit   {self.words(tokens[0])}")
        self.drafter.commit(tokens, hidden)


# %%
def words(tokens):
    return [target.tokenizer.decode([token]) for token in tokens]


request = "Repeat this twice: one red fox, two red foxes."
listened = ms.generate(target, request, Diary(ms.NGram(num_tokens=4), words), max_new_tokens=14)

# %% [markdown]
# Read it line by line. The first `commit` is the token from prefill. Then `propose` and `commit` take turns. Compare each commit with the proposal above
# it: the guesses that were right, then one token of the target's own. The budget shrinks, because a round must not emit more than is still asked for.
# There is no commit at the end: nothing follows that it could help.
#
# ## A starter that loses
#
# The simplest drafter with a guess: the last token, again.


# %%
class RepeatLast:
    """Guesses that the last token comes again, `num_tokens` times."""

    layers, passes, extra_bytes = (), 0, 0

    def __init__(self, num_tokens=3):
        self.num_tokens = num_tokens

    def start(self, target, cache_rows, prompts, hidden, dice):
        self.texts = [prompt.tolist() for prompt in prompts]

    def propose(self, budget):
        return ms.TokenTree.chain(
            [[text[-1]] * min(self.num_tokens, most) for text, most in zip(self.texts, budget)]
        )

    def commit(self, tokens, hidden):
        for text, new in zip(self.texts, tokens):
            text += new

    def keep_rows(self, rows):
        self.texts = [self.texts[row] for row in rows]


# %%
first = ms.generate(target, request, RepeatLast(), max_new_tokens=24)
assert first.tokens.tolist() == ms.generate(target, request, max_new_tokens=24).tokens.tolist()
show(
    plots.token_tape(first.trace, lambda token: words([token])[0]),
    alt="A tape of tokens, one line a round: three struck-out copies of the last token, "
    "and the target's own token with a thick frame.",
    numbers=f"{len(first.trace.rounds)} rounds for {len(first.tokens) - 1} tokens; "
    f"{first.trace.tokens_per_pass:.2f} tokens a round",
)

# %% [markdown]
# The text is the target's, as always, and not one guess is right. So every round pays for a pass over four tokens and gets one. This is a *sound* drafter,
# and a *bad* one. The two have nothing to do with each other, which is why there are two instruments.
#
# ## The gate: is it sound?
#
# `audit.check_drafter(make, lm)` asks everything that any drafter owes, and yields a verdict for each question. `make(target)` builds a new drafter for a
# target. If the first question fails, the others are not asked; of several that fail, mend the first first: later ones are often its echo. The gate calls `make` for your model and for **toys**: tiny random models of 3 and of 5 tokens, on which a whole law can be computed. So `make` must give
# something that drafts there too.


# %%
def gate(make):
    """All verdicts; True if the drafter may pass."""
    passed = True
    for check in audit.check_drafter(make, target):
        print("ok  " if check.passed else "FAIL", f"{check.name}\n       {check.measured}")
        passed = passed and check.passed
    return passed


assert gate(lambda target: RepeatLast())

# %% [markdown]
# What was asked, in turn:
#
# - **trees and budgets**: every tree well-formed, within its budget, also where the budget is 0;
# - **the last generation is forgotten**: a used drafter drafts what a new one does. The same seed must give the same rounds;
# - **drafts follow from the text**: a script accepts all of some drafts, nothing of others, part of the rest. After each round, another drafter is told
#   the same text *at once*, and must guess the same (one may guess further). A drafter that took its own guesses for text, or whose cache has a hole, guesses
#   otherwise. (A drafter that learns *less* from the text than it could is not seen here, since a draft may be cut short, even to nothing: look at tokens a
#   round for that);
# - **rows of a batch stay apart**: each row drafts as it does alone, while other rows end;
# - **the target's text on a toy**: prompts of one token, few new tokens, the last position of the model, temperatures close to 0;
# - **drawn from the q it reports**, for drafters that sample: are the drafted tokens as frequent as q says?
# - **the target's law on a toy**: texts sampled with the drafter against the exact law. *Power* is the chance to notice a law that is off by that much;
# - **identity**: real requests, alone and in a batch of four, token by token.
#
# Can the gate fail? A check that cannot fail proves nothing. Here is lookup with a common mistake: it believes its own guesses.


# %%
class Believer(ms.NGram):
    def propose(self, budget):
        tree = super().propose(budget)
        guesses = [[token for token in row if token >= 0] for row in tree.tokens.tolist()]
        self.commit(guesses, None)  # "they will be accepted"
        return tree


checks = audit.check_drafter(lambda target: Believer(1, 3, 4), target)
failed = next(check for check in checks if not check.passed)
print(failed.name, "\n ", failed.measured)
assert failed.name == "drafts follow from the text"

# %% [markdown]
# (The tests of the package plant fourteen faults and expect each to be found by the check that is meant for it: `tests/test_audit.py`.) No comparison of
# texts could have found this one: the target's text comes out right, and only the guesses get worse.
#
# ## The judge: is it good?
#
# A drafter is worth what it saves. At temperature 0 the target's text does not depend on the drafts, so we write the texts **once**, and replay any drafter
# against them (notebook 04; `bench.rehearse` does it for drafters that want hidden states too).

# %%
kinds = ("chat", "summarise", "rewrite", "code", "code edit", "reasoning")
requests = [r for r in audit.read_requests() if r["kind"] in kinds and r["id"].endswith("-4")]
prompts = [target.encode(request["messages"]) for request in requests]
texts = [ms.generate(target, prompt, max_new_tokens=40).tokens.tolist() for prompt in prompts]
print(f"{len(texts)} texts, {sum(map(len, texts))} tokens:", ", ".join(r["id"] for r in requests))

# %% [markdown]
# Three numbers decide: **tokens a round** (one more than the accepted guesses), **nodes a round** (each makes the pass wider), and the **drafting cost**. The
# first two are counts, the same on every machine; the third is a time. With the cost curve of notebook 01 they combine to the bound
# *tokens · t(1) / (t(1 + nodes) + draft)*.

# %%
from minispec.bench import SIZES, cost_curve, rehearse
from minispec.theory import interpolated

cost = interpolated(cost_curve(target, SIZES[:12], repeats=3))  # seconds of a pass over n tokens
table = {}


def judge(name, drafter):
    rounds = [
        r
        for prompt, text in zip(prompts, texts)
        for r in rehearse(target, drafter, prompt, text, 40)
    ]
    tokens, n = sum(r.emitted for r in rounds), len(rounds)
    spent = sum(cost(1 + r.nodes) + r.draft_s for r in rounds)
    draft_ms = 1e3 * sum(r.draft_s for r in rounds) / n
    table[name] = (tokens / n, sum(r.nodes for r in rounds) / n, draft_ms, tokens * cost(1) / spent)
    return table[name]


# %%
def ranking():
    print(f"{'drafter':<16}{'tokens a round':>15}{'nodes a round':>15}   drafting, bound")
    for name, (tokens, nodes, draft_ms, bound) in sorted(table.items(), key=lambda row: -row[1][0]):
        clock = here(f"{draft_ms:.1f} ms, {bound:.2f}")
        print(f"{name:<16}{tokens:>15.2f}{nodes:>15.2f}   {clock}")


judge("repeat last", RepeatLast())
judge("n-gram", ms.NGram())
for name in ("draft", "medusa", "eagle"):
    judge(name, ms.load_drafter(name, target))
ranking()
assert table["repeat last"][0] < min(row[0] for name, row in table.items() if name != "repeat last")

# %% [markdown]
# The ranking is by tokens a round, since that is the same everywhere. Look at the other columns too: the n-gram drafter costs nothing where it finds nothing,
# so its few nodes are well spent; a draft model pays several small passes a round. On a machine with much slack nodes are cheap, and the order by bound comes
# close to the order by tokens; on one without, thrift wins. Your drafter enters by `judge("mine", ...)`.
#
# Six requests of 40 tokens choose between sketches. For a claim, take all 48 requests and notebook 09.
#
# ## Three ideas
#
# **1. A library.** N-gram lookup searches the prompt and the text so far. A service has answered many requests before: search their answers too.
#
# ```
# class Library(ms.NGram):
#     __init__(answers):        keep them
#     start(...):               begin each row's table with the n-grams of all answers, then the prompt
# ```
#
# Give it the answers as an *argument*. If `commit` collected them, the second run of a request would draft other rounds than the first, and the gate would
# stop you at "the last generation is forgotten". Order matters: the row's own text must win over the library.
#
# **2. Two drafters.** Lookup knows what stood before; EAGLE knows how this target goes on. Where lookup finds a match, use it; elsewhere ask EAGLE.
#
# ```
# class Either:
#     propose(budget):          lookup first; rows without a match get their budget from the other
#     commit, start, keep_rows: tell both
# ```
#
# Both must hear *every* commit, also in rounds in which the other one drafted. If both can draft, the longer match wins.
#
# **3. A table of bigrams.** Count which token follows which in texts of the target; guess the most frequent follower, then its follower.
#
# ```
# class Bigrams:
#     __init__(texts):          follower[token] = the most frequent one
#     propose(budget):          a chain of followers, as long as they are frequent enough
# ```
#
# You may also count the row's own prompt and commits, as long as each row has its own table and `start` throws them away. A plain loop over rows is fast
# enough.
#
# It may sample from the counts too; then it has to draw with the `dice` that `start` was given, never with torch's own generator, and to report as q what it
# drew from, after temperature, top-k and top-p: `dice.sampling(counts.log())`, a tensor `[rows, vocabulary]`. The gate runs thousands of rows at once
# there, so draw for all of them together, as `minispec/drafters/draft_model.py` does. (In the
# repository, `training/text.npz` has texts: `minispec.train.data.Corpus.load`.)
#
# Choose one, or take your own. Stop reading here, and write it. A good order: make it pass the gate while it drafts something silly, then make it clever, and
# run the gate again.

# %%
# your drafter


# %% [markdown]
# ## A worked solution
#
# Idea 2, carried to the end. The next cell is closed in JupyterLab and on Colab: open it when you have tried, by a click on the three dots or on "Show code".

# %% tags=["folded"]
# @title Either: lookup where it finds a match, another drafter elsewhere


class Either:
    """Drafts by `first` in rows where it has a guess, and by `second` in the others; no q."""

    def __init__(self, first, second):
        self.both = self.first, self.second = first, second
        self.layers = second.layers  # lookup wants none

    @property
    def passes(self):
        return sum(drafter.passes for drafter in self.both)

    @property
    def extra_bytes(self):
        return sum(drafter.extra_bytes for drafter in self.both)

    def start(self, *arguments):
        for drafter in self.both:
            drafter.start(*arguments)

    def propose(self, budget):
        mine = self.first.propose(budget)
        rest = [0 if count else most for count, most in zip(mine.counts, budget)]
        other = self.second.propose(rest)  # rows with a match ask it for nothing
        assert other.q is None
        width = max(mine.tokens.shape[1], other.tokens.shape[1])
        pads = [(0, width - tree.tokens.shape[1]) for tree in (mine, other)]
        tokens, parents = (
            [torch.nn.functional.pad(part, pad, value=-1) for part, pad in zip(parts, pads)]
            for parts in ((mine.tokens, other.tokens), (mine.parents, other.parents))
        )
        found = torch.tensor(mine.counts)[:, None] > 0  # [batch, 1]
        return ms.TokenTree(torch.where(found, *tokens), torch.where(found, *parents))

    def commit(self, tokens, hidden):
        for drafter in self.both:
            drafter.commit(tokens, hidden)

    def keep_rows(self, rows):
        for drafter in self.both:
            drafter.keep_rows(rows)


# %% [markdown]
# Three decisions in it deserve a word.
#
# - **A budget of 0** is how a row says "not you". The protocol has it anyway, so the second drafter needs no new case.
# - **Both hear everything.** EAGLE has to read the tokens that lookup guessed, or its cache would have a hole.
# - **No q.** EAGLE's dynamic tree takes its likeliest tokens, so neither draft is sampled and the rule for fixed children holds. Had EAGLE sampled a chain with
#   its q, lookup's tokens would need a q as well: one-hot, since they are certain.
#
# The gate wants it on toys too. A toy has no trained EAGLE, so `make` gives it a random one: it guesses badly there, and that is no fault.


# %%
def make_either(lm):
    toy = lm.tokenizer is None
    eagle = audit.toy_heads(lm)["eagle dynamic"] if toy else ms.load_drafter("eagle", lm)
    return Either(ms.NGram(), eagle)


assert gate(make_either)

# %%
either = judge("n-gram or eagle", make_either(target))
ranking()
assert either[0] > max(table["n-gram"][0], table["eagle"][0])

# %% [markdown]
# More tokens a round than either part alone: they are good at different requests, and even at different places of one. "Speculative Decoding: Performance or
# Illusion?" (2026) computes what a perfect choice between these two would gain; this is the simplest imperfect one. Whether it is also *faster* here, the last
# column says, at best; `bench.bench(target, {"either": make_either(target)}, requests, max_new_tokens=48)` measures it.
#
# What is left to gain? Lookup is used whenever it has any match, also a poor one. Demand a longer match (`min_ngram=3`) where the other could have drafted, or let the
# other's confidence decide.
#
# ## Summary
#
# - A drafter is three methods, and a fourth for batches. It may guess as it likes, as long as it keeps to its budget, takes only what was committed for text, and reports the q that it
#   really drew from.
# - Sound and good are two questions. The gate answers the first in a minute, and the judge the second, mostly without a clock.
# - The loop protects the text from every drafter. What it cannot protect is acceptance: faults in a drafter's memory show there, and only there.
#
# ## Questions
#
# **1.** Your drafter passes "the target's text" and fails "drafts follow from the text". Are the texts that it helps to write wrong?
#
# <details><summary>Answer</summary>
#
# No. The target decides every token. But the guesses come from a memory that differs from the text, so they are worse than they need be, and what you measure is
# the fault as much as the idea.
#
# </details>
#
# **2.** A drafter learns from the answers that pass through `commit`, over many requests. Output stays the target's. Why does the gate object?
#
# <details><summary>Answer</summary>
#
# Because what it drafts then depends on what was asked before. With a temperature the same seed would give another text, for the number of random numbers that a round
# takes depends on its draft; and a benchmark would measure the order of its requests. Learn between generations, by a method that the caller calls, and the
# experiment says what was known when.
#
# </details>
#
# **3.** Two drafters emit the same tokens a round, 1.6. One has 2 nodes a round and takes 9 ms to draft, the other has 7 nodes and takes none. Which one do you ship?
#
# <details><summary>Answer</summary>
#
# It depends on the cost curve: compare t(3) + 9 ms with t(8). On a machine with much slack t(8) is hardly more than t(3), and the second wins; in a large batch, where
# every node is multiplied by the rows, the first. Measure the curve where it will run.
#
# </details>
#
# ## Change it
#
# - Give `RepeatLast` the last *two* tokens to repeat in turn. What does the gate say about prompts of one token?
# - Let `Believer` keep its mistake in only one round of ten. Does the gate still find it? Then make it a `RepeatLast`: why does
#   the same mistake do no harm there?
# - Write idea 1 or 3, and bring it to the top of the table on one kind of request. Then look what it does on the others.
#
# **The way on.** This was the last notebook. A drafter that passes the gate and helps on requests that you care about is worth a report in the form of
# [notebook 09](09_testing_a_claim.ipynb).
