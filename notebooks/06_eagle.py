# %% [markdown]
# # 06 · EAGLE: drafting from the target's own features
#
# Medusa's heads guess several tokens ahead from one hidden state, and none of them knows which token was chosen before its own. EAGLE
# feeds the chosen token back: one small layer takes the target's last hidden state **and** the token that followed, and computes the
# next hidden state. From that comes the next guess, and so on.
#
# **You will be able to** say why a drafter should read features, and what would be asked of it if they were not shifted against the
# tokens; write and train an EAGLE layer; explain why it drifts, and how training on its own features helps; grow a dynamic tree; predict
# from a cost curve whether a large tree or a short chain is faster on your machine.
#
# **You should know** the loop *draft, verify, accept* (02), acceptance at a temperature (03), and trees of candidates with their ancestor
# mask (05). **Time:** 60 minutes, of which two are computing. **Needs:** a CPU. With a GPU, change one line in the next cell.

# %%
import copy
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import minispec as ms
from minispec import plots
from minispec.model import rotate
from minispec.notebook import here, show

torch.set_num_threads(
    min(2, torch.get_num_threads())
)  # two threads at most: the same numbers everywhere
device = "cpu"  # "cuda" if you have a GPU
target = ms.load("smollm2-135m", device=device, dtype="float32")
model, width = target.model, target.model.config.hidden_size


# %% [markdown]
# A word first. The **feature** of a token is the target's last hidden state at that token: the vector that the output matrix turns into
# logits for the next one. `read` gives the features of a text, and `word` the text of a token.


# %%
def read(ids):  # [time] -> features [time, width]
    return model.states(ids[None], model.new_cache(1, len(ids)))[-1][0]


def word(token):
    return target.tokenizer.decode([int(token)])


prompt = target.encode("Why is the sky blue?").to(device)
plain = ms.generate(target, prompt, max_new_tokens=24)
print(plain.text)

# %% [markdown]
# ## One feature, several ways on
#
# Stop in the middle of that answer and sample instead of taking the likeliest token. The feature at the last token is one vector. But
# several tokens may come out of it, and what follows depends on which one did. Here are the three likeliest, each with the two likeliest
# tokens after it:

# %%
text = torch.cat((prompt, plain.tokens[:16].to(device)))
p = model.logits(read(text)[-1]).softmax(-1)  # [vocab]
parents, labels = [], []
for i, token in enumerate(p.topk(3).indices):
    branch = model.logits(read(torch.cat((text, token[None])))[-1]).softmax(-1)
    parents += [0, 3 * i + 1, 3 * i + 1]
    labels += [f"{word(token)} {p[token]:.2f}"]
    labels += [f"{word(after)} {branch[after]:.2f}" for after in branch.topk(2).indices]
show(
    plots.tree(parents, labels, root=word(text[-1])),
    alt="A tree: below the last token its three likeliest successors, and below each of them two "
    "tokens, which differ from branch to branch.",
    numbers=", ".join(labels),
)

# %% [markdown]
# A drafter that sees only the feature of the root has one input for all three branches, and can give one answer, which is seldom the
# best on all three. A drafter that also sees *which token came out* knows its branch. Li et al. 2024a (EAGLE) call this the
# uncertainty of features: where the text stands is in the feature; which way sampling went is in the token, and nowhere else.
#
# How much is that worth? No training is needed to find out, for a limit follows from the target itself. Let *x* be the next token and *y*
# the one after it. Take a drafter that names one *y* for certain. At temperature 1 it is accepted with probability p(*y*) (03). So at best:
#
# - **seeing x**: the likeliest *y* after that *x*, on average over *x*: $\sum_x p(x)\,\max_y p(y \mid x)$
# - **not seeing x**: one *y* for all of them: $\max_y \sum_x p(x)\,p(y \mid x)$
#
# (A drawn guess follows another sum, $\sum \min(p, q)$ (03). There too, not seeing *x* can only cost.) We compute both at each token of the
# answer, over the 64 likeliest *x*: rivals for one place, so each sees only itself (05). All other *x* together can add at most their
# probability; so we keep that too.


# %%
def limits(place, count=64):
    """Highest acceptance of one guess of token place + 2, and what was left out, at most."""
    p = model.logits(known[place]).softmax(-1)  # [vocab]
    x = p.topk(count).indices
    cache.lengths = [place + 1]  # forget what stands behind
    positions = torch.full((1, count), place + 1, device=device)
    mask = torch.eye(count, dtype=torch.bool, device=device)[None]
    after = model(x[None], cache, positions, mask)[0].softmax(-1)  # [count, vocab]
    seen, blind = p[x] @ after.amax(1), (p[x] @ after).amax()
    return seen.item(), blind.item(), 1 - p[x].sum().item()


# %%
whole = torch.cat((prompt, plain.tokens.to(device)))
cache = model.new_cache(1, len(whole) + 64)
known = model.states(whole[None], cache)[-1][0]  # features, and the cache to go with them
found = [limits(place) for place in range(len(prompt) - 1, len(whole) - 1)]
seen, blind, rest = (sum(column) / len(found) for column in zip(*found))
print(f"highest acceptance of one guess, two tokens ahead; mean over {len(found)} places:")
print(f"    the layer sees which token was sampled: {seen:.2f}")
print(f"    the layer does not:                     {blind:.2f}")
print(f"    the rest can add to each, at most:      {rest:.2f}")
assert all(a >= b - 1e-6 for a, b, _ in found)

# %% [markdown]
# No training can lift a fixed guess that does not see *x* above the second number, plus that rest. Medusa's first head guesses so: the second
# token ahead, from the feature alone. (The numbers are those of this text; elsewhere the gap is wider or narrower.)
#
# At temperature 0 only one token comes out, so in principle the feature settles everything. But then a layer that does not see the token
# has to find it out by itself, which is work that the target's output matrix does with 28 million weights. Either way: give it the token.
#
# ## Shifted by one
#
# When a draft begins, the last token is pending: we know which it is, but the target has not read it, so its feature does not exist yet. The
# newest feature is that of the token before. So the layer's input at place *j* is a pair: the feature of token *j*, and the embedding of
# token *j* + **1**. Its output stands for the feature of token *j* + 1, and from that comes a guess of token *j* + 2. Feature and token are
# shifted against each other by one.
#
# In code the shift is one slice: drop the first token, keep all features. It is as easy to get wrong, and nothing crashes. So write out four
# tokens, a question of two and an answer of two, and look at every place. A place is learnt from if the token that it guesses belongs to the
# answer.


# %%
def places(length, answer, step=0):
    """Places whose guess, token j + 2 + step, is in the answer, which begins at token `answer`."""
    return range(max(0, answer - 2 - step), max(0, length - 2 - step))


four = ["Name", "one", "Rome", "."]
for j in range(4):
    after, guess = [*four[j + 1 :], "-"][0], [*four[j + 2 :], "-"][0]
    learnt = "yes" if j in places(4, answer=2) else "no"
    print(f"place {j}: feature of {four[j]:<6} and token {after:<6}", end=" ")
    print(f"-> feature of {after:<6} -> guess {guess:<6} learnt from: {learnt}")

# %% [markdown]
# Place 2 has an input, but what it should guess lies beyond the text: its target would be rubbish. EAGLE's own trainer once did not move the
# mask of the places along with the targets, and learnt from exactly that rubbish (EAGLE, issue 317). A table for four tokens finds it.
#
# **And if the feature is not shifted?** Then place *j* reads the feature of token *j* and token *j*, which is in that feature already. The guess
# is still due for token *j* + 2, for token *j* + 1 is the pending one. The layer is asked to predict past a token that it was never shown: it
# has to guess, at once, which one was sampled and what comes after it. It predicts before it has seen which branch was taken. That is Medusa's
# first head again, with its limit. We train both kinds below.
#
# ## The layer
#
# EAGLE-1 is this: put embedding and feature side by side, bring them back to one width with a matrix, and send the result through one
# ordinary decoder layer, whose output is the next feature. Embeddings and output matrix are the target's own. Here it is in plain code, for one
# text. `past` collects keys and values, so that a draft can go on from what was read; `see` says which of them each row may see.


# %%
class Layer(nn.Module):
    """[embedding of token j + 1, feature of token j] -> feature of token j + 1."""

    def __init__(self, inner=1536, heads=9, groups=3):
        super().__init__()
        linear = lambda n, m: nn.Linear(n, m, bias=False)
        self.fc = nn.Linear(2 * width, width)
        self.query, self.out = linear(width, width), linear(width, width)
        self.key, self.value = linear(width, groups * 64), linear(width, groups * 64)
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.gate, self.up, self.down = (
            linear(width, inner),
            linear(width, inner),
            linear(inner, width),
        )

    def forward(self, features, tokens, positions, past, see=None):
        """[time, width] from features [time, width] of the tokens before, and `tokens` [time]."""
        x = self.fc(torch.cat((model.embed_tokens(tokens), features), -1))
        x = x + self.out(self.attend(x, positions, past, see))
        normed = self.norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def attend(self, x, positions, past, see):
        cos, sin = (part[0] for part in model.angles(positions[None]))
        split = lambda x: x.view(len(x), -1, 64).transpose(0, 1)  # [heads, time, 64]
        q, k = (rotate(split(x), cos, sin) for x in (self.query(x), self.key(x)))
        past.append((k, split(self.value(x))))
        keys, values = (torch.cat(part, 1).repeat_interleave(3, 0) for part in zip(*past))
        return F.scaled_dot_product_attention(q, keys, values, see).transpose(0, 1).flatten(1)


# %% [markdown]
# (`rotate` and `model.angles` give each position its angle, as in the target. Three queries share a key, as there. There is no norm
# before the attention and none at the end: that is EAGLE-1's shape. An engine once had extra norms and lacked a residual connection; the
# weights loaded without a word, and acceptance was .13 instead of .57: vLLM, pull request 11672.)
#
# At the start the layer should do no harm: `fc` hands the feature through, and both branches add nothing.


# %%
def new_layer(seed=0):
    layer, generator = Layer().to(device), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in layer.parameters():
            if weight.dim() == 2:
                weight.copy_(0.02 * torch.randn(weight.shape, generator=generator))
        for part in (layer.out.weight, layer.down.weight, layer.fc.weight, layer.fc.bias):
            part.zero_()
        layer.fc.weight[:, width:] = torch.eye(width)
    return layer


print(f"{sum(w.numel() for w in new_layer().parameters()) / 1e6:.1f} million weights")

# %% [markdown]
# ## Drafting with it
#
# First read the text: all true features, with the tokens after them. The last output stands for the feature of the last token, which the
# target has not computed yet, and gives the first guess. From there on the layer reads its own output as if it were a feature, together with
# the token that it has just guessed.


# %%
@torch.no_grad()
def draft(layer, features, text, count, choose):
    """`count` guesses after `text` [time], from the features of all but its last token."""
    past, guesses, n = [], [], len(text) - 1
    state = layer(features, text[1:], torch.arange(n, device=device), past, causal(n))[-1:]
    for step in range(count):
        if step > 0:
            at = torch.tensor([n - 1 + step], device=device)
            state = layer(state, guesses[-1], at, past)
        guesses.append(choose(state))  # [1]
    return torch.cat(guesses).tolist()


def causal(n):
    return torch.ones(n, n, dtype=torch.bool, device=device).tril()


# %% [markdown]
# ## An oracle for the bookkeeping
#
# Before training anything, test the plumbing. Put in the layer's place an oracle that returns the *true* next feature, but only where it was
# handed the feature and the position that belong to its tokens; elsewhere it hands the feature back as it came. Then every guess must be
# accepted, in every round. Anything else is a mistake of ours: a feature, a token or a position that is one off.


# %%
class Oracle:
    """Asks the target for the features that a layer should guess, where its inputs are right."""

    def __init__(self, text):
        self.text = text[:1]

    def __call__(self, features, tokens, positions, past, see=None):
        begin, self.text = len(self.text), torch.cat((self.text, tokens))
        true = read(self.text)  # [time, width]
        before = true[begin - 1 : -1]
        right = (features - before).norm(dim=1) < 0.01 * before.norm(dim=1)
        right &= positions == torch.arange(begin - 1, len(true) - 1, device=device)
        return torch.where(right[:, None], true[begin:], features)


# %% [markdown]
# As in notebook 04, at temperature 0 a known answer can be replayed, without a pass of the target. And a test is worth something only if it can
# fail: so we also spoil one input at a time, on its way to the oracle.


# %%
def replay(new_drafter, prompt, answer, count, choose):
    """How many of `count` guesses each round accepts that writes `answer`."""
    whole, done, accepted = torch.cat((prompt, answer)), 1, []
    features = read(whole)
    while done + count < len(answer):
        n = len(prompt) + done
        guesses = draft(new_drafter(whole[:n]), features[: n - 1], whole[:n], count, choose)
        right = [guess == token for guess, token in zip(guesses, whole[n:].tolist())]
        accepted.append([*right, False].index(False))
        done += accepted[-1] + 1
    return accepted


# %%
likeliest = lambda state: model.logits(state).argmax(-1)
answer = plain.tokens.to(device)
exact = replay(Oracle, prompt, answer, 4, likeliest)
print("accepted of 4 guesses, by round:", *exact)
assert set(exact) == {4}


# %%
def spoilt(fault):
    """Makes oracles that are handed what `fault` makes of features, tokens and positions."""

    def new_drafter(text):
        oracle = Oracle(text)
        return lambda *given: oracle(*fault(*given[:3]), *given[3:])

    return new_drafter


# %%
faults = {
    "features one late": lambda features, tokens, at: (features.roll(1, 0), tokens, at),
    "tokens one late": lambda features, tokens, at: (features, tokens.roll(1), at),
    "positions one on": lambda features, tokens, at: (features, tokens, at + 1),
}
for name, fault in faults.items():
    accepted = replay(spoilt(fault), prompt, answer[:8], 4, likeliest)
    print(f"{name:<17}:", *accepted)
    assert max(accepted) < 4

# %% [markdown]
# The oracle's guesses are all accepted, and every fault costs acceptance, which is all that shows it. (It is the test of notebook 02, where the
# target drafted for itself. It works for every drafter.) What the oracle never looks at is `past` and `see`, keys, values and who sees whom: those
# are tested below, where the layer must give the same in one pass and step by step, and the package must accept the same rounds.

# %% [markdown]
# ## Training one layer, live
#
# The layer has to guess what this target writes, so it learns from text that this target wrote, a sample of the text that the shipped
# drafters learnt from. A few dozen short texts must do here, half of them greedy, half sampled at temperature 0.8, and the 1,024 ids that
# are most frequent in them.

# %%
from minispec.train.data import Corpus
from minispec.train.draft import frequent_ids

texts = Corpus.load(Path(ms.__file__).parent / "data" / "texts.npz").texts[43:]
ids = frequent_ids(texts[12:], 1024, len(target.tokenizer)).to(device)
rows = model.lm_head.weight[ids]  # [1024, width]
print(f"{len(texts)} texts, {sum(len(text.answer) for text in texts)} tokens of answers")

# %% [markdown]
# The target reads each text once, and we keep its features. Twelve texts are held out: they measure and are never learnt from.


# %%
def example(text):
    tokens = torch.tensor([*text.prompt.tolist(), *text.answer.tolist()], device=device)
    return tokens, read(tokens), len(text.prompt)


examples = [example(text) for text in texts]
held, learn = examples[:12], examples[12:]
print(f"{len(learn)} texts to learn from, {len(held)} held out")

# %% [markdown]
# One more function, `unroll`: what the layer makes of a whole text at once. Its first step is the one above, at every place. With
# `steps` above 1 it goes on from its own outputs; we come to that. `shift=0` is the mistake from above on purpose: token *j* in place of
# token *j* + 1.


# %%
def unroll(layer, features, tokens, steps, shift=1):
    """Step by step, [time, width]: row j is what the layer makes of place j."""
    n, past, state = len(tokens), [], features
    see, own = causal(n), torch.eye(n, dtype=torch.bool, device=device)
    for step in range(steps):
        beside = F.pad(tokens[shift + step :], (0, shift + step))  # beyond the end: token 0
        state = layer(state, beside, torch.arange(n, device=device) + step, past, see)
        yield state
        see = torch.cat((see, own), 1)


# %% [markdown]
# The loss: at each place that counts, the cross-entropy between the target's distribution for the guessed token and the layer's, both over our
# 1,024 ids. The target's distribution comes from its own feature one place on.


# %%
def loss(layer, one, steps=1, shift=1):
    tokens, features, answer = one
    total = 0.0
    for step, state in enumerate(unroll(layer, features, tokens, steps, shift)):
        at = torch.tensor(places(len(tokens), answer, step), device=device)
        at = at[
            torch.isin(tokens[at + 2 + step], ids)
        ]  # what the layer cannot draft, it need not learn
        p = F.linear(features[at + 1 + step], rows).softmax(-1)
        log_q = F.linear(state[at], rows).log_softmax(-1)
        total = total - 0.8**step * (p * log_q).sum(-1).mean()
    return total


def train(layer, count, steps=1, shift=1, rate=1e-3, seed=0):
    """`count` updates, a text each; the learning rate rises for ten, then falls to a tenth."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=rate, betas=(0.9, 0.95))
    for step, i in enumerate(torch.randint(len(learn), (count,), generator=generator).tolist()):
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 10, 1 - 0.9 * step / count)
        loss(layer, learn[i], steps, shift).backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return layer


# %% [markdown]
# And the measure: on held-out texts, how often is the likeliest guess the text's next token, given that all guesses before it were?


# %%
@torch.no_grad()
def acceptance(layer, steps=1, shift=1):
    """Share accepted at positions 1 to `steps`, of those tried there."""
    right, tried = [0] * steps, [0] * steps
    for tokens, features, answer in held:
        alive = torch.ones_like(tokens, dtype=torch.bool)
        for step, state in enumerate(unroll(layer, features, tokens, steps, shift)):
            at = torch.tensor(places(len(tokens), answer, step), device=device)
            at = at[alive[at]]
            hit = ids[F.linear(state[at], rows).argmax(-1)] == tokens[at + 2 + step]
            alive = torch.zeros_like(alive).index_fill(0, at[hit], True)
            right[step] += int(hit.sum())
            tried[step] += len(at)
    return [n / max(1, of) for n, of in zip(right, tried)]


# %% [markdown]
# Now both: the layer as it should be, and the same layer with the same start, texts and number of updates, but not shifted.

# %%
start = acceptance(new_layer())[0]
shifted = train(new_layer(), count=150)

# %%
unshifted = train(new_layer(), count=150, shift=0)


# %%
def verdict(claim):
    return "yes" if claim else "no"


right, wrong = acceptance(shifted, 3), acceptance(unshifted, 3, shift=0)
print("guesses accepted on held-out texts, at position 1, 2, 3:")
for name, rates in (("before training", [start]), ("shifted", right), ("not shifted", wrong)):
    print(f"{name:>18}:", here(", ".join(f"{rate:.2f}" for rate in rates)))
print("better than its start:               ", verdict(right[0] > start + 0.1))

# %%
with torch.no_grad():
    mine = sum(loss(shifted, one) for one in held) / len(held)
    other = sum(loss(unshifted, one, shift=0) for one in held) / len(held)
print(f"held-out loss: {here(f'{mine:.2f}')} shifted, {here(f'{other:.2f}')} not shifted")
print("clearly lower when shifted:          ", verdict(mine < other - 0.15))

# %% [markdown]
# After some seconds a single layer guesses part of what thirty layers are going to write, in texts that it has never seen. It can, because
# the thirty layers have done their work already: what they know about the text is in the feature. And the layer that is not shifted learns
# too, but less. It is not broken; it was given a harder question. In acceptance the two lie close after so short a training, and are not
# comparable with the limits above (greedy guesses, other texts, 1,024 ids); the loss tells them apart. At later positions both fail, for
# a reason that we come to; the unshifted layer stays one token behind there too. The text that is written would be right in either case.
#
# ## It drafts, and the package agrees
#
# The package's head, `EagleNet`, takes the same weights; it keeps query, key and value in one matrix, and gate and up in another.

# %%
from minispec.train.eagle import new_net

net = new_net(target, layers=(len(model.layers),), vocabulary=ids, eagle=1)
block = net.layers[0]
with torch.no_grad():
    net.fc.load_state_dict(shifted.fc.state_dict())
    parts = [part.weight for part in (shifted.query, shifted.key, shifted.value)]
    block.self_attn.qkv_proj.weight.copy_(torch.cat(parts))
    block.self_attn.o_proj.weight.copy_(shifted.out.weight)
    block.post_attention_layernorm.weight.copy_(shifted.norm.weight)
    block.gate_up_proj.weight.copy_(torch.cat((shifted.gate.weight, shifted.up.weight)))
    block.down_proj.weight.copy_(shifted.down.weight)

# %%
likeliest_id = lambda state: ids[F.linear(state, rows).argmax(-1)]
request = target.encode("Write a Python function that adds two numbers.").to(device)
known = ms.generate(target, request, max_new_tokens=40)
run = ms.generate(target, request, drafter=ms.Eagle(net, num_tokens=3), max_new_tokens=40)
by_hand = replay(lambda text: shifted, request, known.tokens.to(device), 3, likeliest_id)
by_package = [len(round.accepted) for round in run.trace.rounds]
assert run.tokens.tolist() == known.tokens.tolist()
assert by_hand == by_package[: len(by_hand)]
print("the same tokens as without a draft:       ", verdict(True))
print("the same rounds as our own code, replayed:", verdict(True))
print("accepted of 3, by round:", here(" ".join(map(str, by_package))))
first, second = (sum(n >= k for n in by_package) for k in (1, 2))
print(f"first guess right: {here(first)} times; the second too: {here(second)} of these")

# %% [markdown]
# ## Drift
#
# Look at those rounds. Most accept nothing: the layer is weak. But look at those whose first guess was right: how often is the second right too?
# (A figure below asks the same of many more places.) The reason is in `draft`: after the first guess the layer reads **its own output** where it
# was trained to read a feature of the target. That output was made to give good logits, and nothing more. It lies where no feature lies. This
# is drift: guessed features lead to worse guessed features.
#
# EAGLE-1 holds against it with a second loss, which pulls the output towards the true feature. EAGLE-3 drops that loss and instead trains
# the layer **on what it will read** (Li et al. 2025, section 3: *training-time test*): unroll a few steps during training, feed each step the
# output of the one before, and ask each for its own token. That is `steps=3` in our functions. The tokens stay those of the text.
#
# What may each step attend to? When it drafts from place *j*, the layer has read the true features up to *j*, and then its own outputs of
# **this** draft. Its outputs from other places belong to other drafts, which never took place. We count steps from 0, as `unroll` and `draft`
# do: step *s* makes the guess at position *s* + 1. So step 2 at place *j* sees all of step 0 up to
# *j*, and of each later step only its own place: a triangle, then diagonals.

# %%
n, steps = 4, 3
see, own = causal(n).cpu(), torch.eye(n, dtype=torch.bool)
full = torch.zeros(steps * n, steps * n, dtype=torch.bool)
for step in range(steps):
    seen_here = torch.cat((see, *[own] * step), 1)
    full[step * n : (step + 1) * n, : seen_here.shape[1]] = seen_here
names = [f"step {step} place {j}" for step in range(steps) for j in range(n)]
show(
    plots.mask(full.tolist(), names),
    alt="A board of twelve rows and columns, three steps of four places each. Every row sees the "
    "triangle of step 0 up to its own place, and of later steps its own place only.",
    numbers="seen by step 2 at places 0 to 3: " + ", ".join(str(int(r.sum())) for r in full[-n:]),
)

# %% [markdown]
# Is it the right pattern? Not a matter of taste: row *j* of the unrolled pass must be what drafting from place *j* alone gives.

# %%
tokens, features, _ = held[0]
with torch.no_grad():
    outputs = list(unroll(shifted, features, tokens, 3))
    for j in (5, 17, 40):
        past, at = [], torch.arange(j + 1, device=device)
        state = shifted(features[: j + 1], tokens[1 : j + 2], at, past, causal(j + 1))[-1:]
        for step in range(3):
            assert torch.allclose(outputs[step][j], state[0], atol=1e-3)
            state = shifted(state, tokens[j + 2 + step][None], at[-1:] + 1 + step, past)
print("three places, three steps each: unrolled and drafted one by one agree")

# %% [markdown]
# Now let our layer go on learning for a while, once as before, and once on its own features.

# %%
on_true = train(copy.deepcopy(shifted), count=60, seed=1)

# %%
on_own = train(copy.deepcopy(shifted), count=60, steps=3, seed=1)

# %%
rates = {"true features only": acceptance(on_true, 3), "its own features": acceptance(on_own, 3)}
show(
    plots.lines(
        {f"trained on {name}": dict(enumerate(rate, 1)) for name, rate in rates.items()},
        "Acceptance by position, given that all before were accepted (held-out texts)",
        "position in the draft",
        "share accepted",
    ),
    alt="Two lines against the position in the draft. Trained on true features only, the share "
    "accepted falls steeply after the first position; trained on its own features, much less.",
    numbers="\n".join(
        f"{name:>18}: " + here(", ".join(f"{r:.2f}" for r in rate)) for name, rate in rates.items()
    ),
)
a, b = rates.values()
print("own features better at position 2:", verdict(b[1] > 1.5 * a[1]))

# %% [markdown]
# At the first position both read true features, so there the two hardly differ. At the second one the layer that never saw its own output is
# lost, and the other is not. (At the third few places are left to be tried; do not read much into it.)
#
# ## EAGLE-3, and the head that ships with the package
#
# We have built EAGLE-1's layer, without its feature loss and with EAGLE-3's training. EAGLE-2 keeps EAGLE-1's head and changes the tree (below);
# EAGLE-3 keeps that tree and changes the head. Beside loss and training Li et al. 2025 change two more things.
#
# - **Three hidden states instead of one.** If the output need not equal the last feature, then the input need not be the last feature either.
#   A low, a middle and a high hidden state of the target are fused by a matrix, 3 × width to width. The last one is made for the very next
#   token; the others still hold more. Attention reads embedding and feature side by side, each after a norm. The residual connection carries
#   the feature only.
# - **An output matrix of its own**, over the most frequent ids only. The whole vocabulary would mean 28 million weights to read for each guess,
#   several times as many as the rest of the head has.
#
# The head that ships with the package is of this kind, trained by `minispec train eagle`. Its output matrix is a copy of the target's rows for
# those ids and was not trained, so the count below leaves it out.

# %%
from minispec.checkpoints import WEIGHTS
from minispec.checkpoints.files import read_tensors

shipped = ms.load_drafter("eagle", target)
net, ids = shipped.net, shipped.net.vocabulary
assert torch.equal(net.lm_head.weight, model.lm_head.weight[ids])
own = [w for name, w in net.named_parameters() if not name.startswith(("embed", "lm_head"))]
print("reads the target's hidden states", net.layers_read, "of", len(model.layers))
print(f"{sum(w.numel() for w in own) / 1e6:.1f} million trained weights; drafts {len(ids):,} ids")
d2t = read_tensors(WEIGHTS / "eagle", "EAGLE head")["d2t"]  # what the file holds
assert torch.equal(torch.arange(len(d2t)) + d2t, ids.cpu())
for i in (0, 1000, 4000, 8000):
    print(f"    row {i:>4} of its output drafts id {i} + {d2t[i]} = {i + d2t[i]}: {word(ids[i])!r}")

# %% [markdown]
# The file holds the map as *offsets* (`d2t`, draft to target): id = row + offset. Read it as ids, and every draft is nonsense, without an error.
#
# An id outside the list can never be drafted; it costs acceptance, but not correctness (03, question 2). To see how the head does, take one request
# of each of six kinds and let the target answer them, once. Everything that follows is replayed against these answers.

# %%
from minispec.audit import read_requests

kinds = ("chat", "explain", "rewrite", "code", "reasoning", "question")
requests = [r for r in read_requests() if r["id"] in [f"{kind}-1" for kind in kinds]]
prompts = [target.encode(request["messages"]).to(device) for request in requests]
answers = [one.tokens.tolist() for one in ms.generate_batch(target, prompts, max_new_tokens=48)]
inside = sum(token in set(ids.tolist()) for answer in answers for token in answer)
print(f"{len(answers)} answers, {sum(map(len, answers))} tokens, {inside} of them in the list")

# %%
from minispec.bench import rehearse


def rehearsed(drafter):
    """Nodes, tokens and seconds of drafting of every round that would write the answers."""
    each = [rehearse(target, drafter, p, answer, 99) for p, answer in zip(prompts, answers)]
    return [round for rounds in each for round in rounds]


def tokens_a_round(rounds):
    return sum(round.emitted for round in rounds) / len(rounds)


def first_right(rounds):
    return sum(round.accepted > 0 for round in rounds) / len(rounds)


chain = rehearsed(ms.Eagle(net, num_tokens=4))
print(f"chain of 4: {tokens_a_round(chain):.2f} tokens a round, over {len(chain)} rounds")

# %% [markdown]
# (`rehearse` is the package's `replay`. Its last argument is the budget of tokens, here more than the answers have: a draft never holds more than
# may still be written, and we want none cut short.)
#
# ## True features for what was accepted
#
# After a round the target has computed the true hidden states of the accepted tokens, for its own pass went over them. The head has read the
# same tokens too, but with guessed features, and their keys and values lie in its cache. `Eagle.propose` throws them away: it rewinds the cache
# to the committed text, and the next round reads the accepted tokens again with the target's states. For that, `commit` is called after each
# round with the tokens written and the target's states for them, and keeps both (`tokens`, `hidden`) until the next `propose` reads them.
#
# Here is a head that spares itself that. Its `commit` crosses out the tokens that were read while guessing, and lets the cache keep them.


# %%
class Stale(ms.Eagle):
    """Keeps keys and values of accepted tokens as it computed them while guessing."""

    def commit(self, tokens, hidden):
        super().commit(tokens, hidden)
        if len(self.tokens[0]) == len(tokens[0]) and self.passes:  # it has drafted
            read = min(len(tokens[0]) - 1, self.num_tokens - 1)  # its last guess it never read
            self.cache.lengths = [self.cache.lengths[0] + read]
            self.tokens[0], self.hidden[0] = self.tokens[0][read:], [hidden[0][read:]]


stale = rehearsed(Stale(net, num_tokens=4))
print(f"rounds with true features: {len(chain)}; with stale ones: {len(stale)}")
print(f"tokens a round: {tokens_a_round(chain):.2f} and {tokens_a_round(stale):.2f}")

# %% [markdown]
# Here you see no difference, and could not expect one: few guesses are accepted, so hardly a token is stale. The damage grows with acceptance
# and with the length of the answer. An engine that kept stale entries measured 8 to 15% fewer accepted tokens (vLLM, issue 14649; its head and its texts
# were others). And to read the accepted tokens again costs next to nothing: they go through the head in the same pass as the pending token.
#
# ## Trees
#
# A chain bets everything on its first guess. As with Medusa, a tree spreads the bet; but here every branch is read by the layer, so a
# child's guess knows its parents. A *static* tree has one shape for all rounds, grown from measured rates (05). But the head says in each
# round how sure it is. Can that be believed?
#
# Let the head read the known answers, and take its three likeliest guesses at each place. Sort all guesses by the probability that the head
# gives them, and count how many are right.

# %%
confidence, right = [], []
with torch.no_grad():
    for p, answer in zip(prompts, answers):
        whole = torch.cat((p, torch.tensor(answer, device=device)))
        *hidden, _ = model.states(
            whole[None], model.new_cache(1, len(whole)), layers=net.layers_read
        )
        feature = net.fuse(torch.stack(hidden, 2)[:, :-2])
        state = net.step(feature, whole[None, 1:-1], net.new_cache(1, len(whole)))[0]
        best = net.logits(state[len(p) - 1 :]).softmax(-1).topk(3)
        confidence.append(best.values.flatten())
        right.append((ids[best.indices] == whole[len(p) + 1 :, None]).flatten().float())
confidence, right = torch.cat(confidence), torch.cat(right)
first_of_all = right[::3]  # the likeliest guess at each place

# %%
edges = (0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.9, 1.01)
bins = [(confidence >= a) & (confidence < b) for a, b in pairwise(edges)]
bins = [at for at in bins if at.any()]
points = [(confidence[at].mean().item(), right[at].mean().item()) for at in bins]
show(
    plots.lines(
        {"the head": dict(points), "exactly as sure as right": {0: 0, 1: 1}},
        "Is the head as sure as it is right?",
        "probability that the head gives a guess",
        "share of such guesses that are right",
    ),
    alt="The share of right guesses against the probability that the head gives them: it rises "
    "from left to right, beside the diagonal of a head that is exactly as sure as it is right.",
    numbers="(confidence, share right, guesses): "
    + ", ".join(f"({x:.2f}, {y:.2f}, {int(at.sum())})" for (x, y), at in zip(points, bins)),
)

# %% [markdown]
# The order is right: the surer, the righter. The size is not quite: in the middle the head is surer than right, though there are few guesses
# there. And this is the first level; deeper ones read guessed features, so a product of such probabilities is a score, not a probability. But
# an order is enough to decide where the tree grows: that is EAGLE-2 (Li et al. 2024b). A path is worth the product of
# the probabilities along it, and its logarithm is a sum. Level by level, the best few nodes get children; in the end the best of all that were
# seen stay. In plain code, with `children`, which reads a path and gives the likeliest tokens after it:


# %%
class Reader:
    """The shipped head over a text: what does it guess after a path of further tokens?"""

    def __init__(self, text):
        *hidden, _ = model.states(text[None], model.new_cache(1, len(text)), layers=net.layers_read)
        self.cache, self.length = net.new_cache(1, len(text) + 9), len(text) - 1
        feature = net.fuse(torch.stack(hidden, 2)[:, :-1])
        self.state = net.step(feature, text[None, 1:], self.cache)[:, -1:]

    def children(self, path, count):
        self.cache.lengths, state = [self.length], self.state  # forget other paths
        for token in path:
            state = net.step(state, torch.tensor([[token]], device=device), self.cache)
        best = net.logits(state[0, 0]).log_softmax(-1).topk(count)
        return zip(ids[best.indices].tolist(), best.values.tolist())


# %%
def grow(children, depth, top_k, nodes):
    """EAGLE-2's tree: the `nodes` best paths, as {path: score}."""
    candidates, frontier = {}, {(): 0.0}
    best = lambda paths, count: dict(sorted(paths.items(), key=lambda item: -item[1])[:count])
    for _ in range(depth):
        level = {
            (*path, token): score + log_p
            for path, score in frontier.items()
            for token, log_p in children(path, top_k)
        }
        candidates |= level
        frontier = best(level, top_k)
    return best(candidates, nodes)


# %% [markdown]
# A child's score is its parent's plus a logarithm, which is never positive. So no child stands before its parent, and whatever prefix of the
# ranking is kept, it hangs together.
#
# The package's `DynamicTree` does this with one pass of the head for a whole level. Here is one of its rounds, from the answer about code: of
# those with a full tree the one of which the target accepted most. Our own function must grow the same tree.

# %%
plan = ms.DynamicTree(depth=5, top_k=3, nodes=16)
at = kinds.index("code")
run = ms.generate(target, prompts[at], drafter=ms.Eagle(net, tree=plan), max_new_tokens=48)
rounds = run.trace.rounds
whole = [i for i, round in enumerate(rounds) if round.tree.counts == [plan.nodes]]
shown = max(whole, key=lambda i: len(rounds[i].accepted))
before = 1 + sum(len(round.emitted) for round in rounds[:shown])
text = torch.cat((prompts[at], run.tokens[:before].to(device)))
tree = rounds[shown].tree
tokens, parents = tree.tokens[0].tolist(), tree.parents[0].tolist()
show(
    plots.tree(parents, [word(token) for token in tokens], rounds[shown].path, word(text[-1])),
    alt="A tree of sixteen nodes, deep where the head was sure and broad where it was not; one "
    "path is filled: the target accepted it.",
    numbers=f"round {shown + 1}: {len(tokens)} nodes, {len(rounds[shown].accepted)} accepted",
)

# %%
paths = {0: ()}
for i, (token, parent) in enumerate(zip(tokens, parents), 1):
    paths[i] = (*paths[parent], token)
mine = grow(Reader(text).children, plan.depth, plan.top_k, plan.nodes)
assert {*mine} == {*paths.values()} - {()}
print("our tree and the package's hold the same paths:", verdict(True))
for path, score in list(mine.items())[:5]:
    print(f"    {torch.tensor(score).exp():.2f}  {[word(token) for token in path]}")

# %% [markdown]
# Now the four ways to draft side by side: a chain of four, the static tree, a dynamic tree of twenty nodes, and the dynamic tree as shipped.
# The last takes in each round as many nodes as give the most expected tokens (the probabilities of the kept paths summed, plus one) for the cost
# of the pass, by a cost curve stored with the weights: one machine's, in bfloat16. Yours, in float32, may be steeper.

# %%
plans = {
    "chain of 4": ms.Eagle(net, num_tokens=4),
    "static tree": ms.load_drafter("eagle", target, tree="static"),
    "tree of 20": ms.Eagle(net, tree=ms.DynamicTree(depth=5, top_k=4, nodes=20)),
    "dynamic, as shipped": shipped,
}
results = {name: rehearsed(drafter) for name, drafter in plans.items()}
for name, rounds in results.items():
    nodes = sum(round.nodes for round in rounds) / len(rounds)
    print(f"{name:<20} {tokens_a_round(rounds):.2f} tokens a round, {nodes:4.1f} nodes, ", end="")
    print(f"first token found in {first_right(rounds):.2f}")
all_right = sum(round.accepted == 4 for round in chain)
print(f"rounds that accept all four of the chain: {all_right} of {len(chain)}")

# %% [markdown]
# The dynamic tree as shipped emits more than the chain of four, with fewer nodes: where the first guess is unsure, it buys a second choice there
# instead of a fourth token that is hardly ever reached. The tree of twenty holds the most guesses and emits the most tokens a round. Is it the fastest?
#
# ## Predict before you run
#
# A round costs one pass of the target over its nodes and the pending token, and the drafting. So against a chain of four, a tree of twenty
# wins only if
#
# $$\frac{\text{tokens a round, tree}}{\text{tokens a round, chain}} \;>\; \frac{t(21) + \text{drafting, tree}}{t(5) + \text{drafting, chain}}$$
#
# The left side follows from the tokens a round above. The right side is your machine's; here are its parts, the cost curve of notebook 01 and
# what a round's drafting took:

# %%
from minispec.bench import cost_curve

sizes = (1, 2, 3, 4, 5, 6, 9, 13, 17, 21)
curve = cost_curve(target, sizes, repeats=5)
print("a pass, ms:", ", ".join(f"{n}: {here(f'{1e3 * curve[n]:.0f}')}" for n in sizes))
drafting = {name: sum(r.draft_s for r in each) / len(each) for name, each in results.items()}
for name in ("chain of 4", "tree of 20"):
    print(f"drafting, {name}: {here(f'{1e3 * drafting[name]:.0f} ms')} a round")

# %% [markdown]
# (If a longer pass took less time than a shorter one, that is noise, or torch computes a product of that size another way. Run the cell again: does
# it stay?)
#
# **Work out both sides now, on paper**, and write down which of the two will be faster. Then run the next cells, which do the same for all four.


# %%
def between(n):
    """Seconds of a pass over n tokens, read off the curve."""
    lower, upper = max(s for s in sizes if s <= n), min(s for s in sizes if s >= n)
    share = (n - lower) / max(1, upper - lower)
    return curve[lower] * (1 - share) + curve[upper] * share


predicted = {}
for name, rounds in results.items():
    seconds = drafting[name] + sum(between(1 + round.nodes) for round in rounds) / len(rounds)
    predicted[name] = seconds / tokens_a_round(rounds)
    print(f"{name:<20} {here(f'{1e3 * seconds:.0f} ms')} a round, ", end="")
    print(f"{here(f'{1e3 * predicted[name]:.1f} ms')} a token")
print(f"{'no draft':<20} {here(f'{1e3 * curve[1]:.1f} ms')} a token")

# %%
more = tokens_a_round(results["tree of 20"]) / tokens_a_round(results["chain of 4"])
dearer = predicted["tree of 20"] / predicted["chain of 4"] * more
print(f"the tree emits {more:.2f} times as many tokens a round, ", end="")
print(f"and a round costs {here(f'{dearer:.2f}')} times as much")
print(
    "so the faster of the two here should be:", here(min(list(predicted)[::2], key=predicted.get))
)

# %% [markdown]
# Now run them: two requests, all four ways and plain decoding in turn, so that whatever else this machine does hits all alike. `ms.stream` gives
# the first token, then round after round; we stop when the known answer is written.


# %%
def run(drafter, prompt, answer):
    """Tokens after the first, and the seconds of their rounds."""
    written, seconds = [], 0.0
    for event in ms.stream(target, prompt, drafter=drafter, max_new_tokens=99):
        written += [event] if isinstance(event, int) else event.emitted
        seconds += 0 if isinstance(event, int) else event.seconds
        if len(written) >= len(answer):
            break
    assert written[: len(answer)] == answer  # lossless: see below
    return len(written) - 1, seconds


# %%
pairs = [(prompts[at], answers[at][:40]) for at in (kinds.index("explain"), kinds.index("code"))]
runs = {name: [] for name in ("no draft", *plans)}
for prompt, answer in pairs:
    for name in runs:
        runs[name].append(run(plans.get(name), prompt, answer))
measured = {
    name: sum(seconds for _, seconds in each) / sum(tokens for tokens, _ in each)
    for name, each in runs.items()
}
for name, seconds in measured.items():
    print(f"{name:<20} {here(f'{1e3 * seconds:.1f} ms')} a token")
first, second = (min(list(plans)[::2], key=times.get) for times in (predicted, measured))
print(f"faster of the two: predicted {here(first)}, measured {here(second)}")
faster = [name for name in plans if measured[name] < measured["no draft"]]
print("faster than no draft here:", here(", ".join(faster) or "none"))

# %% [markdown]
# Compare with the line *no draft*. If all four stand above it, then on this machine, in float32, with this head, drafting does not pay at all, and
# the question above was only which of the two loses less.
#
# (On two requests the tokens a round are not quite those of the six, and a busy machine adds its own noise. If the two predictions lay
# close together, the measurement may come out either way.)
#
# Where the curve is flat up to twenty-one tokens, the tree's pass costs no more than the chain's, and its extra tokens are free. Where each
# further token in the pass costs time, most of the twenty are paid for and thrown away. That is why the shipped head sizes its tree by a curve,
# and does so anew in each round.
#
# ## Nothing is lost
#
# `run` compared every text with the target's own answer, token by token, in float32, and for the layer trained in seconds we did so when the package
# took it over. It must hold for the stale head too, for the target decides.

# %%
run(Stale(net, num_tokens=4), *pairs[0])
print("the stale head writes the target's own answer:", verdict(True))

# %% [markdown]
# With a temperature, a chain is drawn from q and checked by rejection sampling,
# and a tree holds the head's likeliest tokens, fixed before the target's random number; both are exact, by the two rules of
# [notebook 03](03_rejection_sampling.ipynb), and `minispec audit` proves it by enumeration and by tests on samples.
#
# The next cell shows what a temperature does to the gain, not to the law. Two requests of 24 tokens are too few to rank the two.

# %%
hot = ms.Sampling(temperature=0.8, top_p=0.95)
for name in ("chain of 4", "dynamic, as shipped"):
    many = [
        ms.generate(target, p, drafter=plans[name], max_new_tokens=24, sampling=hot, seed=1)
        for p in prompts[:2]
    ]
    rounds = [round for one in many for round in one.trace.rounds]
    tokens = sum(len(round.emitted) for round in rounds) / len(rounds)
    rule = "drawn from q" if plans[name].tree is None else "the likeliest"
    print(f"{name:<20} guesses {rule}: {tokens:.2f} tokens a round")

# %% [markdown]
# ## What pays
#
# How all the methods did on one named machine, in bfloat16, is in `results/README.md`: tokens a round and speedup by kind of request, and where the
# time of a round went (the tables are in `xeon-avx512-2-cores/bench.md` beside it). EAGLE's multipliers there are far below those of the papers,
# and this notebook holds the two reasons. On a CPU the curve rises early, so every guess has to be likely to be worth its place in the pass. And
# the head is young:

# %%
import json

from minispec.theory import expected_tokens

recipe = json.loads((WEIGHTS / "eagle" / "recipe.json").read_text())
held_out = recipe["held_out_acceptance"]
print(f"{recipe['steps']:,} updates of {recipe['batch']} texts, {recipe['unroll']} steps unrolled")
rates = ", ".join(f"{rate:.2f}" for rate in held_out)
print(f"accepted at positions 1, 2, ... of held-out texts: {rates}")
print(f"by these rates a chain of three emits {expected_tokens(held_out):.2f} tokens a round")
print("first guess right in our six answers:")
print(f"    of all places:                  {first_of_all.mean():.2f}")
print(f"    of those where a round begins:  {first_right(chain):.2f}")

# %% [markdown]
# That is far more than our chain of four emitted. The last two lines show why. The greater part is the texts: the held-out ones are of the
# kinds that the head learnt from, our requests are others. The smaller part is the places: a rate counts all of them, but a round begins where
# the last draft failed, and such places are harder (05).
#
# (How long the training took on one core, and what else was tried, stands in the head's card, `minispec/weights/eagle.md`, and in `training/README.md`.)
# The head that you trained above has seen far less still, and already drafts. A better one needs no new idea, only more text and time.
#
# ## Summary
#
# - EAGLE drafts with one small layer over the target's features. The feature says where the text stands, the token says which way it went.
# - Feature *j* is paired with token *j* + 1. Unshifted, the layer has to guess past a token that it never saw: it is right less often, and nothing
#   crashes.
# - An oracle in the layer's place, which looks at what it is handed, must be accepted always: that tests features, tokens and positions. Keys and
#   masks are tested by drafting step by step and in one pass.
# - After its first guess the layer reads its own output. Trained on true features only, it drifts; unrolled training gives it what it will read,
#   under a mask of one triangle and diagonals.
# - EAGLE-2 lets the head's confidence shape the tree in each round; EAGLE-3 fuses three hidden states, drops the feature loss and drafts a part
#   of the vocabulary.
# - A tree wins over a chain if it emits as many times more tokens as its round costs more. The cost curve tells beforehand.
#
# ## Questions
#
# **1.** In a colleague's trainer, place *j* reads feature *j* and token *j*, and learns token *j* + 2. The loss falls, nothing crashes. What is
# the layer asked to do, and how would you notice?
#
# <details><summary>Answer</summary>
#
# To guess token *j* + 2 without knowing token *j* + 1: it must predict before it has seen which branch was taken, and give one answer for all
# branches. Acceptance is lower than it could be, from the first position on, most where the target is undecided. To notice: write out the table
# for four tokens.
#
# </details>
#
# **2.** On machine A a pass over 5 tokens costs 1.2 and one over 21 tokens 1.3 times a pass over one; on machine B 1.2 and 2.6 times. Drafting
# costs 0.1 passes for the chain of 4 and 0.2 for the tree of 20, which emits 1.3 times as many tokens a round. Which is faster where?
#
# <details><summary>Answer</summary>
#
# On A the tree's round costs (1.3 + 0.2) / (1.2 + 0.1) = 1.15 times as much, less than 1.3: the tree wins. On B it costs 2.8 / 1.3 = 2.15 times as
# much, more than 1.3: the chain wins.
#
# </details>
#
# **3.** A head is accepted well at the first position and hardly at the second. Another is accepted well at all positions, but a little less with
# every round of a long answer. What is wrong with each?
#
# <details><summary>Answer</summary>
#
# The first drifts: it was trained on true features only, and reads its own after the first guess. Unroll the training. The second may keep
# keys and values that were computed from guessed features, so that more and more of its cache is made of guesses. (Six short answers were too
# few to show that above.) Compare its cache after a round with one computed afresh from the target's states.
#
# </details>
#
# ## Change it
#
# - Multiply the features by zero in `unroll` and train: a drafter that sees tokens only. Then zero the embeddings instead. Which of the two does
#   the layer miss more?
# - Replace `causal(n)` in `unroll` by a mask that lets later steps see all earlier outputs of a step (`torch.cat((see, causal(n)), 1)`). The loss
#   looks better; does the acceptance in `replay`?
# - Give `DynamicTree` a `stop_below` of 0.1, 0.3 and 0.6, and `top_k=1`: a chain that stops when unsure. Which setting would your machine choose?
#
# **Exercise:** [ex06](../exercises/ex06_eagle.ipynb), the shift, a chain with a true cache, a dynamic tree; each task is checked at once.
#
# **The way on.** [Notebook 07](07_where_the_time_goes.ipynb) asks where the time of a round really goes, for all the methods of the course.
