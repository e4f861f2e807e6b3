# %% [markdown]
# # Exercise 06 · EAGLE
#
# Five tasks, 100 points. Read notebook [06](../notebooks/06_eagle.ipynb) first. Here you write the parts of EAGLE in which an error does not
# crash, but only costs acceptance: the shift, the loss mask, the map of a reduced vocabulary, what an unrolled draft may see, a cache that holds
# true features only, and a tree that grows by confidence. At the end your own drafter runs on the real target, with the head that ships with the
# course.
#
# **How it works.** Replace each `raise NotImplementedError(...)` by your code; the cell below it checks your function, `show` draws what it
# does, `hint("6.1")` helps, `status()` gives the points. Your functions stand on their own: torch and Python, and nothing of minispec. They
# may call each other. Leave your arguments as they are: whoever calls you goes on with them. Where a tensor is asked for, nested lists will
# do as well, but True and False are not 1 and 0, and 2.0 is no whole number.
#
# **Words that all tasks use.** Places of a text count from 0. *Feature* j is what the target has computed at place j, after it read token j. The
# *pending token* is the last token of the text: the target has chosen it, but not read it yet, so it has no feature. The EAGLE *layer* reads
# **pairs**: feature j with token j + 1. Its output for that pair stands for feature j + 1, and its logits guess token j + 2.
#
# **Time:** 120 minutes. **Needs:** a CPU.

# %%
import torch

import minispec as ms
from minispec.grading import check, hint, show, status

torch.set_num_threads(min(2, torch.get_num_threads()))  # two threads at most: the same numbers everywhere

# %% [markdown]
# ## 6.1 · Input, teacher, mask
#
# 15 points · difficulty 3 of 5 · 15 minutes
#
# EAGLE-3 trains the layer the way it will draft: from every place j of a text it drafts several tokens on. At step 0 it reads feature j with
# token j + 1 and guesses token j + 2. At each later step its own last output takes the place of the feature, and the tokens are still those of the
# text: at step s (0, 1, ...) place j reads token j + 1 + s and guesses token j + 2 + s. It learns to say what the target says behind the token that
# was read: its *teacher* is the target's distribution at the place of that token.
#
# A place counts if the token that it guesses is there, belongs to the answer, and can be drafted at all, for the layer's vocabulary is only a part
# of the target's.
#
# - `tokens` [batch, time] of integers: a text a row; shorter ones are padded with -1 on the right.
# - `answer` [batch, time] of booleans: is the token at this place part of the answer? False for padding. The answer need not be the end of a
#   text.
# - `can_draft` [vocab] of booleans: can this id be drafted?
# - `step`: s, 0 or more. It may lie beyond the end of the text.
#
# Return three things, [batch, time] each. `inputs`: the id that place j reads at this step, or -1 if the text has ended. `teachers`: the place at which
# its teacher stands, or -1 where the input is -1. `counted`, booleans.
#
# This broken version gets several of these wrong. (A loss mask that is not shifted with the target was reported of EAGLE's own training code, in
# issue 317 of its repository.)
#
# ```python
# def training_rows(tokens, answer, can_draft, step):    # broken
#     inputs = tokens.roll(-1, 1)
#     teachers = torch.arange(tokens.shape[1]).expand_as(tokens)
#     return inputs, teachers, answer & can_draft[inputs]
# ```
#
# For example, tokens `[[5, 6, 7, 8]]`, all of them answer, and step 0: the inputs are `[[6, 7, 8, -1]]`, the teachers `[[1, 2, 3, -1]]`. If every id
# but 8 can be drafted, then counted is `[[True, False, False, False]]`: place 0 guesses token 7, place 1 guesses 8, and place 2 has no token left to
# guess.


# %% task="6.1"
def training_rows(tokens, answer, can_draft, step):
    """Return inputs, teachers and counted, [batch, time] each."""
    ### BEGIN SOLUTION
    batch, time = tokens.shape
    wide = torch.cat((tokens, torch.full((batch, step + 2), -1)), 1)
    inputs = wide[:, step + 1 :][:, :time]
    guessed = wide[:, step + 2 :][:, :time]
    marks = torch.cat((answer, torch.zeros(batch, step + 2, dtype=torch.bool)), 1)[:, step + 2 :][:, :time]
    teachers = (torch.arange(time) + step + 1).expand_as(tokens).masked_fill(inputs < 0, -1)
    return inputs, teachers, (guessed >= 0) & marks & can_draft[guessed.clamp(min=0)]
    ### END SOLUTION


# %% check="6.1"
passed = check("6.1", training_rows)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="6.1"
show("6.1", training_rows)

# %% [markdown]
# ## 6.2 · Back to the target's vocabulary
#
# 10 points · difficulty 2 of 5 · 10 minutes
#
# The layer has an output matrix of its own, over the ids that it can draft. Which id does a column stand for? Published heads store **offsets**:
# column i stands for the target's id i + `d2t[i]`. Whoever mixes that up gets other tokens, and no error.
#
# - `logits` [batch, ids] of float64: a column for each id that can be drafted.
# - `d2t` [ids] of integers. The ids that come out are all different, and below `vocab`; they need not ascend.
# - `vocab`: how many ids the target has.
#
# Return logits over the target's ids, [batch, vocab] in float64, such that their softmax is the layer's own distribution: each column's logit as it is, in the
# place of its id, and minus infinity for every id that the layer cannot draft.
#
# For example, logits `[[1.0, 2.0]]`, d2t `[1, 1]` and vocab 4 give `[[-inf, 1.0, 2.0, -inf]]`.


# %% task="6.2"
def to_target(logits, d2t, vocab):
    """Return logits over the target's ids, [batch, vocab]."""
    ### BEGIN SOLUTION
    wide = torch.full((len(logits), vocab), float("-inf"), dtype=logits.dtype)
    wide[:, torch.arange(len(d2t)) + d2t] = logits
    return wide
    ### END SOLUTION


# %% check="6.2"
passed = check("6.2", to_target)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="6.2"
show("6.2", to_target)

# %% [markdown]
# ## 6.3 · Many drafts in one pass
#
# 15 points · difficulty 4 of 5 · 20 minutes
#
# In training every place of a text begins a draft of its own (task 6.1), and all of these drafts go through the layer together. Attention must not mix
# them up. What a draft sees must be what it will see when it drafts for real. Then the cache holds the pairs of committed text, read with true
# features; behind them come the pairs of this one draft, read with the layer's own outputs.
#
# So at step 0 place j reads a true feature, and it sees the step-0 keys of the places 0 to j. At a later step it sees those same keys of step 0, no
# more and no fewer; and of each of the steps 1, 2, ... up to its own the key that its own draft left, the one of place j; and no other.
#
# Keys are kept in the order in which they come: the `time` keys of step 0, then the `time` keys of step 1, and so on. Place j stands at position j at
# step 0, and one position further at every step.
#
# For `time` places (1 or more), return for the queries of step `step` (0 or more) two things. The mask, [time, (step + 1) · time] of booleans: does
# the query of this place see this key? And the positions of the keys, [(step + 1) · time] of integers.
#
# For example, two places at step 1 have the mask `[[True, False, True, False], [True, True, False, True]]` and the positions `[0, 1, 1, 2]`.


# %% task="6.3"
def unrolled_mask(time, step):
    """Return the mask [time, (step + 1) · time] and the positions [(step + 1) · time] of the keys."""
    ### BEGIN SOLUTION
    committed = torch.ones(time, time, dtype=torch.bool).tril()
    own = torch.eye(time, dtype=torch.bool)
    positions = torch.arange(time) + torch.arange(step + 1)[:, None]  # [steps, time]
    return torch.cat((committed, own.repeat(1, step)), 1), positions.flatten()
    ### END SOLUTION


# %% check="6.3"
passed = check("6.3", unrolled_mask)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="6.3"
show("6.3", unrolled_mask)

# %% [markdown]
# ## 6.4 · A chain, round after round
#
# 30 points · difficulty 4 of 5 · 35 minutes
#
# A complete EAGLE drafter, at temperature 0. Your function is called once a round, and every time it gets the layer as the last call has left it.
#
# - `layer.step(features, tokens)` reads n pairs (n is 1 or more) in one pass: `features` [n, width], `tokens` [n] ids of the target. Lists and tensors
#   will both do. Each pair sees the pairs in the cache, itself, and those before it in this pass. The cache grows by the n pairs. It returns the
#   outputs, [n, width].
# - `layer.logits(outputs)` takes outputs [n, width] and returns logits [n, ids], of the ids that can be drafted. It reads nothing.
# - `layer.rewind(length)` keeps the first `length` pairs of the cache. It is an error if the cache holds fewer.
# - `read`: so many pairs at the beginning of the cache were read with features of the target; 0 at first, when the cache is empty. They are right,
#   and stay. What the cache holds behind them was read in the last round with the layer's own outputs.
# - `text`: all tokens by now, a list of two ids or more; the last one is pending. `features` [len(text) - 1, width]: the target's features of all but
#   the pending token. At least one of their pairs was not read yet: `read` is less than len(text) - 1.
# - `count`: how many guesses are wanted, perhaps 0. `d2t` [ids]: offsets, as in 6.2.
#
# Return `count` guesses after `text`, a list of the target's ids: the likeliest token first, then the likeliest behind it, and so on. They must be those of
# a layer that reads everything anew for each guess, with the target's features as far as there are any, and its own outputs from there on. But read
# no pair of `features` twice: the first pass reads all that are missing, at once, and the last guess is not read, so there are `count` passes. If
# `count` is 0, make none.
#
# (An accepted guess was read with a guessed feature. Meanwhile the target has computed the true one, so that pair is among the missing ones.)


# %% task="6.4"
def eagle_chain(layer, read, features, text, count, d2t):
    """Return `count` guesses after `text`, a list, and read no pair of true features twice."""
    ### BEGIN SOLUTION
    if count == 0:
        return []
    layer.rewind(read)
    outputs, guesses = layer.step(features[read:], text[read + 1 :]), []
    while True:
        column = int(layer.logits(outputs[-1:]).argmax())
        guesses.append(column + int(d2t[column]))
        if len(guesses) == count:
            return guesses
        outputs = layer.step(outputs[-1:], guesses[-1:])
    ### END SOLUTION


# %% check="6.4"
passed = check("6.4", eagle_chain)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="6.4"
show("6.4", eagle_chain)

# %% [markdown]
# ## 6.5 · A tree that grows where it is sure
#
# 30 points · difficulty 5 of 5 · 40 minutes
#
# EAGLE-2's tree. A node is a *path*: the tokens from the pending token down to it, itself included. Its *score* is the sum of the log-probabilities
# along the path, as the layer sees them.
#
# `expand(paths)` asks the layer: `paths` is a list of one path or more, each a list of ids; the empty path `[]` is the pending token. It returns
# log-probabilities [paths, vocab] in float64: for each path, of every token that may follow. Minus infinity says that a token cannot follow; such a token is never
# taken. Each call costs a pass.
#
# - Level 1: expand `[]`. Its `top_k` likeliest tokens are nodes (if there are so many).
# - Each further level: of the nodes of the last level, expand the `top_k` with the highest scores, in one call, in any order. The `top_k` likeliest
#   tokens after each of them are nodes of the new level. Stop after `depth` levels, or when a level has no nodes.
# - Then, of all nodes of all levels, the `nodes` with the highest scores stay (all, if there are not so many).
#
# A child never scores above its parent, but it may score as high, if the layer is certain of it; then the parent goes first, so that a node never
# stays without the nodes above it. No other two scores that decide anything are equal in the checks. `depth`, `top_k` and `nodes` are 1 or more; a
# vocabulary may have fewer than `top_k` tokens.
#
# Return `(tokens, parents)`, a list or tensor of integers each, in any order in which parents come before their children. The pending token stands at
# block position 0, entry i at block position i + 1, and `parents[i]` is the block position of its parent. For example, two tokens 7 and 9 after the
# pending token, and 4 after 9, may be written `([7, 9, 4], [0, 0, 2])`.


# %% task="6.5"
def dynamic_tree(expand, depth, top_k, nodes):
    """Return the tokens and the parents of the tree."""
    ### BEGIN SOLUTION
    last, seen = [(0.0, ())], []
    for _ in range(depth):
        laws = expand([list(path) for _, path in last])
        below = []
        for (score, path), law in zip(last, laws):
            best = law.topk(min(top_k, len(law)))
            for logp, token in zip(best.values.tolist(), best.indices.tolist()):
                if logp > float("-inf"):
                    below.append((score + logp, (*path, token)))
        seen += below
        last = sorted(below, key=lambda node: -node[0])[:top_k]
        if not last:
            break
    kept = [path for _, path in sorted(seen, key=lambda node: (-node[0], len(node[1])))[:nodes]]
    place = {(): 0} | {path: at for at, path in enumerate(kept, 1)}
    return [path[-1] for path in kept], [place[path[:-1]] for path in kept]
    ### END SOLUTION


# %% check="6.5"
passed = check("6.5", dynamic_tree)
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS

# %% show="6.5"
show("6.5", dynamic_tree)

# %% [markdown]
# ## Points

# %% status="6"
status()

# %% [markdown]
# ## Your own drafter, on the real target
#
# The head that ships with the course, with the three methods that your functions call, and a drafter around them, as `ms.generate` wants one. In a
# round it asks either your chain or your tree. For the tree, `expand` follows each path from the committed text on, a pair at a time: slow, and
# easy to read.
#
# Where it says False, a task above is not right yet: `status()` says which, and its `check` shows the smallest case.


# %% final="6"
class Layer:
    """The head and its cache of pairs."""

    def __init__(self, net, room):
        self.logits, self.net, self.cache = net.logits, net, net.new_cache(1, room)

    def step(self, features, tokens):
        return self.net.step(torch.as_tensor(features)[None], torch.as_tensor(tokens)[None], self.cache)[0]

    def rewind(self, length):
        self.cache.lengths = [length]


class Mine:
    """Drafts for one request, with the answers above."""

    passes = extra_bytes = 0  # not counted here

    def __init__(self, net, shape):
        self.net, self.layers, self.shape = net, net.layers_read, shape
        self.d2t = net.vocabulary - torch.arange(len(net.vocabulary))

    def start(self, target, cache_rows, prompts, hidden, dice):
        self.layer, self.read, self.vocab = Layer(self.net, cache_rows + 9), 0, target.model.config.vocab_size
        self.text, self.features = prompts[0].tolist(), self.net.fuse(hidden[0, :-1])

    def commit(self, tokens, hidden):
        self.text, self.features = self.text + tokens[0], torch.cat((self.features, self.net.fuse(hidden[0])))

    def propose(self, budget):
        if not budget[0]:
            return ms.TokenTree.chain([[]])
        read, self.read = self.read, len(self.text) - 1
        if self.shape == "chain":
            return ms.TokenTree.chain([eagle_chain(self.layer, read, self.features, self.text, min(3, budget[0]), self.d2t)])
        self.layer.rewind(read)
        self.output = self.layer.step(self.features[read:], self.text[read + 1 :])[-1:]
        tokens, parents = dynamic_tree(self.expand, 3, 3, min(6, budget[0]))
        return ms.TokenTree(torch.as_tensor(tokens)[None], torch.as_tensor(parents)[None])

    def expand(self, paths):
        laws = []
        for path in paths:
            self.layer.rewind(self.read)
            output = self.output
            for token in path:
                output = self.layer.step(output, [token])
            laws.append(to_target(self.layer.logits(output), self.d2t, self.vocab)[0].log_softmax(-1))
        return torch.stack(laws)


target = ms.load("smollm2-135m", device="cpu", dtype="float32")
shipped = ms.load_drafter("eagle", target)
plans = {"chain": ms.Eagle(shipped.net, num_tokens=3), "tree": ms.Eagle(shipped.net, tree=ms.DynamicTree(3, 3, 6))}

# %% final="6"
request = {"prompt": "Write a Python function that returns the sum of a list.", "max_new_tokens": 40}
plain = ms.generate(target, **request)
for name, drafter in plans.items():
    mine, theirs = (ms.generate(target, drafter=d, **request) for d in (Mine(shipped.net, name), drafter))
    same = [sorted(r.drafted) for r in mine.trace.rounds] == [sorted(r.drafted) for r in theirs.trace.rounds]
    print(f"{name}: {len(mine.tokens)} tokens in {len(mine.trace.rounds) + 1} passes; the package drafts the same: {same}")
    print(f"the same as plain decoding: {mine.tokens.tolist() == plain.tokens.tolist()}")
print(mine.text)
