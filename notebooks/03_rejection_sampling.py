# %% [markdown]
# # 03 · Rejection sampling, and its proof
#
# At a temperature the target has no single next token. It has a distribution, and it rolls dice. "Is the guess the right
# token?" is no longer a question that has an answer. One small rule repairs this: keep each guess with a certain
# probability, and where one fails, draw again from a certain distribution. The text then follows **exactly** the law that
# the target alone would give it. (The *law* of a text: with what probability each possible text comes out. We use the word for
# a token too, and keep "rule" for the code.)
#
# **You will be able to** state the rule and prove it in three ways; read the acceptance off two distributions; find out by
# counting, without a single random number, what a wrong version of the rule does; say what a test on samples can see and
# what it cannot.
#
# **You should know** the loop *draft, verify, accept, correct* (notebook 02), and what temperature, top-k and top-p do
# (notebook 01; in one line each: divide the logits; keep the k likeliest tokens; keep the likeliest until they have probability p
# together). **Time:** 40 minutes, of which one is computing. **Needs:** a CPU; nothing here is large enough for a GPU.

# %%
import itertools
import math
from collections import Counter
from types import SimpleNamespace

import torch
from scipy import stats

import minispec as ms
from minispec import exact, faults, plots
from minispec.notebook import show

torch.set_num_threads(min(2, torch.get_num_threads()))  # two at most: the same numbers everywhere

# %%
target = ms.load("smollm2-135m", device="cpu", dtype="float32")
drafter = ms.load_drafter("draft", target, num_tokens=3, min_confidence=0.0)
draft, vocabulary = drafter.small.model, drafter.vocabulary
size = target.model.config.vocab_size
print(f"the target chooses among {size:,} ids; the draft model guesses {len(vocabulary):,} of them")

# %% [markdown]
# The draft model knows all ids when it reads, but it guesses the frequent ones only: that makes its last matrix six times
# smaller. Every other id has probability 0 in its guesses. Keep that in mind: the rule must be right although the draft
# model can never propose most of the vocabulary.
#
# (`min_confidence=0.0` switches off a feature of the shipped drafter, which ends a draft early where it is unsure. It would
# only be in the way here.)
#
# ## Two dice
#
# Let us look at one position. Both models read the same text, and both sets of logits go through the **same**
# `ms.Sampling`. The target's distribution is called *p*, the draft model's *q*. Everything in this notebook is said in
# terms of these two.

# %%
sampling = ms.Sampling(temperature=0.8)
prompt = target.encode("Write one sentence about the sea.")
words = target.tokenizer.encode("The sea is a vast and mysterious realm", add_special_tokens=False)
text = torch.cat((prompt, torch.tensor(words)))


@torch.inference_mode()
def next_logits(model, ids):
    """Logits [vocab] after `ids`, in float64: what follows is about exact laws."""
    return model(ids[None], model.new_cache(1, len(ids)))[0, -1].double()


def widen(q):
    """A distribution over the ids that the draft model guesses, over all ids: 0 elsewhere."""
    return q.new_zeros(size).index_copy(0, vocabulary, q)


# %%
p_sea = sampling(next_logits(target.model, text))  # [vocab]
q_sea = widen(sampling(next_logits(draft, text)[vocabulary]))  # [vocab]


def table(p, q, tokens):
    """The names of some tokens, and a line for each with its p and its q."""
    names = [repr(target.tokenizer.decode([token])) for token in tokens]
    return names, "\n".join(
        f"{name:>10}   p {p[x]:.3f}   q {q[x]:.3f}" for name, x in zip(names, tokens)
    )


# %%
likely = torch.maximum(p_sea, q_sea).topk(6).indices
names, numbers = table(p_sea, q_sea, likely)
bars = {"p, the target": p_sea[likely].tolist(), "q, the draft model": q_sea[likely].tolist()}
show(
    plots.bars(
        bars,
        names,
        "After “The sea is a vast and mysterious realm”, temperature 0.8",
        "probability",
    ),
    alt="Bars of p and q for the six likeliest next tokens. The target prefers a comma or “that”, "
    "the draft model “of”.",
    numbers=numbers,
)
print(f"p outside the ids that are guessed: {1 - p_sea[vocabulary].sum():.3f}")

# %% [markdown]
# The two agree on *which* tokens are possible, and disagree on how often.
#
# With greedy decoding we kept a guess if it was **the** target's token. What could take the place of that?
#
# - *Keep it if it is the target's likeliest token.* Then the text gets more of the likeliest tokens than the temperature
#   asked for.
# - *Let the target roll its own dice, and keep the guess if both show the same token.* That is right: what comes out is
#   always the target's own draw. But two independent dice rarely agree, even if they are the same dice.

# %%
print(f"both dice show the same token:             {(p_sea * q_sea).sum():.3f}")
print(f"... if the draft model were the target:    {(p_sea * p_sea).sum():.3f}")
print(f"what p and q have in common, Σ min(p, q):  {torch.minimum(p_sea, q_sea).sum():.3f}")

# %% [markdown]
# A perfect draft model, with q equal to p at every token, would have only a third of its guesses accepted. That is a waste. The
# third line is what we shall get instead: the mass that p and q share. With q = p it would be 1.
#
# The trick will be to let the two dice depend on each other. The target does not roll afresh; it uses the draft model's
# roll wherever it can, and corrects it only where it must. What comes out has the law p, as if the target had rolled alone,
# but it equals the guess as often as possible. (In probability theory this is called a *maximal coupling* of p and q.)
#
# ## The rule, with three tokens
#
# To see it whole we take a vocabulary of three tokens: a, b and c.

# %%
P = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
Q = torch.tensor([0.3, 0.2, 0.5], dtype=torch.float64)
common = torch.minimum(P, Q)
show(
    plots.overlap(P.tolist(), Q.tolist(), ["a", "b", "c"]),
    alt="Bars of three tokens. At a and b the target's p stands above the draft's q, "
    "at c the draft's q stands far above p.",
    numbers=f"p {P.tolist()}, q {Q.tolist()}, min(p, q) {common.tolist()}",
)

# %% [markdown]
# The draft model draws x from q. At a and b it guesses **too rarely**: whenever it does guess one of them, keep it. At c it
# guesses **too often**: 0.5 of the time, where the target wants 0.1. So keep a guessed c with probability 0.1 / 0.5, one
# time in five. In one formula:
#
# > Keep x with probability **min(1, p(x) / q(x))**.
#
# That makes the filled part of the bars. What is missing is the hatched part: a and b still lack 0.3 and 0.1. And whenever
# a c was thrown out, we must emit *something*. So:
#
# > Otherwise draw from the **residual distribution**: max(0, p − q), divided by its sum.
#
# (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2, where the letters are the other way round: there q is the
# target.) The division of p by q can be avoided: with u uniform
# in [0, 1), `u < p / q` and `u * q < p` are the same test.
#
# In the code below no function rolls dice. Each takes its random numbers as arguments; that will pay off in a moment.
# `pick` lays the probabilities side by side as pieces of the line from 0 to 1, and returns the piece in which u falls: a
# piece is hit as often as it is long. (The factor `cumulative[-1]` is the end of the line, 1 up to rounding.)


# %%
def residual(p, q):
    """What p has beyond q, as a distribution; if that is nothing, p (nothing is ever rejected)."""
    left = (p - q).clamp(min=0)
    return left / left.sum() if left.sum() > 0 else p


def pick(p, u):
    """The token that the uniform u draws: the first whose cumulative probability exceeds u."""
    cumulative = p.cumsum(0)
    return int((cumulative <= u * cumulative[-1]).sum())


def right(p, q, u_draft, u_accept, u_last):
    """One token by the rule. All its randomness comes in as three uniform numbers."""
    x = pick(q, u_draft)
    if u_accept * q[x] < p[x]:
        return x
    return pick(residual(p, q), u_last)


print("residual distribution:", [round(share, 3) for share in residual(P, Q).tolist()])
print(
    "three runs:",
    ["abc"[right(P, Q, *u)] for u in [(0.1, 0.9, 0.5), (0.7, 0.1, 0.5), (0.7, 0.3, 0.5)]],
)

# %% [markdown]
# In the first run a is drafted and kept, in the second c is drafted and kept, in the third c is drafted and thrown out, and
# a comes from the residual distribution.
#
# ## Proof one: in words
#
# Look at the picture again. The first step fills each bar up to min(p, q): where q is the smaller, all guesses stay; where
# p is the smaller, the test cuts them down to p. The second step adds the hatched parts, in the right proportion. Is it
# also the right *amount*? The amount is the probability of a rejection, which is the dotted part: where q is above p. Since
# p and q both add up to 1, what q has above p and what p has above q are equally much. So every bar is filled exactly to
# the height of p.
#
# ## Proof two: in four lines
#
# Let r be the probability that the guess is rejected.
#
# $$
# \begin{aligned}
# \Pr[x \text{ drafted and kept}] &= q(x)\,\min\!\left(1, \tfrac{p(x)}{q(x)}\right) = \min(p(x), q(x)) \\
# r &= 1 - \textstyle\sum_y \min(p(y), q(y)) = \sum_y \bigl(p(y) - \min(p(y), q(y))\bigr) = \sum_y \max(0, p(y) - q(y)) \\
# \Pr[x \text{ drawn after a rejection}] &= r \cdot \frac{\max(0, p(x) - q(x))}{\sum_y \max(0, p(y) - q(y))} = \max(0, p(x) - q(x)) \\
# \Pr[x \text{ emitted}] &= \min(p(x), q(x)) + \max(0, p(x) - q(x)) = p(x)
# \end{aligned}
# $$
#
# (Leviathan et al. 2023, appendix A.1.) On the way we found the **acceptance**: the probability that a guess is kept is Σ
# min(p, q) (their section 3.2). It equals 1 minus half of Σ |p − q|, which is called the *total variation distance*. No
# rule that emits p can keep more: a token x is drafted with probability q(x) at most, and emitted with probability p(x) at
# most.

# %%
apart = (P - Q).abs().sum() / 2
print(f"three tokens:      acceptance {common.sum():.3f} = 1 - {apart:.3f}")
kept = torch.minimum(p_sea, q_sea)
emitted = kept + (1 - kept.sum()) * residual(p_sea, q_sea)
print(f"the real position: acceptance {kept.sum():.3f} = 1 - {(p_sea - q_sea).abs().sum() / 2:.3f}")
print(
    f"what is emitted there equals p, to 1e-12, at all {size:,} tokens:",
    bool((emitted - p_sea).abs().max() < 1e-12),
)

# %% [markdown]
# ## Proof three: by counting
#
# Algebra proves the formula. It does not prove the *code*: what if `residual` had its arguments swapped? Running the code
# many times and looking at the frequencies gives an answer, but a blurred one. There is a sharp one.
#
# `right` is a function of three uniform numbers, and it is **piecewise constant** in them. The outcome changes only where a
# number crosses a cumulative probability or a ratio p / q. So cut the unit cube at all those places. Within a cell nothing
# changes: run the function once, in the middle of the cell, and note the volume. The law of the token is a sum of volumes.


# %%
def law(rule, p, q, *others, more=()):
    """The exact law of the token that `rule` emits: one run in each cell, weighed by its volume.

    `others`: distributions that it draws from besides p, q and the residuals;
    `more`: numbers that it compares with.
    """
    # 1/0 and 0/0 are no cuts: they fail edge <= 1
    edges = {0.0, 1.0, *(p / q).tolist(), *(q / p).tolist(), *more}
    for distribution in (p, q, residual(p, q), residual(q, p), *others):
        edges |= set(distribution.cumsum(0).tolist())
    # what differs by rounding only is one edge
    cuts = sorted({round(edge, 15) for edge in edges if edge <= 1})
    total = torch.zeros_like(p)
    for cell in itertools.product(itertools.pairwise(cuts), repeat=3):
        middle = [(low + high) / 2 for low, high in cell]
        total[rule(p, q, *middle)] += math.prod(high - low for low, high in cell)
    return total


exact_law = law(right, P, Q)
print("law of the emitted token:", [round(mass, 6) for mass in exact_law.tolist()])
print("equals p to 1e-12:", bool((exact_law - P).abs().max() < 1e-12))

# %% [markdown]
# No random number was drawn, and there is nothing left to chance: this is what the code does. (All places are cut on all
# three axes, and places that only a wrong rule would need are cut as well. A cut too many costs a little time; a cut too
# few would spoil the result. If you try a mistake of your own that compares a uniform number with anything but p / q or q / p,
# pass that number in `more`.)
#
# One pair of distributions is not all of them. Here are thirty, ten of them with zeros.

# %%
generator = torch.Generator().manual_seed(0)
worst = 0.0
for trial in range(30):
    p, q = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    if trial % 3 == 0:
        p[trial % 2], q[(trial + 1) % 3] = 0, 0
    p, q = p / p.sum(), q / q.sum()
    worst = max(worst, float((law(right, p, q) - p).abs().max()))
print("thirty laws, all equal to their p to 1e-12:", worst < 1e-12)

# %% [markdown]
# ## Play with it
#
# The panel shows the rule for a few pairs of p and q: what is kept, the residual distribution, and the law that comes out.
# If a kernel is running, the cell below it lets you set p and q yourself. Look for: q = p; q with all its mass on one
# token; a token with p = 0.

# %%
from minispec import widgets

widgets.acceptance_panel()

# %% tags=["live"]
widgets.acceptance_live()

# %% [markdown]
# ## Wrong rules
#
# The rule has three parts: how x is drawn, the test, and where the second draw comes from. Each of them can be got wrong in
# ways that look reasonable, produce fluent text, and raise no error. With `law` we can see at once what each mistake does.


# %%
def variant(draft=pick, accept=lambda p, q, x, u: u * q[x] < p[x], again=residual):
    """The rule with some of its parts replaced."""

    def rule(p, q, u_draft, u_accept, u_last):
        x = draft(q, u_draft)
        return x if accept(p, q, x, u_accept) else pick(again(p, q), u_last)

    return rule


rules = {
    "right": variant(),
    "inverted ratio": variant(accept=lambda p, q, x, u: u * p[x] < q[x]),
    "accept always": variant(accept=lambda p, q, x, u: True),
    "resample from p": variant(again=lambda p, q: p),
    "resample from q": variant(again=lambda p, q: q),
    "residual of the wrong sign": variant(again=lambda p, q: residual(q, p)),
    "argmax scored with softmax": variant(draft=lambda q, u: int(q.argmax())),
    "never accept": variant(accept=lambda p, q, x, u: False),
}

# %%
off, rows = {}, [f"{'':32}a      b      c      off"]
for name, rule in rules.items():
    got = law(rule, P, Q)
    off[name] = float((got - P).abs().sum()) / 2
    rows.append(f"{name:28}" + "".join(f"{value:7.3f}" for value in got) + f"{off[name]:9.3f}")
labels = [name.replace(" ", "\n") for name in off]
show(
    plots.bars(
        {"total variation distance from p": list(off.values())},
        labels,
        "How far each rule moves the law",
        "off",
    ),
    alt="A bar for each rule. The right rule has none; "
    "the seven wrong ones stand between about 0.06 and 0.4.",
    numbers="\n".join(rows),
)

# %% [markdown]
# Read the table row by row; each mistake has its own face.
#
# - *Inverted ratio* keeps every c, which is guessed too often, and cuts a and b, which are guessed too rarely.
# - *Accept always* emits q. That is honest sampling, from the wrong model. *Residual of the wrong sign* emits q as well: what was cut
#   off above p is put back in the same place.
# - *Resample from q* gives the rejected tokens a second chance: c comes out too often.
# - *Resample from p* is the subtle one. It sounds right ("if the guess fails, let the target decide") and moves the law by
#   0.06 only. But the first step has already given c all that c should get; a second draw from p gives it more.
# - *Argmax scored with softmax*: the draft model took its likeliest token instead of drawing one, and the test was told q all the
#   same. It is the next section's subject.
# - *Never accept* throws every guess away. The residual distribution is only the second half of the law.
#
# How wrong a rule is depends on p and q. With q = p most of these rules are right: a wrong rule hides well behind a good
# draft model.

# %%
for name, rule in rules.items():
    got = law(rule, P, 0.9 * P + 0.1 * Q)
    moved = float((got - P).abs().sum()) / 2
    print(f"{name:28} off by {moved:.3f} with a draft model close to the target")

# %% [markdown]
# Five of them have nearly become right. *Argmax scored with softmax* has become the worst: the closer q is to p, the more it
# repeats one token where p has several.
#
# The package proves itself in the same way. `minispec/exact.py` has this enumeration for whole drafts, chains and trees; it
# runs the functions of `minispec/verify.py`, the very code that decides during generation. `minispec/faults.py` is a bank
# of wrong rules; the audit (`minispec audit`) fails if one of them is **not** caught. Here is the
# shipped rule, on a world in which p and q after every text are random but known. (`sampled_tree((1,))` is a draft of one drawn
# token; `(1, 1)`, below, a chain of two. With larger numbers it is a tree.)

# %%
world = exact.World(vocab=3, seed=2)  # world.p(text), world.q(text)
# one drafted token: {emitted tokens: probability}
shipped = exact.round_law(exact.drawn, world, exact.sampled_tree((1,)))
first = Counter()
for tokens, mass in shipped.items():
    first[tokens[0]] += mass
print("the first token, shipped rule:", [round(first[x], 6) for x in range(3)])
print("the first token, the target:  ", [round(mass, 6) for mass in world.p(()).tolist()])

# %% [markdown]
# ## q is what the token was drawn from
#
# The proof uses one thing about q: that x was drawn from it. It does not ask where q comes from, or whether it is any good.
# So there is one duty: **report the distribution that the dice were rolled with**, after temperature, top-k and top-p, and
# not the one before. On the other side, p is what the text is to follow, after the steps that you asked for.
#
# Let both sides be cut by top-p, and let us count what happens if drawing and reporting differ.

# %%
top_p = ms.Sampling(temperature=1.0, top_p=0.7)
P_cut, Q_cut = top_p(P.log()), top_p(Q.log())
print("p after top-p:", [round(share, 3) for share in P_cut.tolist()])
print("q after top-p:", [round(share, 3) for share in Q_cut.tolist()])


def draw_from(source):
    """A draft that is drawn from `source`, whatever q the rule is told."""
    return lambda q, u: pick(source, u)


cases = {  # the p to follow, the q that the rule is told, the q that was drawn from
    "drawn from cut q, tested with cut q": (P_cut, Q_cut, Q_cut),
    "drawn from q,     tested with q": (P_cut, Q, Q),
    "drawn from cut q, tested with q": (P_cut, Q, Q_cut),
    "drawn from q,     tested with cut q": (P_cut, Q_cut, Q),
    "all cut, but p forgotten": (P, Q_cut, Q_cut),
}
for name, (p, q, source) in cases.items():
    got = law(variant(draft=draw_from(source)), p, q, source)
    print(f"{name:38} off by {(got - P_cut).abs().sum() / 2:.3f}")

# %% [markdown]
# The second line is the instructive one: there q was never cut, and nothing is wrong. The draft model may sample as it
# likes, as long as it says how. The third and fourth lines are dishonest, and wrong. In the last line the rule did what it
# was told: it emits the p that it was given. (Leviathan et al. 2023, section 2.2, make the same point: temperature, top-k
# and the like only define which p and which q the rule is about.)
#
# In the package the two cannot drift apart, because one `ms.Sampling` object processes both (`minispec/sampling.py`). Here
# is the position about the sea again, with top-k 4 on both sides. Each side keeps its own four tokens, and they are not the
# same four.

# %%
top_k = ms.Sampling(temperature=0.8, top_k=4)
p_four = top_k(next_logits(target.model, text))
q_four = widen(top_k(next_logits(draft, text)[vocabulary]))
either = ((p_four > 0) | (q_four > 0)).nonzero()[:, 0]
either = either[p_four[either].argsort(descending=True)]
names, numbers = table(p_four, q_four, either)
show(
    plots.overlap(p_four[either].tolist(), q_four[either].tolist(), names),
    alt="Bars of the tokens that either side keeps under top-k 4. "
    "One that the draft model guesses has p = 0: never kept.",
    numbers=numbers,
)

# %% [markdown]
# ### A token with p = 0 must never pass
#
# Top-k and top-p set p to exactly 0 for almost the whole vocabulary. Such a token must never be emitted, and our test is `u
# * q < p`, with **strictly less**. Would `<=` do? In the enumeration the two are equal: they differ only where u is exactly
# 0, a set without volume. But computers draw exactly 0.

# %%
p = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)
q = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
careless = variant(accept=lambda p, q, x, u: u * q[x] <= p[x])
for name, rule in {"u * q <  p": right, "u * q <= p": careless}.items():
    moved, injected = (law(rule, p, q) - p).abs().sum() / 2, rule(p, q, 0.1, 0.0, 0.3)
    print(f"{name}: off by {moved:.3f}; with u_accept = 0 it emits token {injected}")
steps = torch.rand(1000, generator=generator) * 2**24
print("float32 random numbers are multiples of 2**-24:", bool((steps == steps.round()).all()))

# %% [markdown]
# So in float32 about one number in 2²⁴, nearly 17 million, is 0. A server that tests a thousand guesses with p = 0 a second would
# emit a forbidden token every five hours, and nobody could reproduce it. What enumeration cannot see is tested by
# **injecting** it, as here. (`pick` has the same corner: with `<` in place of `<=` it would return token 0 at u = 0,
# although p is 0 there.)
#
# ## A chain
#
# Now several guesses at once, as in notebook 02: the draft model writes `count` tokens, each drawn from its own q; one pass
# of the target gives p after each of them and one more. Go through the guesses in order. At the first that fails, draw from
# the residual distribution **at that place**, and stop. If none fails, draw the bonus token from the last p.


# %%
def accepted(guesses, ps, qs, u):
    """How many of the guesses stay. `u`: a fresh uniform number for each of them."""
    n = 0
    while n < len(guesses) and u[n] * qs[n][guesses[n]] < ps[n][guesses[n]]:
        n += 1
    return n


def last(n, ps, qs):
    """What the token after n kept guesses is drawn from: after a rejection the residual, else p."""
    return residual(ps[n], qs[n]) if n < len(qs) else ps[n]


# %% [markdown]
# **Why the whole text keeps its law.** Think of the text so far as given. Whatever happened before, the next emitted token
# is either drawn by the rule with the p and q that belong to *this* text, or it is a bonus token from p. In both cases its
# law is p after this text: that is what the target would do here. (For one token: Leviathan et al. 2023, appendix A.1; Chen et al.
# 2023, theorem 1.) This holds for the first token, the second, and so on; and a text's probability is the product of these.
#
# The argument has a hidden condition: that u is **fresh** at each position. If a guess was kept, its u was probably small.
# Use the same number again, and the next guess is kept too easily.
#
# So let us count again, this time whole rounds. `round_law` goes through every draft that can be made, with its
# probability. For each it cuts every accept number at the ratios p / q, and runs the rule once in each cell. The last draw
# needs no cells: its law is known, so it is added as it is. `text_law` then lets rounds follow one another, each after the
# text that the rounds before it left, until there are enough tokens. It must not matter where a round ends and the next
# begins: that is what is put to the test.


# %%
def round_law(world, text, count, rule=accepted):
    """The exact law of what one round emits after `text`: {tokens: probability}."""
    total, tokens = Counter(), range(len(world.p(text)))
    for guesses in itertools.product(tokens, repeat=count):
        ps = [world.p(text + guesses[:n]) for n in range(count + 1)]
        qs = [world.q(text + guesses[:n]) for n in range(count)]
        chance = math.prod(float(q[x]) for q, x in zip(qs, guesses))
        cuts = sorted(
            {0.0, 1.0, *(min(1.0, float(p[x] / q[x])) for p, q, x in zip(ps, qs, guesses))}
        )
        for cell in itertools.product(itertools.pairwise(cuts), repeat=count):
            n = rule(guesses, ps, qs, [(low + high) / 2 for low, high in cell])
            volume = chance * math.prod(high - low for low, high in cell)
            for x, share in enumerate(last(n, ps, qs).tolist()):
                total[(*guesses[:n], x)] += volume * share
    return total


# %%
def text_law(world, length, start, rule=accepted, count=2):
    """The law of the first `length` tokens that whole rounds emit, from `start` on."""
    total = Counter(start)
    for n in range(length):
        for text in [text for text in total if len(text) == n]:
            mass = total.pop(text)
            for emitted, share in round_law(world, text, count, rule).items():
                total[(text + emitted)[:length]] += mass * share
    return total


def one_number(guesses, ps, qs, u):
    """Wrong: the same random number at every position."""
    return accepted(guesses, ps, qs, list(u[:1]) * len(guesses))


wanted = world.law(3)  # the product of the target's own probabilities
for name, rule in {"fresh numbers": accepted, "one number": one_number}.items():
    print(
        f"{name:14} off by {exact.distance(text_law(world, 3, {(): 1.0}, rule), wanted):.3f} "
        "over three tokens"
    )
shipped = exact.composed(exact.drawn, world, exact.sampled_tree((1, 1)), length=3)
print("the shipped rule is off by less than 1e-12:", exact.distance(shipped, wanted) < 1e-12)

# %% [markdown]
# "One number" is a mistake that no test with a single drafted token can find: there the rule is right. That is why the
# proof has to go on to whole rounds. The bank of the package has more of that kind: faults in the bonus token, or in which
# row of p belongs to which guess (`faults.FAULTS` says a sentence about each). Here it is, in two random worlds, the second
# with zeros in p and in q.

# %%
worlds = [exact.World(3, 2), exact.World(3, 1, zeros=1)]
for fault in ("", *faults.FAULTS):
    rule, draft_of = faults.chain_rule(fault), exact.sampled_tree((1, 1))
    if fault == "argmax scored with softmax":
        draft_of = exact.fixed_tree((1, 1), with_q=True)
    distances = [
        exact.distance(
            exact.composed(rule, each, draft_of, 3, faults.fault_breakpoints), each.law(3)
        )
        for each in worlds
    ]
    print(f"{fault or 'no fault':28}", "".join(f"{distance:8.3f}" for distance in distances))

# %% [markdown]
# Two faults hide in one of the two worlds: *q before top-p* needs zeros to be visible, and *one uniform number* happens to
# do no harm in the second. One world is not enough. And one row is 0.000 twice, although it is a fault: the careless `<=`.
# It is caught by injecting u = 0.
#
# ## On the real pair
#
# The two functions `accepted` and `last` work on any vocabulary. With them, the loop of notebook 02 changes in four places:
# guesses are drawn, each q is kept, the test is the new one, the last token is drawn. Everything else stays: the pending
# token, the caches that are rewound by setting a length, the draft model that first reads what its cache lacks.
#
# Two details are worth a look. All random numbers come from one generator with a seed, and each is used once. And a round
# never drafts more tokens than it may still emit, less the one that the target adds.


# %%
def draft_tokens(text, cache, count, roll):
    """`count` tokens drawn, and the q of each; the draft model first reads what its cache lacks."""
    new, guesses, qs = text[cache.lengths[0] :], [], []
    for _ in range(count):
        logits = draft(torch.tensor([new]), cache)[0, -1]
        qs.append(widen(sampling(logits[vocabulary])))
        guesses.append(pick(qs[-1], roll(1)[0]))
        new = guesses[-1:]
    return guesses, qs


# %%
@torch.inference_mode()
def speculate_sampled(prompt, most, count, seed):
    """Speculative sampling; yields what each pass of the target emits."""
    dice, text = torch.Generator().manual_seed(seed), prompt.tolist()
    roll = lambda n: torch.rand(n, generator=dice)
    caches = [model.new_cache(1, len(prompt) + most) for model in (target.model, draft)]
    # prefill: the first token
    text.append(pick(sampling(target.model(prompt[None], caches[0])[0, -1]), roll(1)[0]))
    yield text[-1:]
    while (left := len(prompt) + most - len(text)) > 0:
        guesses, qs = draft_tokens(text, caches[1], min(count, left - 1), roll)
        # [guesses + 1, vocab]
        ps = sampling(target.model(torch.tensor([[text[-1], *guesses]]), caches[0])[0])
        u = roll(len(guesses) + 1)
        n = accepted(guesses, ps, qs, u[1:])
        text += [*guesses[:n], pick(last(n, ps, qs), u[0])]
        for cache in caches:  # forget what was rejected
            cache.lengths = [min(cache.lengths[0], len(text) - 1)]
        yield text[-n - 1 :]


# %%
mine = list(speculate_sampled(prompt, 24, 3, seed=1))
theirs = ms.generate(target, prompt, drafter=drafter, max_new_tokens=24, sampling=sampling, seed=1)
print("".join(f"[{target.tokenizer.decode(emitted)}]" for emitted in mine))
tokens = [token for emitted in mine for token in emitted]
print("the package writes the same tokens:", tokens == theirs.tokens.tolist())
print(f"{len(tokens)} tokens in {len(mine)} passes of the target")
assert len(mine) == len(theirs.trace.rounds) + 1

# %% [markdown]
# Each pair of brackets is what one pass emitted. Token by token it is what `ms.generate` writes with the same seed: our
# loop takes the random numbers in the same order (one for each guess; then for each pass one for the last draw and one for
# each test). The package adds the corners: the end of the text, stop strings, batches of rows with their own dice, and
# roundings at the very edge of a distribution.
#
# ### The same law is not the same sentence
#
# With greedy decoding, speculation gave the *same text*. Now it gives the same *law*. Plain sampling with the same seed
# uses up its random numbers in another order, so it writes something else; and neither text is "the right one".

# %%
for seed in (1, 2, 3):
    for name, chosen in {"plain": None, "speculative": drafter}.items():
        generation = ms.generate(
            target, prompt, chosen, max_new_tokens=20, sampling=sampling, seed=seed
        )
        print(
            f"seed {seed}, {name:12}{len(generation.trace.rounds) + 1:3} passes: "
            f"{generation.text!r}"
        )

# %% [markdown]
# (The first token of a seed is the same in both: it comes from reading the prompt, with the seed's first random number,
# before any guess was made. And compare seed 1 with the brackets above, which had 24 tokens to write: the end of a sentence
# can depend even on how many tokens were asked for, since shorter drafts at the end use up fewer numbers. The law does
# not.)
#
# So nobody can check speculative sampling by comparing two texts. What can be checked is the law, by counting as above; or,
# end to end, with statistics.
#
# ## A test on samples, and what it can see
#
# (On a first reading you may go on at "Drafts that were not drawn". Take with you: before you trust "no alarm", ask what the
# test could have seen.)
#
# Enumeration proves the rule. It does not prove the loop around it: a cache with a hole, a p from the row before. So the
# package also samples whole generations and compares frequencies with exact probabilities. The model is
# `ms.toy(vocab_size=5)`, small enough that the law of three tokens is a table of 125 numbers. Tokens 2, 3 and 4 are tested;
# token 1 comes from prefill, without a guess.

# %%
toy, small = ms.toy(vocab_size=5), ms.toy(vocab_size=5, seed=1, num_hidden_layers=1)
whole, start = ms.Sampling(temperature=1.0), torch.tensor([1, 2, 1])
# [125], from the model's own probabilities
expected = exact.exact_law(toy, start, whole, 4).sum(0).flatten()

samples, counts = 10_000, torch.zeros(125)
for batch in range(2):
    options = {"max_new_tokens": 8, "sampling": whole, "seed": batch * 5_000}
    for generation in ms.generate_batch(
        toy, [start] * 5_000, ms.DraftModel(small, num_tokens=2), **options
    ):
        second, third, fourth = generation.tokens[1:4].tolist()
        counts[25 * second + 5 * third + fourth] += 1
print(
    f"{samples:,} texts; the likeliest three tokens: seen {int(counts[expected.argmax()])} times,",
    end=" ",
)
print(f"expected {samples * expected.max():.1f}")

# %% [markdown]
# The **G-test** adds up, over all cells, 2 · seen · log(seen / expected). If the samples follow the law, the sum is
# distributed (nearly) as chi-square with as many degrees of freedom as cells minus one. Cells that expect fewer than five
# are pooled into one.


# %%
def g_test(seen, expected):
    """The probability of a sum as large as this one or larger, if the samples follow the law."""
    few = expected < 5
    seen, expected = (torch.cat((x[~few], x[few].sum()[None])) for x in (seen.double(), expected))
    g = 2 * torch.special.xlogy(seen, seen / expected).sum()
    return float(stats.chi2.sf(g, len(seen) - 1)), len(seen)


p_value, cells = g_test(counts, samples * expected)
theirs = exact.g_test(counts, expected)
print(f"right rule: p-value {p_value:.2f}, {cells} cells")
print(f"the package: p-value {theirs.p_value:.2f}, {theirs.cells} cells")

# %% [markdown]
# A p-value below 0.001 counts as an alarm. A right rule raises one in a thousand times; that is the **false-alarm rate**,
# and we chose it. Here there is no alarm. What does that prove? Nothing, until we know what the test *would have seen*: its
# **power**.
#
# If the true law is off, the sum follows a *noncentral* chi-square distribution. Its shift is the number of samples times Σ
# (true − expected)² / expected over the probabilities of the cells. For a law that is off by d in total variation, that sum
# is at least 4 d² (Cauchy–Schwarz). So the power has a floor.


# %%
def power(samples, off, cells=125, false_alarms=0.001):
    """The chance of an alarm, at least, if the law is off by `off` in total variation."""
    alarm = stats.chi2.isf(false_alarms, cells - 1)
    return float(stats.ncx2.sf(alarm, cells - 1, 4 * off**2 * samples))


sizes = [1000 * 2**k for k in range(8)]
curves = {f"off by {off}": {n: power(n, off) for n in sizes} for off in (0.02, 0.04, 0.08)}
show(
    plots.lines(
        curves,
        "Power of the G-test, at one false alarm in a thousand",
        "samples",
        "chance of an alarm",
        1,
        log=True,
    ),
    alt="Three rising curves. The larger the effect, the fewer samples: "
    "half the effect takes four times as many.",
    numbers="\n".join(
        f"{name}: " + ", ".join(f"{n} {y:.2f}" for n, y in curve.items())
        for name, curve in curves.items()
    ),
)

# %% [markdown]
# With 16,000 samples the test finds a law that is off by 0.04 in 98 of 100 cases, and one that is off by 0.02 in 7 of 100.
# Half the effect takes four times the samples. "The frequencies looked right" without such numbers is not evidence. (The
# figure takes all 125 cells; pooling the small ones changes it a little.)
#
# Now a wrong rule. Can we say beforehand whether it will be caught? By how much is *one number* off, on this very pair?
# `text_law` knows: it needs only p and q after every text of up to five tokens (the three that are tested, and a round of two drafts
# that may reach past them). One pass over all 3,125 texts of five tokens gives them all.


# %%
def laws_after(model):
    """The model's distribution after `start` and any text of at most five tokens, from one pass."""
    texts = torch.cartesian_prod(*[torch.arange(5)] * 5)  # [3125, 5]
    ids = torch.cat((start.expand(len(texts), -1), texts), 1)
    # [3125, 6, vocab]
    laws = whole(model(ids, model.new_cache(len(ids), ids.shape[1])))[:, len(start) - 1 :]
    return lambda text: laws[sum(x * 5 ** (4 - i) for i, x in enumerate(text)), len(text)]


pair = SimpleNamespace(p=laws_after(toy.model), q=laws_after(small.model))
first = {(x,): float(share) for x, share in enumerate(pair.p(()))}  # token 1: from prefill
off = {}
for name, rule in {"fresh numbers": accepted, "one number": one_number}.items():
    frequencies = torch.zeros(125, dtype=torch.float64)
    for (_, second, third, fourth), mass in text_law(pair, 4, first, rule).items():
        frequencies[25 * second + 5 * third + fourth] += mass
    off[name] = float((frequencies - expected).abs().sum()) / 2
    print(
        f"{name:14} off by {off[name]:.3f}; "
        f"chance of an alarm with 10,000 samples: {power(samples, off[name]):.3f}"
    )

# %%
caught = exact.sampling_test(
    toy, ms.DraftModel(small, 2), whole, samples, rule=faults.chain_rule("one uniform number")
)
print(f"one number: alarm: {not caught.passed} (p-value below 1e-20: {caught.p_value < 1e-20})")
print("right rule: alarm:", p_value < 0.001)

# %% [markdown]
# The wrong rule was caught, as the power had announced; and the p-value is so small that nobody could call it chance. Note
# the order of the steps: first the effect, from counting; then the power, from a formula; then the test. Done in this
# order, "no alarm" for the right rule means something.
#
# `minispec audit --full` runs this test with 100,000 texts for every method, with and without top-k and top-p, and prints
# the power beside each verdict.
#
# ## Drafts that were not drawn
#
# **Temperature 0** is the special case in which p is 1 at the target's likeliest token and 0 elsewhere. Then the test keeps
# x if it is that token, always, and otherwise never; and the residual distribution is that token. This is greedy
# speculative decoding.

# %%
greedy = ms.Sampling(temperature=0)
print("p at temperature 0:", greedy(P.log()).tolist())
print(
    "the law of the rule there:",
    [round(mass, 6) for mass in law(right, greedy(P.log()), Q).tolist()],
)

# %% [markdown]
# **A draft without dice.** An n-gram lookup (Saxena 2023, notebook 04) or a draft model that takes its likeliest token
# guesses x for certain. Its honest q is 1 at x and 0 elsewhere. Put that into the rule: keep x with probability min(1, p(x)
# / 1) = p(x), else draw from p without x. There is a simpler way to say the same: **draw from p, and see whether the draft
# guessed it.** The two are equal in all respects: the token, and how often the guess was right.


# %%
def look(p, q, u_draft, u_accept, u_last):
    """Draw from p. The guess was right if this is it."""
    return pick(p, u_last)


for guess in range(3):
    certain = torch.nn.functional.one_hot(torch.tensor(guess), 3).double()
    by_test = law(right, P, certain)
    by_draw = law(look, P, certain)
    print(
        f"guess {'abc'[guess]}: kept {torch.minimum(P, certain).sum():.1f} = p {P[guess]:.1f};",
        end=" ",
    )
    print("equal laws:", bool((by_test - by_draw).abs().max() < 1e-12))


# %% [markdown]
# So where nothing was drawn, no q is needed. In the package this rule is `verify.fixed`, and the one with q is
# `verify.drawn`. Run both on the same certain chains of two tokens: whole rounds, everything that is emitted, in order.


# %%
def certain_chain(world, text):
    """A chain of the draft's likeliest tokens, with its honest q: 1 at each of them."""
    for chance, tree in exact.fixed_tree((1, 1))(world, text):
        tree.q = torch.nn.functional.one_hot(tree.tokens, world.vocab).double()
        yield chance, tree


by_draw = exact.round_law(exact.fixed, world, exact.fixed_tree((1, 1)))
by_test = exact.round_law(exact.drawn, world, certain_chain)
print("verify.fixed and verify.drawn agree to 1e-12:", exact.distance(by_draw, by_test) < 1e-12)

# %% [markdown]
# Compare this with *argmax scored with softmax* in the table of wrong rules. The guess is the same; what was wrong there is the
# claim about it. And compare the acceptance: a certain guess is kept with probability p(x), a drawn one with Σ min(p, q).
# Neither is always the larger. At the position about the sea:

# %%
guess = int(q_sea.argmax())
print(
    f"the draft model's likeliest token is kept with probability {p_sea[guess]:.3f}, "
    f"a drawn one with {kept.sum():.3f}"
)
print(f"the best guess that there is would be kept with probability {p_sea.max():.3f}")

# %% [markdown]
# ## Acceptance and temperature
#
# How much is kept on real text? Σ min(p, q) can be computed at every position of a text without drawing anything: one pass
# of each model. Two texts, both written by the target at temperature 0: a little program and the sentence about the sea.


# %%
@torch.inference_mode()
def logits_along(request, most=40):
    """Logits of both models along the target's own answer, [positions, vocab] each."""
    ids = target.encode(request)
    answer = ms.generate(target, ids, max_new_tokens=most).tokens
    both = torch.cat((ids, answer))[None, :-1]
    return [
        model(both, model.new_cache(1, both.shape[1]))[0, len(ids) - 1 :].double()
        for model in (target.model, draft)
    ]


def acceptance(logits, sampling):
    """Σ min(p, q) at each position."""
    p, q_small = sampling(logits[0]), sampling(logits[1][:, vocabulary])
    return torch.minimum(p, torch.zeros_like(p).index_copy(1, vocabulary, q_small)).sum(1)


texts = {
    "program": logits_along("Write a Python function that adds two numbers."),
    "sea": logits_along("Write one sentence about the sea."),
}

# %%
temperatures = (0.3, 0.7, 1.0, 1.5)
curves = {}
for name, logits in texts.items():
    for top_p in (1.0, 0.9):
        label = name if top_p == 1 else f"{name}, top-p {top_p}"
        curves[label] = {
            t: float(acceptance(logits, ms.Sampling(t, top_p=top_p)).mean()) for t in temperatures
        }
show(
    plots.lines(
        curves,
        "Acceptance against temperature, mean over the positions of a text",
        "temperature",
        "Σ min(p, q)",
    ),
    alt="Four lines. On the program acceptance falls as the temperature rises; "
    "on the sentence it hardly moves. Top-p adds little.",
    numbers="\n".join(
        f"{name}: " + ", ".join(f"{t} {y:.2f}" for t, y in curve.items())
        for name, curve in curves.items()
    ),
)

# %% [markdown]
# The kind of text matters more than the temperature. And the temperature has no single effect, because it sharpens *both*
# distributions. Where the two models agree on the likeliest token, a low temperature takes both towards certainty, and
# acceptance rises. Where they disagree, the same certainty drives them apart.

# %%
for name, logits in texts.items():
    low, high = (acceptance(logits, ms.Sampling(t)) for t in (0.3, 1.5))
    agree = logits[0].argmax(1) == vocabulary[logits[1][:, vocabulary].argmax(1)]
    for word, where in {"agree": agree, "disagree": ~agree}.items():
        print(f"{name}: best tokens {word} at {int(where.sum())} positions;", end=" ")
        print(
            f"acceptance {high[where].mean():.2f} at temperature 1.5, "
            f"{low[where].mean():.2f} at 0.3"
        )

# %% [markdown]
# So a single number, "the acceptance of this draft model", does not exist. It is an average over positions at which almost
# everything is kept and positions at which almost nothing is; what kind of text you write decides how many there are of
# each. Whoever quotes an acceptance should say on which text, and at which temperature. What a given acceptance gains in
# passes is the sum of notebook 02, with a rate for each position.
#
# (The texts stay the same here while the temperature changes, so that only p and q move. Text that is *written* at a high
# temperature is also less predictable. And this draft model is weak: at temperature 1 it has 0.57 of its guesses kept on
# the program, 0.38 on the sentence.)
#
# ## Summary
#
# - **The rule:** keep x ~ q with probability min(1, p(x) / q(x)); otherwise draw from the residual distribution, max(0, p −
#   q) over its sum. The emitted token follows p, whatever q is.
# - **The acceptance** is Σ min(p, q) = 1 − total variation distance, and no rule that emits p keeps more.
# - **A chain** stops at the first rejection; it needs a fresh random number at each position; if all guesses stay, the
#   bonus token comes from p.
# - **q must be honest:** what the dice were rolled with. A certain guess has a q of 1, which amounts to drawing from p and
#   looking.
# - **Counting beats sampling:** a rule is piecewise constant in its uniform numbers, so its law is a finite sum. What has
#   no volume is injected.
# - **A test on samples** is worth as much as its power, and a sentence compared with a sentence is worth nothing.
#
# ## Questions
#
# **1.** A colleague says: "After a rejection I simply sample from p, it is the target's distribution after all. I looked at
# a hundred texts and they are fine." What do you answer?
#
# <details><summary>Answer</summary>
#
# Tokens with q > p have already received all of p by the first step; a second draw from p gives them more. On our three
# tokens the law moves by 0.06. A hundred texts cannot show this: `power(100, 0.06, cells=3)` is 0.01, and reading shows
# less than a test. Enumerate the rule instead.
#
# </details>
#
# **2.** The draft model guesses only 8,192 of 49,152 ids. Why can the text still contain all the others?
#
# <details><summary>Answer</summary>
#
# Such an id has q = 0, so p − q = p: it is in the residual distribution with all of its probability. It comes out after a
# rejection (or as the bonus token), and exactly as often as the target wants. What it costs is acceptance: p outside the
# list is mass that min(p, q) never gets.
#
# </details>
#
# **3.** Top-k keeps 4 tokens for the target and for the draft model. Can a token be emitted that is among the draft model's
# four, but not among the target's?
#
# <details><summary>Answer</summary>
#
# No. It has p = 0, so `u * q < p` is false for every u, 0 included, and max(0, p − q) is 0 as well. It is never kept and
# never drawn.
#
# </details>
#
# ## Change it
#
# - Give `right` a mistake of your own and look at its law. For example: use `u_accept` again for the second draw, to save a
#   random number. Can you find a mistake that `law` cannot tell from the right rule? (There is one above, in the section on p = 0.)
# - In `speculate_sampled`, use `one_number` in place of `accepted`, and read the text. Do you notice?
# - Let the draft model sample at another temperature than the target (change `sampling` in `draft_tokens` only). The law
#   stays; how does the number of passes change? (Take the mean over eight seeds: one seed misleads.)
#
# **Exercise:** [ex03](../exercises/ex03_rejection_sampling.ipynb), the rule for a ragged batch, and for siblings; each task is checked at once.
#
# **Next:** [04, n-gram lookup](04_ngram_lookup.ipynb). The cheapest draft of all: no model, no dice, only the text so far.
