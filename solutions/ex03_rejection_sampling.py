# %% [markdown]
# # Exercise 03 · Rejection sampling
#
# Five tasks, 100 points. Read notebook [03](../notebooks/03_rejection_sampling.ipynb) first. Here you write its rule in the forms in which
# a server needs it: for batches, for a draft model with a smaller vocabulary, in logarithms, with drafts of different lengths. Then you go
# one step further than the notebook, to several guesses for one place. At the end your own rule runs on the real target.
#
# **How it works.** Replace each `raise NotImplementedError(...)` by your code; the cell below it checks your function, `show` draws what it
# does, `hint("3.1")` helps, `status()` gives the points. Your functions stand on their own: torch and Python, and nothing of minispec. They
# may call each other. Leave your arguments as they are: whoever calls you goes on with them. All numbers are float64: compute in that.
#
# The checks draw no random numbers. They go through all drafts of a small vocabulary, and try your function at uniform numbers close to
# every place where a right rule changes, on both sides, and at exactly 0. So each task says which number is for what: follow it.
#
# **Time:** 110 minutes. **Needs:** a CPU.

# %%
import torch

import minispec as ms
from minispec.grading import check, hint, show, status

torch.set_num_threads(min(2, torch.get_num_threads()))  # two threads at most: the same numbers everywhere


def pick(p, u):
    """The token drawn from p [vocab] by the uniform number u, as in the notebook. Use it where a task says so."""
    cumulative = p.cumsum(0)
    return int((cumulative <= u * cumulative[-1]).sum())


# %% [markdown]
# ## 3.1 · What is left over, row by row
#
# 15 points · difficulty 2 of 5 · 10 minutes
#
# The residual distribution, max(0, p − q) over its sum, for a whole batch, and for a draft model that knows fewer ids than the target (as
# many real pairs do: the ids are the same as far as they go).
#
# `p` [batch, vocab] and `q` [batch, fewer], where fewer ≤ vocab. An id that q does not have has q = 0. Return the residual distribution of
# each row, [batch, vocab]. In a row where nothing is left over, it is p.


# %% task="3.1"
def residual(p, q):
    """Return the residual distribution of each row, [batch, vocab]."""
    ### BEGIN SOLUTION
    left = p.clone()
    left[:, : q.shape[1]] -= q
    left = left.clamp(min=0)
    mass = left.sum(1, keepdim=True)
    return torch.where(mass > 0, left / mass, p)
    ### END SOLUTION


# %% check="3.1"
passed = check("3.1", residual)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="3.1"
show("3.1", residual)

# %% [markdown]
# ## 3.2 · The test, in logarithms
#
# 10 points · difficulty 2 of 5 · 10 minutes
#
# Models give logarithms of probabilities, and these reach far below what a probability can hold: in float64, exp(−800) is 0. So the test is
# best done without leaving the logarithms.
#
# `log_p`, `log_q` and `u`, each [batch]: the logarithms of p(x) and q(x) for the drafted token, and a uniform number in [0, 1). Return
# whether each guess is kept, [batch], of booleans. A token with p = 0 (its logarithm is minus infinity) is never kept, not even at u = 0; one
# with p > 0 is kept at u = 0.


# %% task="3.2"
def keep(log_p, log_q, u):
    """Return whether each guess is kept, [batch] of booleans."""
    ### BEGIN SOLUTION
    return u.log() < log_p - log_q
    ### END SOLUTION


# %% check="3.2"
passed = check("3.2", keep)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="3.2"
show("3.2", keep)

# %% [markdown]
# ## 3.3 · An honest q
#
# 15 points · difficulty 2 of 5 · 15 minutes
#
# The proof asks one thing of q: that the guess was drawn from it. A drafter works like this: with `temperature` 0 it takes the likeliest
# token, whatever `top_k` is. Else it keeps the `top_k` likeliest tokens (all, if `top_k` is 0 or more than there are), divides the logits by
# the temperature, and draws from their softmax.
#
# `logits` [vocab], all different. Return the distribution that its guess really comes from, [vocab].


# %% task="3.3"
def honest_q(logits, temperature, top_k):
    """Return the distribution that the drafter's guess comes from, [vocab]."""
    ### BEGIN SOLUTION
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).to(logits.dtype)
    if 0 < top_k < len(logits):
        smallest = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < smallest, float("-inf"))
    return (logits / temperature).softmax(0)
    ### END SOLUTION


# %% check="3.3"
passed = check("3.3", honest_q)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="3.3"
show("3.3", honest_q)

# %% [markdown]
# ## 3.4 · The rule for a batch of drafts
#
# 35 points · difficulty 4 of 5 · 40 minutes
#
# Now the whole rule, for a batch whose rows have drafts of different lengths.
#
# - `guesses` [batch, n]: a draft a row, padded with -1 on the right. A row may have no guess at all.
# - `p` [batch, n + 1, vocab]: `p[:, i]` is the target's distribution in the place of guess i. In a row with k guesses, `p[row, 0]` to
#   `p[row, k]` have a meaning (the last is what the target says after all guesses); what follows is padding.
# - `q` [batch, n, vocab]: what the guesses were drawn from; in the place of padding it means nothing (it may even be NaN).
# - `u` [batch, n + 1]: uniform numbers. Guess i is tested with `u[:, i + 1]`: kept if u · q < p. The last token of a row is drawn by `pick`
#   with `u[:, 0]`.
#
# Return two things: how many guesses each row keeps, and the token that each row emits after them, [batch] each (lists will do). Loops are
# fine. `residual` of task 3.1 works on batches; for one row, give it `p[None]` and take `[0]` of what it returns.


# %% task="3.4"
def verify_chain(guesses, p, q, u):
    """Return how many guesses each row keeps, and the token that it emits after them."""
    ### BEGIN SOLUTION
    counts, tokens = [], []
    for row, draft in enumerate(guesses.tolist()):
        draft = [x for x in draft if x >= 0]
        n = 0
        while n < len(draft) and u[row, n + 1] * q[row, n, draft[n]] < p[row, n, draft[n]]:
            n += 1
        law = p[row, n]
        if n < len(draft):
            law = residual(law[None], q[row, n][None])[0]
        counts.append(n)
        tokens.append(pick(law, u[row, 0]))
    return counts, tokens
    ### END SOLUTION


# %% check="3.4"
passed = check("3.4", verify_chain)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="3.4"
show("3.4", verify_chain)

# %% [markdown]
# ## 3.5 · A second chance: siblings
#
# 25 points · difficulty 5 of 5 · 35 minutes
#
# Why only one guess for a place? Let the drafter draw several different tokens from q, one after another, each time **without** those that it
# has drawn already (q of the others is then divided by what is left). Try them in that order. The token that comes out must still follow p.
#
# `p` and `q` [vocab]; `siblings`, a list of different ids, one or more, in the order in which they were drawn; `u` [siblings + 1]: sibling i is tested with
# `u[i + 1]`, and if none is kept, a token is drawn by `pick` with `u[0]`.
#
# Return `(which, token)`: the number of the sibling that was kept and its id, or -1 and the token that was drawn. (This rule lets a whole
# *tree* of guesses be checked in one pass.)


# %% task="3.5"
def choose_sibling(p, q, siblings, u):
    """Return (which, token): the sibling that was kept, or -1 and the token that was drawn."""
    ### BEGIN SOLUTION
    q = q.clone()
    for i, x in enumerate(siblings):
        if u[i + 1] * q[x] < p[x]:
            return i, x
        p = residual(p[None], q[None])[0]
        q[x] = 0
        q = q / q.sum()
    return -1, pick(p, u[0])
    ### END SOLUTION


# %% check="3.5"
passed = check("3.5", choose_sibling)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="3.5"
show("3.5", choose_sibling)

# %% [markdown]
# ## Points

# %% status="3"
status()

# %% [markdown]
# ## Your own rule, on the real target
#
# `ms.generate` asks a *rule* which guesses stay. Below, yours takes its place: `verify_chain` decides, with the numbers that the package rolls.
# If it uses them as the package does, even the text is the same.
#
# Where it says False, a task above is not right yet: `status()` says which, and its `check` shows the smallest case.

# %% final="3"
from minispec.decode import Decoder
from minispec.verify import Verdict


class Mine(Decoder):
    def verdict(self, logits, tree):
        if tree.q is None:  # the first token, and rounds without a draft
            return super().verdict(logits, tree)
        u = self.dice.roll([n + 1 for n in tree.counts])
        counts, tokens = verify_chain(tree.tokens, self.sampling(logits), tree.q, u)
        places = torch.arange(1, tree.tokens.shape[1] + 1)
        return Verdict(torch.where(places <= torch.as_tensor(counts)[:, None], places, -1), torch.as_tensor(tokens))


# %% final="3"
target = ms.load("smollm2-135m", device="cpu", dtype="float32")
drafter = ms.load_drafter("draft", target, num_tokens=3, min_confidence=0.0)
options = {"max_new_tokens": 40, "sampling": ms.Sampling(temperature=0.8), "seed": 1}
mine = Mine(target, ["Write one sentence about the sea."], drafter, **options)
rounds = [round for events in mine.run() for round in events.values()]
tokens = mine.requests[0].tokens
theirs = ms.generate(target, "Write one sentence about the sea.", drafter=drafter, **options)
print(target.tokenizer.decode(tokens))
print(f"{len(tokens)} tokens in {len(rounds)} passes; the package writes the same: {tokens == theirs.tokens.tolist()}")
