# %% [markdown]
# # Exercise 05 · Medusa
#
# Five tasks, 100 points. Read notebook [05](../notebooks/05_medusa.ipynb) first. Here you write what stands between the heads and the
# text: what each head learns, who sees whom in a tree, how guesses become a tree, which tree pays, and the whole loop. At the end your
# own Medusa runs on the real target.
#
# **How it works.** Replace each `raise NotImplementedError(...)` by your code; the cell below it checks your function, `show` draws what it
# does, `hint("5.1")` helps, `status()` gives the points. Your functions stand on their own: torch and Python, and nothing of minispec. They
# may call each other. Leave your arguments as they are: whoever calls you goes on with them. Where a tensor is asked for, nested lists will
# do as well, but True and False are not 1 and 0, and 2.0 is no whole number.
#
# **Words that all tasks use.** The *pending token* is the last token of the text; the target has chosen it, but not read it yet. A round
# reads a *block*: the pending token at block position 0, and node i of the tree (i = 0, 1, ...) at block position i + 1. A node's *parent* is
# given as a block position: 0 is the pending token. The *depth* of a node is the number of steps up to the pending token, which has depth 0.
#
# **Time:** 110 minutes. **Needs:** a CPU.

# %%
import torch

import minispec as ms
from minispec.grading import check, hint, show, status

torch.set_num_threads(min(2, torch.get_num_threads()))  # two threads at most: the same numbers everywhere

# %% [markdown]
# ## 5.1 · What each head learns
#
# 15 points · difficulty 2 of 5 · 10 minutes
#
# Places of a text count from 0. At place j the target's own output matrix guesses token j + 1, from the state at place j. Head k (k = 0, 1,
# ...) reads the same state and guesses k + 1 tokens beyond that: head 0 guesses token j + 2, head 1 token j + 3, and so on. A head learns
# from texts, but only tokens of the *answer* count, for the drafter will never have to guess a prompt.
#
# - `tokens` [batch, time] of integers: a text a row; shorter ones are padded with -1 on the right.
# - `answer` [batch, time] of booleans: is the token at this place part of the answer? False for padding. The answer need not be the end of a
#   text.
# - `heads`: how many heads, 1 or more.
#
# Return [batch, heads, time]: for each head and place, the id that the head is to guess there, or -1 if there is nothing to learn: the token
# lies behind the end of the text, or is not part of the answer. A text may be shorter than a head looks ahead.
#
# For example, tokens `[[5, 6, 7, 8, 9]]`, answer `[[False, False, True, True, True]]` and two heads give
# `[[[7, 8, 9, -1, -1], [8, 9, -1, -1, -1]]]`.


# %% task="5.1"
def head_targets(tokens, answer, heads):
    """Return the id that each head is to guess at each place, [batch, heads, time], or -1."""
    ### BEGIN SOLUTION
    batch, time = tokens.shape
    wanted = torch.full((batch, heads, time), -1)
    for head in range(heads):
        counted = tokens.masked_fill(~answer, -1)[:, head + 2 :]  # empty where the text is too short
        wanted[:, head, : counted.shape[1]] = counted
    return wanted
    ### END SOLUTION


# %% check="5.1"
passed = check("5.1", head_targets)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="5.1"
show("5.1", head_targets)

# %% [markdown]
# ## 5.2 · Who sees whom
#
# 15 points · difficulty 3 of 5 · 15 minutes
#
# A tree is read in one pass, so the target must be told which place of the block sees which, and where each one stands in the text. A node
# sees itself, its parent, that one's parent, and so on up to the pending token, and no other node: what stands in another branch never
# happened. (That each place also sees the whole cache needs no saying.)
#
# Here is the harder case: trees that were merged from several drafts. Their nodes come in any order, so a parent may stand behind its child.
#
# - `parents` [batch, nodes] of integers: the block position of each node's parent. -1 pads, on the right. A row may have no node; `nodes` may
#   be 0.
# - `lengths` [batch] of integers: how many tokens each row has in the cache. Those stand at positions 0 to length - 1, and the pending token at
#   position length.
#
# Return two things. The mask, [batch, nodes + 1, nodes + 1] of booleans: does the place of this row see the place of this column? And the
# positions, [batch, nodes + 1] of integers: length + depth. A place that is padding sees itself alone, nobody else sees it, and its position is
# that of the pending token.
#
# For example, parents `[[0, 0, 1]]` and lengths `[5]` give positions `[[5, 6, 6, 7]]`, and the mask's last row is
# `[True, True, False, True]`: node 2 sees the pending token, node 0, and itself.


# %% task="5.2"
def tree_mask(parents, lengths):
    """Return the mask [batch, nodes + 1, nodes + 1] and the positions [batch, nodes + 1]."""
    ### BEGIN SOLUTION
    batch, nodes = parents.shape
    mask = torch.eye(nodes + 1, dtype=torch.bool).repeat(batch, 1, 1)
    positions = lengths[:, None].repeat(1, nodes + 1)
    for row in range(batch):
        for node in range(nodes):
            above = int(parents[row, node])
            while above >= 0:
                mask[row, node + 1, above] = True
                positions[row, node + 1] += 1
                above = int(parents[row, above - 1]) if above else -1
    return mask, positions
    ### END SOLUTION


# %% check="5.2"
passed = check("5.2", tree_mask)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="5.2"
show("5.2", tree_mask)

# %% [markdown]
# ## 5.3 · From guesses to a tree
#
# 15 points · difficulty 3 of 5 · 15 minutes
#
# The shape of the tree is the same in every round, only its tokens change. A shape is a list of *paths*, one for each node. A path is a list
# of ranks: `[0]` is the likeliest guess of head 0, `[2]` its third; `[2, 0]` stands below `[2]` and is the likeliest guess of head 1.
#
# - `paths`: a list of lists of ranks, in any order, perhaps empty. All are different, none is `[]`, and of each path its beginnings are there
#   too.
# - `logits` [batch, heads, ids]: what each head says of each id that it can guess; a larger logit is likelier, and no two of a head are equal.
#   There are as many heads as the deepest path needs, and as many ids as the highest rank needs.
# - `vocabulary` [ids] of integers: the token that each column of `logits` stands for. (Heads guess only part of the target's tokens.)
#
# Sort the nodes: shorter paths first, those of the same length in the order of their ranks (as Python sorts lists). Return two things: the
# tokens of the nodes, [batch, nodes] of integers, and the block position of each node's parent, [nodes] (a list or a tensor; it is the same for
# all rows).
#
# For example, let head 0 think 11, 12, 13 the likeliest in this order, and head 1 think 14, 11, 12. Then the paths `[[0], [0, 1], [1]]` become
# the tokens `[[11, 12, 11]]` and the parents `[0, 0, 1]`.


# %% task="5.3"
def fill_tree(paths, logits, vocabulary):
    """Return the tokens [batch, nodes] and the parents [nodes] of the tree."""
    ### BEGIN SOLUTION
    nodes = sorted(map(tuple, paths), key=lambda path: (len(path), path))
    place = {(): 0} | {path: at for at, path in enumerate(nodes, 1)}
    ranked = vocabulary[logits.argsort(-1, descending=True)]  # [batch, heads, ids]
    tokens = torch.zeros(len(logits), len(nodes), dtype=torch.int64)
    for i, path in enumerate(nodes):
        tokens[:, i] = ranked[:, len(path) - 1, path[-1]]
    return tokens, [place[path[:-1]] for path in nodes]
    ### END SOLUTION


# %% check="5.3"
passed = check("5.3", fill_tree)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="5.3"
show("5.3", fill_tree)

# %% [markdown]
# ## 5.4 · The tree that pays most
#
# 20 points · difficulty 4 of 5 · 25 minutes
#
# Which shape should it be? On held-out texts it was counted how often each guess is right. `rates[d][r]` is how often the guess of rank r of head
# d is the right one, given that the tokens above it are right. A node is accepted if its whole path is right, so it adds the **product** of the
# rates along its path to the tokens that a round emits, on average. The target adds one token of its own, always. And a pass that reads more
# tokens takes longer: `cost[n]` is what a pass costs that reads the pending token and n nodes.
#
# - `rates`: a list with one list of floats for each head, all of them above 0 and below 1.
# - `cost`: a list of floats above 0, with `most` + 1 entries or more. It need not rise evenly.
# - `most`: the tree may have so many nodes at most (1 or more). Perhaps there are fewer paths than that.
#
# Of all trees with 0 to `most` nodes (of each path its beginnings are there too), find the one with the most tokens for their cost:
# (1 + what its nodes add) / `cost[nodes]`. Return its paths, as in 5.3, in any order. If nothing pays, that is the empty list. No two trees in the
# checks are equally good.
#
# For example, rates `[[0.6, 0.3], [0.4]]`, a cost of `[1, 1.2, 1.3, 1.8]` and most 3 give `[[0], [1]]`: 1.9 / 1.3 is more than with
# `[[0]]` (1.6 / 1.2), and than with `[[0], [1], [0, 0]]` (2.14 / 1.8, for `[0, 0]` adds 0.6 · 0.4).


# %% task="5.4"
def best_shape(rates, cost, most):
    """Return the paths of the tree with the most tokens for their cost."""
    ### BEGIN SOLUTION
    worth = {(): 1.0}
    for depth, row in enumerate(rates):
        above = [path for path in worth if len(path) == depth]
        worth |= {(*path, rank): worth[path] * rate for path in above for rank, rate in enumerate(row)}
    worthiest = sorted(worth, key=lambda path: -worth[path])[: most + 1]  # the first is (): the target's own token
    gain, best, size = 0.0, 0.0, 0
    for n, path in enumerate(worthiest):
        gain += worth[path]
        if gain / cost[n] > best:
            best, size = gain / cost[n], n
    return worthiest[1 : size + 1]
    ### END SOLUTION


# %% check="5.4"
passed = check("5.4", best_shape)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="5.4"
show("5.4", best_shape)

# %% [markdown]
# ## 5.5 · Medusa, to its last token
#
# 35 points · difficulty 5 of 5 · 45 minutes
#
# Now the whole method, for one text at temperature 0.
#
# - `target.read(tokens, positions, mask)` reads n tokens in one pass (n is 1 or more): `tokens` [n] ids, `positions` [n] integers, `mask` [n, n] of
#   booleans: which of these tokens sees which. Lists and tensors will both do. All of them see what is in the cache. The cache grows by the
#   n tokens. It returns two tensors: logits [n, vocab], and the last hidden states [n, width].
# - `target.keep(places)`: of the n tokens of the last pass, keep these places (a list of numbers from 0 to n - 1), in this order, and forget
#   the others. What was in the cache before that pass stays. Without this call all n stay.
# - `heads(state)` takes one hidden state, [width], and returns logits [heads, ids]. Give it the state from whose logits the pending token came.
# - `vocabulary` [ids] and `paths`: as in 5.3. There may be no paths at all.
# - `prompt`: a list of ids, one or more. The cache is empty at first. There is no end-of-text token here.
#
# Emit exactly `max_new_tokens` tokens (1 or more): those that the target alone would write, the likeliest each time. The first pass reads the
# prompt, at the positions from 0 on, each token seeing itself and those before it, and emits one token. Every other pass reads the pending token
# and the tree, and nothing else, and emits the tokens of the accepted path and one of the target's own behind them. If `left` tokens are still to be
# emitted, a tree deeper than left - 1 would be a waste: leave out every path longer than that, and no other one. If no path is left, the pass
# reads the pending token alone.
#
# Return a list of lists: what each pass emitted, the first one's single token included. `tree_mask` and `fill_tree` work on batches; for one row
# give them a batch of one.


# %% task="5.5"
def medusa(target, heads, vocabulary, paths, prompt, max_new_tokens):
    """Return what each pass of the target emits, a list of lists of ids."""
    ### BEGIN SOLUTION
    n = len(prompt)
    logits, states = target.read(prompt, torch.arange(n), torch.ones(n, n, dtype=torch.bool).tril())
    emitted, state, length = [[int(logits[-1].argmax())]], states[-1], n
    left = max_new_tokens - 1
    while left:
        fitting = [path for path in paths if len(path) < left]
        tokens, parents = fill_tree(fitting, heads(state)[None], vocabulary)
        drafted = tokens[0].tolist()
        below = torch.tensor(parents, dtype=torch.int64)[None]  # [1, nodes]
        mask, positions = tree_mask(below, torch.tensor([length]))
        logits, states = target.read([emitted[-1][-1], *drafted], positions[0], mask[0])
        answers = logits.argmax(-1).tolist()
        path, at = [], 0
        while at is not None:
            path.append(at)
            children = [i + 1 for i, (parent, x) in enumerate(zip(parents, drafted)) if (parent, x) == (at, answers[at])]
            at = children[0] if children else None
        target.keep(path)
        emitted.append([answers[at] for at in path])
        length, left, state = length + len(path), left - len(path), states[path[-1]]
    return emitted
    ### END SOLUTION


# %% check="5.5"
passed = check("5.5", medusa)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="5.5"
show("5.5", medusa)

# %% [markdown]
# ## Points

# %% status="5"
status()

# %% [markdown]
# ## Your own Medusa, on the real target
#
# Below are the model and its cache, with the two methods that your function calls; the heads read the target's last hidden state. With the heads
# that ship with the course, two things are stored: how often their guesses were right on held-out texts, and what a pass of the target cost on
# the machine on which they were trained. From these your `best_shape` should choose the tree that the package chooses. (In its last rounds the
# package drafts no more *nodes* than tokens are left, so it may need a pass more than you.)
#
# Where it says False, a task above is not right yet: `status()` says which, and its `check` shows the smallest case.

# %% final="5"
import json

from minispec.checkpoints import WEIGHTS


class Target:
    """A model and its cache, read a tree at a time."""

    def __init__(self, model, room):
        self.model, self.cache, self.start = model, model.new_cache(1, room), 0

    @torch.inference_mode()
    def read(self, tokens, positions, mask):
        self.start = self.cache.lengths[0]
        block, positions, mask = (torch.as_tensor(x)[None] for x in (tokens, positions, mask))
        state = self.model.states(block, self.cache, positions, mask)[-1][0]  # [tokens, width]
        return self.model.logits(state), state

    def keep(self, places):
        self.cache.keep([self.start], torch.as_tensor(places)[None])


stored = json.loads((WEIGHTS / "medusa" / "config.json").read_text())["minispec"]
target = ms.load("smollm2-135m", device="cpu", dtype="float32")
drafter = ms.load_drafter("medusa", target)
prompt = target.encode("Write a Python function that returns the sum of a list.")
reader = Target(target.model, len(prompt) + 100)

# %% final="5"
paths = [list(path) for path in best_shape(stored["rates"], stored["cost"], 32)]
mine = medusa(reader, drafter.net, drafter.net.vocabulary, paths, prompt.tolist(), 48)
tokens = [token for new in mine for token in new]
theirs = ms.generate(target, prompt, drafter=drafter, max_new_tokens=48)
plain = ms.generate(target, prompt, max_new_tokens=48)
print(target.tokenizer.decode(tokens))
print(f"your tree {sorted(paths, key=lambda path: (len(path), path))}; the package's: {ms.Shape.of(paths) == drafter.shape}")
print(f"{len(tokens)} tokens in {len(mine)} passes; the package needs {len(theirs.trace.rounds) + 1}")
print(f"the same as plain decoding: {tokens == plain.tokens.tolist()}")
