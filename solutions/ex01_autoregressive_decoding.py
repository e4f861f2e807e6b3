# %% [markdown]
# # Exercise 01 · Autoregressive decoding
#
# Six tasks, 100 points. Read notebook [01](../notebooks/01_autoregressive_decoding.ipynb) first. There one text was decoded, by one kind of
# sampling. Here you write what a server needs: a draw that never falls off the line, settings that differ from row to row, a cache that
# goes back to a fork, and a batch whose rows begin and end at different places. At the end your own loop runs on the real target.
#
# **How it works.** Replace each `raise NotImplementedError(...)` by your code. The cell below it checks your function at once: it says
# what is wrong, which mistake it looks like, and shows the smallest case that fails. `show` draws what your function does, also while
# it is wrong. `hint("1.1")` gives a step of help; call it again for the next one. `status()` at the end gives the points.
#
# Your functions stand on their own: torch and Python, and nothing of minispec. They may call each other. Leave your arguments as they
# are: whoever calls you goes on with them.
#
# The checks draw no random numbers: where a task needs uniform numbers, it is given them.
#
# **Time:** 120 minutes. **Needs:** a CPU.

# %%
import torch

import minispec as ms
from minispec.grading import check, hint, show, status

torch.set_num_threads(min(2, torch.get_num_threads()))  # two threads at most: the same numbers everywhere

# %% [markdown]
# ## 1.1 · How many texts fit
#
# 10 points · difficulty 1 of 5 · 10 minutes
#
# How many texts can be in the works at once is decided by the memory of their caches. All arguments are whole numbers (no memory has 2⁵⁰ bytes).
#
# - `memory` and `weights`, in bytes: what there is in all, and what the weights take of it (perhaps more than there is);
# - `layers`, `width` (of a hidden state), `heads` (query heads), `kv_heads` (key-value heads; `heads` is a multiple of it). A head, of
#   either kind, is width / heads numbers wide, which is a whole number;
# - `bytes_each`: of one number in the cache;
# - `tokens`: for each text, room is set aside for so many.
#
# Return how many texts fit, a whole number; 0 if none does. Nothing but weights and caches takes memory.
#
# For example, one layer of width 4 with 2 heads and 1 key-value head keeps 2 · 2 numbers a token. With a byte for each, texts of 5 tokens
# take 20 bytes, and 2 of them fit into 50 bytes of which the weights take 8.


# %% task="1.1"
def rows_that_fit(memory, weights, layers, width, heads, kv_heads, bytes_each, tokens):
    """Return how many texts of so many tokens fit beside the weights, a whole number."""
    ### BEGIN SOLUTION
    one_text = 2 * layers * kv_heads * (width // heads) * bytes_each * tokens  # 2: keys and values
    return max(0, memory - weights) // one_text
    ### END SOLUTION


# %% check="1.1"
passed = check("1.1", rows_that_fit)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="1.1"
show("1.1", rows_that_fit)

# %% [markdown]
# ## 1.2 · Drawing, to the ends of the line
#
# 15 points · difficulty 2 of 5 · 15 minutes
#
# The notebook drew one token by laying the probabilities end to end and looking where `u` falls, and left a corner open. Here is a version
# for a batch, and it has more than one fault. Mend it.
#
# ```python
# def draw_rows(p, u):    # broken
#     return torch.searchsorted(p.cumsum(1), u[:, None])[:, 0]
# ```
#
# `p` [batch, vocab], float64: no number is below 0, and each row has one above 0. A row's sum may be somewhat off 1, or far off: what
# counts is where `u` times that sum falls. `u` [batch], float64, in [0, 1): exactly 0 happens, and so does the largest number below 1.
#
# Token 0 lies leftmost. A piece holds its left end and not its right one: with p = (0.5, 0.5), u = 0.5 gives token 1. A token with p = 0
# must never be drawn. Return the token of each row, [batch], whole numbers. (The largest number below 1, times a sum in the same precision,
# is rounded to less than that sum.)


# %% task="1.2"
def draw_rows(p, u):
    """Return the token that each row draws, [batch]."""
    ### BEGIN SOLUTION
    sums = p.cumsum(1)  # [batch, vocab]
    level = u[:, None] * sums[:, -1:]  # on a line as long as the sums have it, not as long as it should be
    return (sums <= level).sum(1)
    ### END SOLUTION


# %% check="1.2"
passed = check("1.2", draw_rows)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="1.2"
show("1.2", draw_rows)

# %% [markdown]
# ## 1.3 · Every row its own settings
#
# 20 points · difficulty 3 of 5 · 20 minutes
#
# A batch mixes requests of different people, so each row has its own temperature, top-k and top-p. And logits tie more often than one
# thinks: in bfloat16 there are only so many of them. So each rule says what becomes of equal logits.
#
# `logits` [batch, vocab], finite, in float64, float32 or bfloat16. `settings`: for each row a list `[temperature, top_k, top_p]`, with
# temperature ≥ 0, top_k ≥ 0 and 0 < top_p ≤ 1. In this order:
#
# 1. **Temperature** 0: the likeliest token is certain, whatever the other two are; of several, the one with the lowest id. Else divide the
#    logits by it. (No temperature between 0 and a billionth occurs.)
# 2. **Top-k**: keep the `top_k` largest logits, and every logit equal to the smallest of those. 0, or more than there are, keeps all.
# 3. **Top-p**, on the softmax of what top-k has kept: keep a token if the tokens with a probability *strictly above* its own have
#    together less than `top_p`. So the token that crosses the threshold stays, and of equal ones all stay or none. 1 keeps all.
#
# Return the distribution of each row, [batch, vocab]: 0 for what was not kept, and the rest divided by its sum. Compute in float32 or
# float64, and return that; it is compared to a millionth. Loops are fine.


# %% task="1.3"
def processed(logits, settings):
    """Return the distribution that each row draws from, [batch, vocab]."""
    ### BEGIN SOLUTION
    rows = []
    for x, (temperature, top_k, top_p) in zip(logits.double(), settings):
        if temperature == 0:
            rows.append(torch.nn.functional.one_hot(x.argmax(), len(x)).double())
            continue
        x = x / temperature
        if 0 < top_k < len(x):
            x = x.masked_fill(x < x.topk(top_k).values[-1], float("-inf"))
        p = x.softmax(0)
        if top_p < 1:
            sums = p.sort(descending=True)
            before = sums.values.cumsum(0) - sums.values  # what stands before each, in that order
            first = torch.searchsorted(-sums.values, -p)  # where the tokens equal to it begin
            p = p.masked_fill(before[first] >= top_p, 0)
        rows.append(p / p.sum())
    return torch.stack(rows)
    ### END SOLUTION


# %% check="1.3"
passed = check("1.3", processed)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="1.3"
show("1.3", processed)

# %% [markdown]
# ## 1.4 · Back to the fork
#
# 15 points · difficulty 3 of 5 · 15 minutes
#
# How might this text go on? Show several continuations: one begins with the likeliest token after the prompt, one with the second
# likeliest, and so on, and each goes on greedily. The prompt is read once. Mend this:
#
# ```python
# def branches(target, prompt, count, max_new_tokens, eos):    # broken
#     texts, position = [], len(prompt)
#     logits = target.read(prompt, list(range(len(prompt))))[-1]
#     for rank in range(count):
#         text = [int(logits.argsort(descending=True)[rank])]
#         for _ in range(max_new_tokens):
#             logits = target.read([text[-1]], [position])[-1]
#             text.append(int(logits.argmax()))
#             position += 1
#         texts.append(text)
#         target.rewind(len(prompt))
#     return texts
# ```
#
# `target.read(tokens, positions)` feeds tokens (one or more, a list) in one pass: the cache grows by them, each stands at its entry of
# `positions` (a list as long), and it returns logits [tokens, vocab], after each of them. `target.rewind(length)` keeps the first `length`
# tokens of the cache, and knows nothing of positions. The cache is empty at first.
#
# `prompt` is a list of one id or more; `count` ≥ 1 is at most the size of the vocabulary; `max_new_tokens` ≥ 1; `eos` is the id of the
# end-of-text token or None; one that stands in the prompt means nothing. No two logits are equal. Return `count` lists of ids, the new tokens
# of each text, the likeliest first token's text first. A text ends when it has `max_new_tokens` tokens, or with the end-of-text token, which
# is its last one then (and may be its only one). Each text must
# be as if it were written alone. Write the texts one after the other; the first pass reads the prompt, every other one reads a single
# token, and no token is read from which nothing follows.


# %% task="1.4"
def branches(target, prompt, count, max_new_tokens, eos):
    """Return `count` texts, lists of new ids, that begin with the likeliest tokens and go on greedily."""
    ### BEGIN SOLUTION
    after_prompt = target.read(prompt, list(range(len(prompt))))[-1]
    texts = []
    for first in after_prompt.argsort(descending=True)[:count].tolist():
        target.rewind(len(prompt))
        text = [first]
        while len(text) < max_new_tokens and text[-1] != eos:
            logits = target.read([text[-1]], [len(prompt) + len(text) - 1])
            text.append(int(logits[-1].argmax()))
        texts.append(text)
    return texts
    ### END SOLUTION


# %% check="1.4"
passed = check("1.4", branches)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="1.4"
show("1.4", branches)

# %% [markdown]
# ## 1.5 · Positions and mask of a ragged batch
#
# 15 points · difficulty 3 of 5 · 20 minutes
#
# In a batch each row of the cache has its own length. A row's new tokens go into the slots right behind what it holds, so a token's slot has
# the number of its position. Behind its own end a row holds rubbish: rejected guesses, or nothing yet. Say where each new token stands and
# what it sees.
#
# - `tokens` [batch, time], whole numbers: the ids that this pass reads, padded with -1 on the right. A row may be padding alone.
# - `lengths`, a list: how many tokens the cache holds of each row before the pass. They lie in slots 0 to length - 1.
# - `slots`: the number of slots, at least as many as the longest row has after the pass.
#
# Return two things: the positions [batch, time], whole numbers, and the mask [batch, time, slots], booleans: True where the token sees the
# slot. A token sees all tokens of its own row that stand at its position or before. What stands in the places of padding does not matter.
#
# For example, a row that holds 2 tokens and reads 2 has positions 2 and 3; with 5 slots, its mask, with 1 for True, is
# `[[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]`.


# %% task="1.5"
def positions_and_mask(tokens, lengths, slots):
    """Return the positions [batch, time] and the mask [batch, time, slots] of this pass."""
    ### BEGIN SOLUTION
    positions = torch.tensor(lengths)[:, None] + torch.arange(tokens.shape[1])  # [batch, time]
    return positions, torch.arange(slots) <= positions[:, :, None]
    ### END SOLUTION


# %% check="1.5"
passed = check("1.5", positions_and_mask)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="1.5"
show("1.5", positions_and_mask)

# %% [markdown]
# ## 1.6 · A batch, written to its end
#
# 25 points · difficulty 4 of 5 · 40 minutes
#
# Now the whole loop, for a batch of prompts of different lengths whose rows end at different times. Each row must come out as if it were
# alone.
#
# - `target.read(tokens)` feeds `tokens` [batch, time], a tensor of whole numbers padded with -1 on the right, in one pass: each row's cache
#   grows by its own tokens, and it returns logits [batch, time, vocab]. A row may be padding alone, then nothing happens to it; at least one
#   row must read something. In the places of padding the logits mean nothing. It looks after positions and mask itself. The caches are
#   empty at first.
# - `prompts`: a list of ids (one or more) for each row.
# - `u` [batch, numbers], float64: token j that row i writes (j = 0 is the first) is drawn with `u[i, j]`.
# - `budgets`: for each row, how many tokens it may write, from 1 to `numbers`.
# - `eos`: the id of the end-of-text token or None. It ends its row, and is the row's last token. In a prompt it means nothing.
# - `settings`: for each row `[temperature, top_k, top_p]`, as in 1.3.
#
# A token is drawn from `processed` (1.3) by `draw_rows` (1.2); you may call both. The first pass reads all prompts, every other pass one
# token of each row that has not ended, and none of the others. No pass is wider than its longest row. Once all have ended, no pass is made.
# Return the new tokens of each row, a list of lists.


# %% task="1.6"
def write_batch(target, prompts, u, budgets, eos, settings):
    """Return what each row writes, a list of lists of ids."""
    ### BEGIN SOLUTION
    texts = [[] for _ in prompts]
    blocks = prompts
    while any(blocks):
        width = max(map(len, blocks))
        logits = target.read(torch.tensor([[*block, *[-1] * (width - len(block))] for block in blocks]))
        for i, block in enumerate(blocks):
            if block:
                law = processed(logits[i, len(block) - 1][None], [settings[i]])  # [1, vocab]
                texts[i].append(int(draw_rows(law, u[i, len(texts[i])][None])[0]))
        ended = [len(text) == budget or text[-1] == eos for text, budget in zip(texts, budgets)]
        blocks = [[] if over else text[-1:] for text, over in zip(texts, ended)]
    return texts
    ### END SOLUTION


# %% check="1.6"
passed = check("1.6", write_batch)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="1.6"
show("1.6", write_batch)

# %% [markdown]
# ## Points

# %% status="1"
status()

# %% [markdown]
# ## Your own batch, on the real target
#
# Two requests with different settings, in one batch: your loop, your distribution, your draw, and in every pass your positions and your
# mask, which here take the place of those of the package's cache. `ms.generate` writes each request alone, with the same uniform numbers.
#
# Where it says False, a task above is not right yet: `status()` says which, and its `check` shows the smallest case.


# %% final="1"
class Mine(ms.KVCache):
    """The package's cache, with your positions and mask."""

    def reserve(self, tokens, mask):
        before = self.lengths
        super().reserve(tokens, mask)  # makes room: now self.end is the length of the longest row
        positions, mask = positions_and_mask(tokens, before, self.end)
        return torch.where(tokens >= 0, positions, self.capacity), mask  # padding goes into a slot of its own


class Rows:
    """A model and its cache for several rows, with the method that your loop calls."""

    def __init__(self, model, rows, room):
        c = model.config
        shape = c.num_hidden_layers, rows, c.num_key_value_heads, room, c.head_dim
        self.model, self.cache = model, Mine(shape, model.dtype, model.device)

    @torch.inference_mode()
    def read(self, tokens):
        return self.model(tokens, self.cache)  # [rows, time, vocab]


# %% final="1"
target = ms.load("smollm2-135m", device="cpu", dtype="float32")
prompts = [target.encode(text) for text in ("Name three rivers.", "Write one sentence about the sea, and no more.")]
settings, most = [[0.8, 50, 0.95], [0.5, 0, 0.9]], 40
generators = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
u = torch.stack([torch.cat([torch.rand(1, generator=g) for _ in range(most)]) for g in generators]).double()
ids = [prompt.tolist() for prompt in prompts]
rows = Rows(target.model, len(prompts), max(map(len, ids)) + most)
mine = write_batch(rows, ids, u, [most] * len(ids), min(target.eos_ids), settings)
for i, (text, prompt) in enumerate(zip(mine, prompts)):
    alone = ms.generate(target, prompt, max_new_tokens=most, sampling=ms.Sampling(*settings[i]), seed=i + 1)
    print(target.tokenizer.decode(text))
    print(f"{len(text)} tokens after a prompt of {len(prompt)}; the same as alone: {text == alone.tokens.tolist()}")
