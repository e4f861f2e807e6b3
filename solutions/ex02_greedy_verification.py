# %% [markdown]
# # Exercise 02 · Greedy verification
#
# Five tasks, 100 points. Read notebook [02](../notebooks/02_greedy_speculative_decoding.ipynb) first. Here you write the parts of
# its loop again, in harder forms: for a batch, to the last corner, with a drafter that trusts nobody. At the end your own loop runs
# on the real target.
#
# **How it works.** Replace each `raise NotImplementedError(...)` by your code. The cell below it checks your function at once: it says
# what is wrong, which mistake it looks like, and shows the smallest case that fails. `show` draws what your function does, also while
# it is wrong. `hint("2.1")` gives a step of help; call it again for the next one. `status()` at the end gives the points.
#
# Your functions stand on their own: torch and Python, and nothing of minispec. They may call each other. Leave your arguments as they
# are: whoever calls you goes on with them.
#
# **Time:** 90 minutes. **Needs:** a CPU.

# %%
import torch

import minispec as ms
from minispec.grading import check, hint, show, status

torch.set_num_threads(min(2, torch.get_num_threads()))  # two threads at most: the same numbers everywhere

# %% [markdown]
# ## 2.1 · How many guesses stay, for a whole batch
#
# 15 points · difficulty 1 of 5 · 10 minutes
#
# The notebook counted accepted guesses in a loop, for one text. A server has many rows at once, and no time for loops.
#
# `guesses` [batch, n] holds a draft a row; drafts that are shorter are padded with -1 on the right. `answers` [batch, n + 1] holds the
# target's likeliest tokens: `answers[:, i]` is what the target writes in the place of `guesses[:, i]`. Return how many guesses each row
# accepts, [batch]. One line of torch will do.
#
# For example, guesses `[[5, 7], [5, 7], [5, -1]]` and answers `[[5, 7, 1], [6, 7, 1], [5, 0, 1]]` give `[2, 0, 1]`.


# %% task="2.1"
def accepted_count(guesses, answers):
    """Return how many guesses each row accepts, [batch]."""
    ### BEGIN SOLUTION
    agree = guesses == answers[:, :-1]  # [batch, n]; the padding agrees with nothing, for no token is -1
    return agree.long().cumprod(1).sum(1)
    ### END SOLUTION


# %% check="2.1"
passed = check("2.1", accepted_count)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="2.1"
show("2.1", accepted_count)

# %% [markdown]
# ## 2.2 · What a round emits
#
# 15 points · difficulty 2 of 5 · 10 minutes
#
# One row again, as lists. A round emits the accepted guesses and then one token of the target's own. But the text may end inside: at
# the end-of-text token, which is emitted and after which nothing follows; or because only `budget` more tokens (1 or more) may be written.
#
# `guesses` are n ids, `answers` n + 1 ids as in 2.1; `eos` is the id of the end-of-text token, or None if there is none. Return the
# emitted ids, a list.


# %% task="2.2"
def emit(guesses, answers, eos, budget):
    """Return the ids that this round emits, a list."""
    ### BEGIN SOLUTION
    n = 0
    while n < len(guesses) and guesses[n] == answers[n]:
        n += 1
    new = [*guesses[:n], answers[n]][:budget]
    if eos in new:
        new = new[: new.index(eos) + 1]
    return new
    ### END SOLUTION


# %% check="2.2"
passed = check("2.2", emit)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="2.2"
show("2.2", emit)

# %% [markdown]
# ## 2.3 · A drafter that trusts nobody
#
# 20 points · difficulty 3 of 5 · 20 minutes
#
# In the notebook the loop rewound the drafter's cache, and `write_draft` believed it. That is where the hole came from. Here is a
# drafter to mend: nobody has rewound anything. All it is told is which tokens its cache holds, `seen`, in order, and what the text is
# now. The end of `seen` may have been rejected; the text may have grown by tokens that it has never read; it may even have been cut. To
# keep `seen` up to date is not your task. At count 0 it does not matter whether you rewind.
#
# ```python
# def write_draft(small, seen, text, count):    # broken
#     new, guesses = text[len(seen):], []       # "what I have read is the beginning of the text"
#     for _ in range(count):
#         guesses.append(int(small.read(new)[-1].argmax()))
#         new = guesses[-1:]
#     return guesses
# ```
#
# `small.read(tokens)` feeds a list of one token or more in one pass: the cache grows by them, and it returns logits [tokens, vocab], after
# each of them. `small.rewind(length)` keeps the first `length` tokens of the cache. `text` has one token or more.
#
# Return `count` greedy guesses after `text`, a list. They must be those of a drafter that reads the whole text again each time. But read
# no token that is there already and still right, except where there would be nothing to read: logits come only from reading. And use
# `count` passes: what is missing is read in the first one, all at once, and the last guess is not read. If `count` is 0, no pass.


# %% task="2.3"
def write_draft(small, seen, text, count):
    """Return `count` greedy guesses after `text`, a list, and read nothing twice."""
    ### BEGIN SOLUTION
    common = 0
    while common < min(len(seen), len(text) - 1) and seen[common] == text[common]:
        common += 1
    small.rewind(common)
    new, guesses = text[common:], []
    for _ in range(count):
        guesses.append(int(small.read(new)[-1].argmax()))
        new = guesses[-1:]
    return guesses
    ### END SOLUTION


# %% check="2.3"
passed = check("2.3", write_draft)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="2.3"
show("2.3", write_draft)

# %% [markdown]
# ## 2.4 · The loop, to its last token
#
# 35 points · difficulty 4 of 5 · 35 minutes
#
# The notebook's `speculate` wrote *at least* so many tokens, ran over the end of the text, and always drafted the same number. Write the
# whole one.
#
# - `target.read(tokens)` and `target.rewind(length)` as in 2.3; its cache is empty at first.
# - `draft(text, count)` returns at most `count` guesses after `text` (a list: prompt and all tokens so far), perhaps fewer, perhaps none. It
#   looks after its own cache.
# - `prompt` is a list of ids; `eos` an id or None.
#
# Emit at most `max_new_tokens` tokens (1 or more), and end after the end-of-text token (one that stands in `prompt` does not count). A
# round drafts at most `count` tokens and, since the target adds one of its own, at most one less than may still be emitted. Ask for no
# more than that: guesses cost time, also those that you throw away. Where it is 0, `draft` may be called with 0 or not at all. The first pass reads the prompt, every other pass the pending token and the draft, and
# nothing else.
#
# Return a list of lists: what each pass emitted, the first one's single token included.


# %% task="2.4"
def speculate(target, draft, prompt, max_new_tokens, count, eos):
    """Return what each pass of the target emits, a list of lists of ids."""
    ### BEGIN SOLUTION
    text, emitted, left = list(prompt), [], max_new_tokens
    block, guesses = text, []
    while True:
        answers = target.read(block).argmax(-1).tolist()[len(block) - len(guesses) - 1 :]
        emitted.append(emit(guesses, answers, eos, left))
        text += emitted[-1]
        left -= len(emitted[-1])
        if left == 0 or eos in emitted[-1]:
            return emitted
        target.rewind(len(text) - 1)
        guesses = draft(text, min(count, left - 1))
        block = [text[-1], *guesses]
    ### END SOLUTION


# %% check="2.4"
passed = check("2.4", speculate)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="2.4"
show("2.4", speculate)

# %% [markdown]
# ## 2.5 · A tie, or a bug?
#
# 15 points · difficulty 2 of 5 · 10 minutes
#
# In bfloat16 a pass over several tokens rounds otherwise than a pass over one, and where two logits are nearly equal the argmax may flip.
# So two texts that should be the same may part without a bug. Whoever reports "not lossless" has to say **where** they part and **how far**
# the two logits were apart there.
#
# `first` and `second` are two texts, lists of ids. `logits` [len(first), vocab], float64, are the target's along the first one: row i is what
# `first[i]` was chosen from. Return `(position, gap)`: the first place where the two have different tokens, and there the logit of the first
# text's token less that of the second's. A text that only ends earlier has not parted: return None.


# %% task="2.5"
def parting(first, second, logits):
    """Return (position, gap) where the two texts part, or None."""
    ### BEGIN SOLUTION
    for i, (a, b) in enumerate(zip(first, second)):
        if a != b:
            return i, float(logits[i, a] - logits[i, b])
    return None
    ### END SOLUTION


# %% check="2.5"
passed = check("2.5", parting)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="2.5"
show("2.5", parting)

# %% [markdown]
# ## Points

# %% status="2"
status()

# %% [markdown]
# ## Your own loop, on the real target
#
# A model and its cache, with the two methods that your functions call, and a drafter that is your `write_draft` around the draft model that
# ships with the course.
#
# Where it says False, a task above is not right yet: `status()` says which, and its `check` shows the smallest case.


# %% final="2"
class Reader:
    """A model and its cache; `seen` is what the cache holds."""

    def __init__(self, model, room):
        self.model, self.cache, self.seen = model, model.new_cache(1, room), []

    @torch.inference_mode()
    def read(self, tokens):
        self.seen = [*self.seen, *tokens]
        return self.model(torch.tensor([tokens]), self.cache)[0]  # [tokens, vocab]

    def rewind(self, length):
        self.seen, self.cache.lengths = self.seen[:length], [length]


target = ms.load("smollm2-135m", device="cpu", dtype="float32")
small = ms.load_drafter("draft", target).small
prompt = target.encode("Write a Python function that returns the sum of a list.").tolist()

# %% final="2"
room, eos = len(prompt) + 70, min(target.eos_ids)
large_one, small_one = Reader(target.model, room), Reader(small.model, room)
mine = speculate(large_one, lambda text, count: write_draft(small_one, small_one.seen, text, count), prompt, 60, 4, eos)
tokens = [token for new in mine for token in new]
plain = ms.generate(target, torch.tensor(prompt), max_new_tokens=60)
print(target.tokenizer.decode(tokens))
print(f"{len(tokens)} tokens in {len(mine)} passes; the same as plain decoding: {tokens == plain.tokens.tolist()}")
