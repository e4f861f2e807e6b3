# %% [markdown]
# # Exercise 07 · Ragged batches
#
# Five tasks, 100 points. Read notebooks [02](../notebooks/02_greedy_speculative_decoding.ipynb) and
# [08](../notebooks/08_batches_and_concurrency.ipynb) first. In 02 one text was written at a time.
# A server writes many at once: they share every pass over the weights. But the rows of a batch draft different numbers of tokens, accept
# different numbers, and end at different times, so the batch becomes ragged. Here you keep it in order. At the end your own batch runs on the
# real target.
#
# **How it works.** Replace each `raise NotImplementedError(...)` by your code; the cell below it checks your function, `show` draws what it
# does, `hint("7.1")` helps, `status()` gives the points. Your functions stand on their own: torch and Python, and nothing of minispec. They
# may call each other. Leave your arguments as they are: whoever calls you goes on with them.
#
# **Words.** A *request* is a prompt and what is written after it. A *row* is a place in the batch, and in the target's cache. The cache of a row
# holds all of its text but the last token, which is *pending*: the next pass reads it, and the draft behind it. That is the row's *block*.
#
# **Time:** 105 minutes. **Needs:** a CPU.

# %%
import itertools

import torch

import minispec as ms
from minispec.grading import check, hint, show, status

torch.set_num_threads(min(2, torch.get_num_threads()))  # two threads at most: the same numbers everywhere

# %% [markdown]
# ## 7.1 · One block for all rows
#
# 15 points · difficulty 1 of 5 · 10 minutes
#
# A pass takes one rectangle of token ids, and the position of each token in its text. Build both.
#
# For row i, `pending[i]` is its pending token, `drafts[i]` its draft (a list of ids, perhaps empty), and `lengths[i]` the number of tokens that
# its cache holds. The cache holds a row's first tokens, whose positions are 0, 1, 2 and so on; the pending token comes right after them.
#
# Return two things, each [rows, 1 + longest draft], tensors or lists of lists: the tokens, where a row's block stands on the left and -1 fills
# the rest; and their positions, with 0 in the places that are filled with -1.
#
# For example, pending `[5, 6]`, drafts `[[7], []]` and lengths `[3, 9]` give `[[5, 7], [6, -1]]` and `[[3, 4], [9, 0]]`.


# %% task="7.1"
def ragged_block(pending, drafts, lengths):
    """Return tokens and positions, each [rows, 1 + longest draft]."""
    ### BEGIN SOLUTION
    width = 1 + max(len(draft) for draft in drafts)
    tokens, positions = [], []
    for first, draft, n in zip(pending, drafts, lengths):
        free = width - 1 - len(draft)
        tokens.append([first, *draft] + [-1] * free)
        positions.append([*range(n, n + 1 + len(draft))] + [0] * free)
    return tokens, positions
    ### END SOLUTION


# %% check="7.1"
passed = check("7.1", ragged_block)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="7.1"
show("7.1", ragged_block)

# %% [markdown]
# ## 7.2 · What a token may see
#
# 20 points · difficulty 3 of 5 · 20 minutes
#
# The cache has the same `slots` for every row, numbered from 0. A row's text fills its first slots, and its block is written right behind that:
# token i of row b has slot `lengths[b] + i`. Behind the block there may be leftovers: keys of guesses that were rejected in earlier rounds. Nobody
# clears them; they are just never looked at, until something else is written over them.
#
# So attention needs a mask. A token sees its own row's text, and the block up to itself: also its own slot, for its key is written before attention
# is computed.
#
# `lengths` and `counts` are lists with a number for each row: how many tokens its cache held before this block, and how many tokens its block has
# (1 or more). Return booleans [rows, largest count, slots], a tensor or lists: may token i of row b see slot s? In the place of padding (i is
# `counts[b]` or more) what is seen does not matter, as long as it is something: softmax over nothing is NaN. All blocks fit into the slots; padding
# might not.


# %% task="7.2"
def visible_slots(lengths, counts, slots):
    """Return which slots each token of the block may see, booleans [rows, largest count, slots]."""
    ### BEGIN SOLUTION
    row = torch.tensor(lengths)[:, None, None]  # [rows, 1, 1]
    token = torch.arange(max(counts))[:, None]  # [time, 1]
    return torch.arange(slots) <= row + token
    ### END SOLUTION


# %% check="7.2"
passed = check("7.2", visible_slots)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="7.2"
show("7.2", visible_slots)

# %% [markdown]
# ## 7.3 · Every request has its own dice
#
# 10 points · difficulty 2 of 5 · 10 minutes
#
# With sampling, a round that drafted n tokens needs n + 1 random numbers: one to test each guess, one for the token behind them. If all rows took
# them from one generator, your answer would depend on who else is in the batch. So each request has a generator of its own, and takes from it in
# every round exactly what it would take alone.
#
# Rows are not requests. Some requests have ended, some wait, and rows move up when a place is free: `requests[i]` is the number of the request that
# stands in row i now, and `counts[i]` how many tokens its draft has (0 or more). `dice[r]` belongs to request number r: `dice[r].roll(n)` returns its
# next n numbers, a float64 tensor [n]. `dice` has one for every request, also for those that are not in the batch.
#
# Return the numbers of this round, [rows, 1 + largest count], a tensor or lists: each row's numbers from the left, in the order in which they were
# rolled, and 0 in the rest.


# %% task="7.3"
def roll_rows(dice, requests, counts):
    """Return the random numbers of this round, [rows, 1 + largest count], padded with 0."""
    ### BEGIN SOLUTION
    u = torch.zeros(len(requests), 1 + max(counts), dtype=torch.float64)
    for row, (request, n) in enumerate(zip(requests, counts)):
        u[row, : n + 1] = dice[request].roll(n + 1)
    return u
    ### END SOLUTION


# %% check="7.3"
passed = check("7.3", roll_rows)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="7.3"
show("7.3", roll_rows)

# %% [markdown]
# ## 7.4 · The loop for a batch
#
# 35 points · difficulty 5 of 5 · 45 minutes
#
# Greedy speculative decoding for several requests at once. What each request writes must be what it writes alone.
#
# - `prompts` is a list of lists of ids, one or more each, of different lengths. Request r has prompt r.
# - `target.read(tokens)`: one pass. `tokens` [rows, width], a tensor or lists of lists: a row is one id or more, then -1 as far as needed. It returns
#   the likeliest token after each of them, a tensor [rows, width]; in the place of padding it means nothing. Each row's cache grows by the row's own
#   tokens. At first all caches are empty; the first pass fixes the number of rows.
# - `target.rewind(lengths)`: row i keeps the first `lengths[i]` tokens of its cache. Only backwards.
# - `target.keep_rows(rows)`: go on with these rows alone; new row i is old row `rows[i]`.
# - `draft(request, text, count)` returns at most `count` guesses for request number `request`, whose text (a list: prompt and all that it wrote) is
#   `text`; perhaps fewer, perhaps none. It may be asked for 0. It looks after its own cache, one for each request: so never give it another's text.
# - `max_new_tokens` (1 or more) and `eos` (an id, or None) hold for every request: it emits at most so many tokens, and ends after the end-of-text
#   token, which it emits. A prompt may contain that token too; there it means nothing.
# - `count`, 1 or more: the most tokens that a request drafts in a round.
#
# The first pass reads all prompts, and each request emits one token. In every later pass each request that goes on reads its pending token and its
# draft, and nothing else. It drafts at most `count` tokens, and no more than it can still emit: the target adds one of its own. (Ask for no more
# than that; guesses cost time, also those that you throw away.) A request that has
# ended is in no further pass; when none goes on, there is no further pass. A pass is as wide as the longest block in it, no wider. The order of the
# rows is up to you.
#
# Return the new tokens of each request, a list of lists, in the order of the prompts.


# %% task="7.4"
def speculate_batch(target, draft, prompts, max_new_tokens, count, eos):
    """Return the new tokens of each request, a list of lists."""
    ### BEGIN SOLUTION
    new = [[] for _ in prompts]
    rows, blocks, drafts = list(range(len(prompts))), prompts, [[] for _ in prompts]
    while rows:
        tokens, _ = ragged_block([block[0] for block in blocks], [block[1:] for block in blocks], [0] * len(rows))
        answers = target.read(tokens).tolist()
        going = []
        for row, r in enumerate(rows):
            guesses = drafts[row]
            own = answers[row][len(blocks[row]) - len(guesses) - 1 :]  # from the pending token on
            n = 0
            while n < len(guesses) and guesses[n] == own[n]:
                n += 1
            emitted = own[: n + 1][: max_new_tokens - len(new[r])]
            if eos in emitted:
                emitted = emitted[: emitted.index(eos) + 1]
            new[r] += emitted
            if len(new[r]) < max_new_tokens and emitted[-1] != eos:
                going.append(row)
        target.keep_rows(going)
        rows = [rows[row] for row in going]
        target.rewind([len(prompts[r]) + len(new[r]) - 1 for r in rows])
        drafts = [draft(r, prompts[r] + new[r], min(count, max_new_tokens - len(new[r]) - 1)) for r in rows]
        blocks = [[new[r][-1], *guesses] for r, guesses in zip(rows, drafts)]
    return new
    ### END SOLUTION


# %% check="7.4"
passed = check("7.4", speculate_batch)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="7.4"
show("7.4", speculate_batch)

# %% [markdown]
# ## 7.5 · How large a batch still pays
#
# 20 points · difficulty 3 of 5 · 20 minutes
#
# Speculation lives on arithmetic that a pass has to spare. A batch uses that up: eight requests that draft four tokens make a pass over forty. So
# there is a batch at which drafting stops paying, and it can be computed before anything is built.
#
# `curve` is a list of points (tokens, seconds), in ascending order: what a pass over so many tokens costs, those of all rows together. It begins at 1
# token; between two points it is a straight line; behind the last one nothing was measured. Each request drafts `num_tokens` tokens a round (1 or
# more) and emits `emitted` tokens a round on average, the target's own among them. Drafting costs `draft_s` seconds a round for the whole batch,
# whatever its size. All other work is free.
#
# Drafting pays for a batch of b requests if they emit more tokens a second with it than without (then each pass reads one token of each request, and
# emits one). Return the largest b for which it pays, a whole number from 1 on, of those whose passes lie on the curve; 0 if it pays for none. Real curves have steps, so
# it may pay for b, not for b + 1, and for b + 2 again: the largest one is wanted.


# %% task="7.5"
def largest_batch(curve, num_tokens, emitted, draft_s):
    """Return the largest batch for which drafting pays, 0 if there is none."""

    ### BEGIN SOLUTION
    def seconds(tokens):
        for (a, low), (b, high) in itertools.pairwise(curve):
            if tokens <= b:
                return low + (high - low) * (tokens - a) / (b - a)

    best = 0
    for batch in range(1, curve[-1][0] // (1 + num_tokens) + 1):
        round_s = seconds(batch * (1 + num_tokens)) + draft_s
        if emitted / round_s > 1 / seconds(batch):
            best = batch
    return best
    ### END SOLUTION


# %% check="7.5"
passed = check("7.5", largest_batch)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="7.5"
show("7.5", largest_batch)

# %% [markdown]
# ## Points

# %% status="7"
status()

# %% [markdown]
# ## Your own batch, on the real target
#
# The target and a cache with a row for each request. Your `ragged_block` and `visible_slots` lay out each pass: the package's model takes tokens,
# positions, and of the mask what concerns the block. The drafter looks up the text's last two tokens in the text before.
#
# Where it says False, a task above is not right yet: `status()` says which, and its `check` shows the smallest case.


# %% final="7"
class Rows:
    """The target and its cache; `shapes` notes the rows and the width of each pass."""

    def __init__(self, model, rows, room):
        self.model, self.cache, self.shapes = model, model.new_cache(rows, room), []

    @torch.inference_mode()
    def read(self, tokens):
        rows = [[x for x in row if x >= 0] for row in torch.as_tensor(tokens).tolist()]
        lengths, counts = self.cache.lengths, [len(row) for row in rows]
        tokens, positions = ragged_block([row[0] for row in rows], [row[1:] for row in rows], lengths)
        time = max(counts)
        seen = torch.as_tensor(visible_slots(lengths, counts, max(lengths) + time))
        block = torch.tensor(lengths)[:, None, None] + torch.arange(time)  # the slots of the block
        mask = seen.gather(2, block.expand(-1, time, -1))  # [rows, time, time]
        self.shapes.append((len(rows), time))
        return self.model(torch.as_tensor(tokens), self.cache, torch.as_tensor(positions), mask).argmax(-1)

    def rewind(self, lengths):
        self.cache.lengths = list(lengths)

    def keep_rows(self, rows):
        self.cache.keys, self.cache.values = self.cache.keys[:, rows], self.cache.values[:, rows]
        self.cache.lengths = [self.cache.lengths[row] for row in rows]


def look_up(request, text, count):
    """What followed the last two tokens when they stood in the text before."""
    for at in range(len(text) - 2, 0, -1):
        if text[at - 1 : at + 1] == text[-2:]:
            return text[at + 1 : at + 1 + count]
    return []


target = ms.load("smollm2-135m", device="cpu", dtype="float32")
asked = [
    "Repeat this sentence twice: The quick brown fox jumps over the lazy dog.",
    "Rename x to total and write the code again:\n```python\nx = 0\nfor n in numbers:\n    x = x + n\nprint(x)\n```",
    "What is the capital of France?",
]
prompts = [target.encode(text).tolist() for text in asked]

# %% final="7"
batch = Rows(target.model, len(prompts), max(map(len, prompts)) + 50)
written = speculate_batch(batch, look_up, prompts, 40, 4, min(target.eos_ids))
plain = ms.generate_batch(target, [torch.tensor(prompt) for prompt in prompts], max_new_tokens=40)
for text, tokens, alone in zip(asked, written, plain):
    print(f"{text.splitlines()[0]}\n    {target.tokenizer.decode(tokens)!r}")
    print(f"    {len(tokens)} tokens; the same as plain decoding: {tokens == alone.tokens.tolist()}")
print(f"{len(batch.shapes)} passes instead of {max(len(alone.tokens) for alone in plain)}")
print(f"rows and width of each pass: {batch.shapes}")
