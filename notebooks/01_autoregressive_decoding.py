# %% [markdown]
# # 01 · Autoregressive decoding, and what a pass costs
#
# A language model writes one token at a time. For each token it makes one pass, and for each pass it reads all of its weights.
# Before we try to need fewer passes, we look closely at one: what goes in, what comes out, what is kept, and what it costs.
#
# **You will be able to** turn logits into a token, greedily or by sampling; build a key-value cache and prove that it changes
# nothing; tell prefill from decoding; compute the memory of a cache; measure the *cost curve* of a pass and read from it whether
# speculative decoding can pay on your machine.
#
# **You should know** PyTorch tensors, and roughly what attention does. **Time:** 45 minutes, of which one is computing.
# **Needs:** a CPU. With a GPU, change `"cpu"` to `"cuda"` in the two calls of `ms.load`.

# %%
import math
import statistics
import time

import torch
from torch.utils.flop_counter import FlopCounterMode

import minispec as ms
from minispec import bench, plots
from minispec.notebook import here, show

torch.set_num_threads(min(2, torch.get_num_threads()))  # two at most: the same numbers everywhere

# %% [markdown]
# What stands between ⟦ and ⟧ in an output is a reading of the machine that ran the cell. Yours will differ. All else in an output
# is the same everywhere.

# %%
lm = ms.load("smollm2-135m", device="cpu", dtype="float32")
model, tokenizer, device, config = lm.model, lm.tokenizer, lm.model.device, lm.model.config
parameters = sum(weight.numel() for weight in model.parameters())
print(
    f"{parameters:,} parameters in {config.num_hidden_layers} layers; "
    f"a vocabulary of {config.vocab_size:,} tokens"
)
print("computed on:", here(device))

# %% [markdown]
# ## From text to logits
#
# The model does not see text. A tokenizer cuts the text into pieces from a fixed vocabulary; each piece has a number, its *id*.

# %%
text = "To make tea, first boil the"
ids = torch.tensor(tokenizer.encode(text), device=device)  # [time]
print("ids:   ", ids.tolist())
print("tokens:", [tokenizer.decode([token]) for token in ids.tolist()])

# %% [markdown]
# One pass of the model takes ids `[batch, time]` and returns *logits* `[batch, time, vocab]`: at every position one number for every
# token of the vocabulary. The second argument is a cache. We come to it below; for now we give an empty one each time.

# %%
logits = model(ids[None], model.new_cache(1, len(ids)))
print("logits:", list(logits.shape))

# %% [markdown]
# The logits at a position are about the **next** token. Softmax makes probabilities of them. These are the five likeliest tokens after
# the whole text:


# %%
def word(token):
    return repr(tokenizer.decode([token]))


row = logits[0, -1].cpu()  # [vocab]: the last position
top = row.softmax(-1).topk(5)
for probability, token in zip(top.values.tolist(), top.indices.tolist()):
    print(f"{probability:.3f}  {word(token)}")

# %% [markdown]
# We looked at the last position only, and that is what decoding does. But the pass answered at *every* position: what would come after
# the first token, after the first two, and so on.

# %%
for token, best in zip(ids.tolist(), logits[0].argmax(-1).tolist()):
    print(f"after {word(token):>9} the likeliest token is {word(best)}")

# %% [markdown]
# Keep this in mind. Six of the seven answers were thrown away, because we knew already what comes next. Speculative decoding lives on
# exactly these answers: if the tail of the text is a *guess*, they say whether the model would have written it.
#
# ## Writing, the slow way
#
# To write, choose a token from the last row, append it, and start again. `choose` is any function from a row of logits to a token. The
# simplest takes the likeliest: **greedy** decoding.


# %%
def write_slowly(ids, count, choose):
    """`count` new tokens, and how many tokens the model read: before each, all of the text."""
    text, read = ids.tolist(), 0
    for _ in range(count):
        logits = model(torch.tensor([text], device=device), model.new_cache(1, len(text)))
        read += len(text)
        text.append(choose(logits[0, -1].cpu()))  # of [1, time, vocab], the last row
    return text[len(ids) :], read


def greedy(row):
    return row.argmax().item()


# %%
slow, read_slowly = write_slowly(ids, 24, greedy)
print(text + tokenizer.decode(slow))
print(f"{len(slow)} tokens written in {len(slow)} passes, {read_slowly} tokens read")
assert read_slowly == sum(range(len(ids), len(ids) + 24))

# %% [markdown]
# Each token depends on the one before it, so the passes cannot run side by side. Hence *autoregressive*: the model reads what it wrote.
#
# ## Sampling: three knobs on one row
#
# Greedy decoding always writes the same. To vary, **draw** the token from a distribution. Three knobs shape that distribution, each a
# line or two on the row of logits:
#
# - **Temperature** divides the logits. Below 1 the likely tokens gain; above 1 the unlikely ones do; towards 0 only the likeliest is left.
# - **Top-k** keeps the *k* likeliest tokens.
# - **Top-p** keeps the likeliest tokens until together they have at least probability *p*. So it keeps few where the model is sure and
#   many where it is not.
#
# To remove a token, set its logit to −∞. Softmax then gives it 0 and scales the others up.


# %%
def keep_top_k(row, k):
    kth = row.topk(k).values[-1]
    return row.masked_fill(row < kth, -math.inf)


def keep_top_p(row, p):
    probabilities, order = row.softmax(-1).sort(descending=True)
    likelier = probabilities.cumsum(-1) - probabilities  # the probability of all before it
    return row.index_fill(0, order[likelier >= p], -math.inf)


def distribution(row, temperature=1.0, top_k=None, top_p=1.0):
    """The three knobs in their usual order, then softmax: [vocab] -> [vocab]."""
    row = row / temperature
    row = keep_top_k(row, top_k) if top_k else row
    row = keep_top_p(row, top_p) if top_p < 1 else row
    return row.softmax(-1)


# %% [markdown]
# `ms.Sampling` does the same to a row or to a whole batch of rows, and treats temperature 0 as greedy.

# %%
for settings in (
    {"temperature": 0.5},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
):
    mine, theirs = distribution(row, **settings), ms.Sampling(**settings)(row)
    print(
        f"{settings}: {int((mine > 0).sum()):,} tokens left; "
        f"equal: {torch.allclose(mine, theirs, atol=1e-6)}"
    )
print("temperature 0 is greedy:", ms.Sampling(temperature=0)(row).argmax().item() == greedy(row))

# %% [markdown]
# What the knobs do to our row, token by token:

# %%
names = [tokenizer.decode([token]).strip() for token in row.topk(8).indices.tolist()]
knobs = {
    "as it is": distribution(row),
    "temperature 0.5": distribution(row, temperature=0.5),
    "top_k 3": distribution(row, top_k=3),
    "top_p 0.5": distribution(row, top_p=0.5),
}
series = {label: p[row.topk(8).indices].tolist() for label, p in knobs.items()}
show(
    plots.bars(
        series,
        names,
        "The eight likeliest tokens after “To make tea, first boil the”",
        "probability",
    ),
    alt="Bars over the eight likeliest next tokens. A temperature of 0.5 raises the first, "
    "'water', far above the others and lowers all from the third on. top_k 3 keeps three tokens, "
    "top_p 0.5 keeps six; both raise what they keep in equal proportion.",
    numbers="\n".join(
        f"{label:>15}: " + ", ".join(f"{p:.2f}" for p in values) for label, values in series.items()
    ),
)

# %% [markdown]
# Compare the shapes. Temperature changes the *ratios* between tokens. Top-k and top-p keep the ratios and cut the tail.
#
# Now draw. Lay the probabilities end to end on a line from 0 to 1, throw a uniform number `u`, and take the token on whose piece it
# falls. The randomness comes from a generator with a seed, so a text can be repeated.


# %%
def sampler(seed, **settings):
    """A `choose` for `write_slowly` that draws."""
    generator = torch.Generator().manual_seed(seed)

    def choose(row):
        u = torch.rand(1, generator=generator)
        return torch.searchsorted(distribution(row, **settings).cumsum(-1), u, right=True).item()

    return choose


# %%
choose = sampler(seed=4, temperature=0.5)
draws = torch.tensor([choose(row) for _ in range(1000)])
for token in row.topk(3).indices.tolist():
    probability, share = knobs["temperature 0.5"][token], (draws == token).float().mean()
    print(f"{word(token)}: probability {probability:.2f}, share of 1,000 draws {share:.2f}")

# %% [markdown]
# The package uses its seed in the same way, one number a token. So with the same seed, our loop and `ms.generate` write the same text.

# %%
settings = {"temperature": 0.8, "top_p": 0.9}
for seed in (1, 2):
    mine, _ = write_slowly(ids, 12, sampler(seed, **settings))
    theirs = ms.generate(
        lm, ids, max_new_tokens=12, sampling=ms.Sampling(**settings), seed=seed
    ).tokens.tolist()
    print(f"seed {seed}: {tokenizer.decode(mine)!r}; the same tokens: {mine == theirs}")
    assert mine == theirs

# %% [markdown]
# One corner our sampler leaves open: by rounding, a cumulative sum may end just below 1, and a `u` above it would fall off the line.
# `draw` in `minispec/sampling.py` closes it.
#
# ## The key-value cache, from nothing
#
# `write_slowly` read the whole text again for every token. Is that needed? Look at one attention layer with one head, with random
# weights, on six tokens, each a vector of width 8.

# %%
width, generator = 8, torch.Generator().manual_seed(0)
to_query, to_key, to_value = torch.randn(3, width, width, dtype=torch.float64, generator=generator)
x = torch.randn(6, width, dtype=torch.float64, generator=generator)  # [time, width]


def attend(x):
    """Each token mixes its value and those of all before it: [time, width] -> [time, width]."""
    queries, keys, values = x @ to_query, x @ to_key, x @ to_value
    scores = queries @ keys.T / math.sqrt(width)  # [time, time]
    later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)  # no token sees those after it
    return scores.masked_fill(later, -math.inf).softmax(-1) @ values


# %% [markdown]
# Ask for each of the three products how long it is needed.
#
# - A **query** is used for its own token's row, and never again.
# - A **key** and a **value** are used by their own token and by every later one. And they do not change when the text grows: no token
#   sees those after it, so what stands before is computed without knowing what follows. The same holds in layer upon layer.
#
# So keep keys and values; compute everything else for the new token only.

# %%
keys, values = [], []  # the cache


def attend_from_cache(one):
    """The same for one new token [width], given that those before it were read."""
    keys.append(one @ to_key)
    values.append(one @ to_value)
    scores = torch.stack(keys) @ (one @ to_query) / math.sqrt(width)  # [time]
    return scores.softmax(-1) @ torch.stack(values)


one_by_one = torch.stack([attend_from_cache(one) for one in x])
print("largest difference below 1e-12:", ((one_by_one - attend(x)).abs().max() < 1e-12).item())

# %% [markdown]
# No mask is left: what a token may not see is not there yet. That is the whole cache, for one layer.
#
# The package's model has such a cache for each layer, and it is an argument: `model(tokens, cache)` reads the new tokens, sees all that
# the cache holds, and the cache **grows**. Read our text in one pass, then token by token:

# %%
whole = model(ids[None], model.new_cache(1, len(ids)))[0]  # [time, vocab]
cache, pieces, grown = model.new_cache(1, len(ids)), [], []
for i in range(len(ids)):
    pieces.append(model(ids[None, i : i + 1], cache)[0])
    grown += cache.lengths
print("tokens in the cache:", grown)
print(
    "largest difference of the logits below 1e-3:",
    ((torch.cat(pieces) - whole).abs().max() < 1e-3).item(),
)

# %% [markdown]
# In exact arithmetic the difference would be zero. Sums of another shape are added in another order, and float32 rounds: so the logits
# agree to rounding. Now write with the cache.


# %%
def write(ids, count, choose):
    """As `write_slowly`, but the model reads each token once."""
    cache, new, written, read = model.new_cache(1, len(ids) + count), ids.tolist(), [], 0
    for _ in range(count):
        logits = model(torch.tensor([new], device=device), cache)
        read += len(new)
        new = [choose(logits[0, -1].cpu())]
        written += new
    return written, read


fast, read_once = write(ids, 24, greedy)
package = ms.generate(lm, ids, max_new_tokens=24).tokens.tolist()
print("the same tokens without a cache, with one, and from the package:", slow == fast == package)
print(f"tokens read: {read_slowly} without a cache, {read_once} with one")
assert slow == fast == package and read_once == len(ids) + 23

# %% [markdown]
# `ms.generate` is this loop with the corners finished: it stops at a token that ends the text, at a stop string or at a limit, and it
# notes what each pass cost. (`ms.generate_batch` does it for several texts at once.)
#
# Note a convention. When `write` returns, its last token is decided but not yet read. Such a token is **pending**. Between passes the
# cache holds all tokens but the pending one.
#
# ## Positions, mask and cache are arguments
#
# A model that only ever appends one token can hide these three inside. Here they are arguments, because speculation needs to set them:
#
# - **The cache:** a wrong guess that was read must be taken back.
# - **The positions:** two rival guesses for the same place need the same position, although they lie in different slots of the cache.
# - **The mask:** rival guesses must not see each other.
#
# Taking back first. A row of the cache has a length, and what lies beyond it is never read. So to rewind is to set an integer. Let the
# model read three wrong tokens, rewind, and go on as if nothing had happened.

# %%
water, kettle = tokenizer.encode(" water kettle")
wrong = tokenizer.encode(" purple bicycle tomorrow")
clean, used = model.new_cache(1, 32), model.new_cache(1, 32)
for cache in (clean, used):
    model(ids[None], cache)
model(torch.tensor([wrong], device=device), used)
print("after three wrong tokens:", used.lengths)
used.lengths = [len(ids)]
print("after rewinding:         ", used.lengths)

# %%
expected = model(torch.tensor([[water]], device=device), clean)[0]
got = model(torch.tensor([[water]], device=device), used)[0]
print("the next logits agree to 1e-3:", ((got - expected).abs().max() < 1e-3).item())

# %% [markdown]
# Now two rivals in one pass: " water" and " kettle", both for the place after "boil the". Each must get the logits that it would get
# alone. Row `i` of the mask says which of the new tokens the token `i` sees; all of them see what the cache holds.

# %%
both, alone = model.new_cache(1, 32), model.new_cache(1, 32)
for cache in (both, alone):
    model(ids[None], cache)
positions = torch.tensor([[len(ids), len(ids)]], device=device)  # the same place
mask = torch.tensor([[[True, False], [False, True]]], device=device)  # each sees itself only
# logits, [2, vocab]
together = model(torch.tensor([[water, kettle]], device=device), both, positions, mask)[0]

# %%
for i, token in enumerate((water, kettle)):
    alone.lengths = [len(ids)]
    own = model(torch.tensor([[token]], device=device), alone)[0, 0]
    agrees = ((together[i] - own).abs().max() < 1e-3).item()
    likeliest = ", ".join(map(word, own.topk(3).indices.tolist()))
    print(f"after {word(token)}: {likeliest}; together as alone, to 1e-3: {agrees}")

# %% [markdown]
# One pass, two possible futures. A whole *tree* of guesses works in the same way.
#
# ## Prefill and decoding
#
# With a cache, a request has two phases. **Prefill** reads the prompt, all its tokens in one pass, and gives the first new token.
# **Decoding** then makes one pass for each further token. They are timed apart: *time to first token*, and *time per output token*.

# %%
prompt = lm.encode("Why do leaves change colour in autumn?")  # the chat template adds some tokens
generation = ms.generate(lm, prompt, max_new_tokens=48)
trace = generation.trace
print(
    f"{len(generation.tokens)} new tokens: one pass over the {len(prompt)} of the prompt, "
    f"{len(trace.rounds)} passes over one"
)
print("time to first token:  ", here(f"{1e3 * trace.ttft_s:.0f} ms"))
print("time per output token:", here(f"{1e3 * trace.tpot_s:.0f} ms"))
print("prefill, for each token read:", here(f"{1e3 * trace.ttft_s / len(prompt):.1f} ms"))
assert len(trace.rounds) + 1 == len(generation.tokens)

# %% [markdown]
# Compare the last two numbers. Both phases run the same layers with the same weights, yet a token read in prefill need not cost what a
# token written in decoding costs. The rest of this notebook finds out why.
#
# First, what the cache saves. We time the pass that gives the next token, for texts of several lengths: once over the whole text, once
# over its last token, after a cache of all before it. The two take turns, so that a machine that grows slower or faster does so for
# both.


# %%
@torch.inference_mode()
def seconds(model, tokens, cache):
    """Clock time of one pass. To ask for a number waits until it is there, on a GPU too."""
    start = time.perf_counter()
    model(tokens, cache)[0, -1, 0].item()
    return time.perf_counter() - start


# %%
lengths = (16, 64, 128, 256, 384)
some_text = torch.arange(max(lengths), device=device)[None]  # any tokens: only the time counts
cache = model.new_cache(1, max(lengths))
times = {"without a cache": {n: [] for n in lengths}, "with a cache": {n: [] for n in lengths}}
for n in lengths * 3:
    cache.lengths = [0]
    times["without a cache"][n].append(seconds(model, some_text[:, :n], cache))
    cache.lengths = [n - 1]  # all but the last token
    times["with a cache"][n].append(seconds(model, some_text[:, n - 1 : n], cache))
medians = {
    label: {n: 1e3 * statistics.median(found) for n, found in line.items()}
    for label, line in times.items()
}

# %%
show(
    plots.lines(
        medians,
        "Time of the next token, against the length of the text",
        "tokens of text",
        "milliseconds",
    ),
    alt="Two lines: milliseconds for the next token against the length of the text so far, "
    "once without a cache and once with one.",
    numbers="\n".join(
        f"{label}, ms: "
        + ", ".join(f"{n}: {here(f'{time_ms:.0f}')}" for n, time_ms in line.items())
        for label, line in medians.items()
    ),
)

# %% [markdown]
# Without a cache the number of tokens in the pass grows with the text; with one it is always one. What still grows with a cache is
# attention: the one query is compared with every key that is kept. At 384 tokens the kept keys and values are 18 MB, beside 538 MB of
# weights: too little to see here.
#
# ## What a cache weighs
#
# For each token, each layer keeps a key and a value for each key-value head.


# %%
def bytes_a_token(layers, kv_heads, head_dim, bytes_each):
    return 2 * layers * kv_heads * head_dim * bytes_each  # 2: a key and a value


shape = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
print(f"layers, key-value heads, head width: {shape}")
print(
    f"float32: {bytes_a_token(*shape, 4):,} bytes a token; bfloat16: {bytes_a_token(*shape, 2):,}"
)
# a slot more than asked for: padding goes there
assert model.new_cache(1, 999).nbytes == 1000 * bytes_a_token(*shape, 4)

# %% [markdown]
# This model has 9 query heads, but only 3 key-value heads: three queries share one (grouped-query attention, Ainslie et al. 2023).
# With a key and a value for each query head, the cache would weigh three times as much.
#
# A what-if on a larger model, Llama 3.1 8B. Nothing is downloaded; we only need its shape (Grattafiori et al. 2024, "The Llama 3 Herd
# of Models", table 3; the vocabulary as in its published configuration).

# %%
layers, hidden, inner, heads, kv_heads, vocabulary = 32, 4096, 14_336, 32, 8, 128_256
# queries and output; keys and values
attention = 2 * hidden * hidden + 2 * hidden * hidden * kv_heads // heads
# embedding and output matrix; blocks
large = 2 * vocabulary * hidden + layers * (attention + 3 * hidden * inner)
each = bytes_a_token(layers, kv_heads, hidden // heads, 2)
print(f"weights in bfloat16: {large / 1e9:.2f} billion, {2 * large / 1e9:.1f} GB")
print(f"cache: {each:,} bytes a token")
print(
    f"  a text of 8,192 tokens: {8192 * each / 1e9:.2f} GB; "
    f"32 of them: {32 * 8192 * each / 1e9:.1f} GB"
)

# %% [markdown]
# For one text the cache is small beside the weights; for many long ones it is the larger part. So with one text at a time, what there
# is to read is mostly weights. That is the case we look at next.
#
# ## Why decoding is slow
#
# A pass multiplies by every weight matrix once, whatever the number of tokens in it. So it must *read* every weight once. How much does
# it *compute*? A multiplication and an addition for each weight and each token, by rule of thumb: 2 · parameters operations a token. Do
# not believe it; PyTorch can count.

# %%
for n in (1, 8):
    with FlopCounterMode(display=False) as counter:
        model(some_text[:, :n], model.new_cache(1, n))
    rule, counted = 2 * parameters * n, counter.get_total_flops()
    print(
        f"pass over {n}: the rule says {rule / 1e6:,.0f} million; "
        f"counted: {counted / rule:.2f} times that"
    )
weight_bytes = sum(weight.nbytes for weight in model.parameters())
print(f"weights to read in either: {weight_bytes / 1e6:,.0f} MB in float32")

# %% [markdown]
# (The embedding is in both counts once: the same matrix is looked up at the entrance and multiplied by at the exit.)
#
# Eight tokens: eight times the arithmetic, the same weights to read. Now divide by time. We have measured a pass over one token (after
# 383 others) and one over all 384.

# %%
one, many = medians["with a cache"][384] / 1e3, medians["without a cache"][384] / 1e3
print(f"a pass over one token: {here(f'{1e3 * one:.0f} ms')}")
print(f"  to read the weights in that time takes {here(f'{weight_bytes / one / 1e9:.1f} GB/s')}")
print(
    f"  to compute in that time takes          {here(f'{2 * parameters / one / 1e9:.0f} GFLOP/s')}"
)
print(
    "in a pass over 384 this machine reached  "
    f"{here(f'{2 * parameters * 384 / many / 1e9:.0f} GFLOP/s')}"
)

# %% [markdown]
# The last two lines are the same machine, the same weights, the same kind of arithmetic. If the last rate is far above the one before
# it, then in a pass over one token the arithmetic units mostly wait. For what? Let us time the reading alone: go through all
# weights once and do the least one can, add them up. It takes turns with a pass over one token.


# %%
def reading():
    start = time.perf_counter()
    torch.stack([weight.sum() for weight in model.parameters()]).sum().item()
    return time.perf_counter() - start


turns = []
for _ in range(9):
    cache.lengths = [0]
    turns.append((reading(), seconds(model, some_text[:, :1], cache)))
read_s, pass_s = (statistics.median(found) for found in zip(*turns))

# %%
token_s = many / 384
print(
    f"reading all weights: {here(f'{1e3 * read_s:.0f} ms')}, "
    f"{here(f'{read_s / pass_s:.0%}')} of a pass over one token"
)
print(f"arithmetic for one token, when there is much of it: {here(f'{1e3 * token_s:.1f} ms')}")
print(f"so reading takes as long as the arithmetic for {here(f'{read_s / token_s:.0f}')} tokens")

# %% [markdown]
# That last number is the slack. Roughly so many tokens could ride in one pass before their arithmetic takes longer than the reading. A
# pass over one token uses the slack for nothing. Speculative decoding fills it with guesses.
#
# It is an estimate, and a rough one: small operations that are neither (norms, additions, the calls themselves) take time too, and a
# product with few rows does not reach the rate of one with many. So measure.
#
# ## The cost curve of a pass
#
# **The** figure of this course: the time of one pass over 1, 2, 4, 8, 16, 32 tokens, after a text of 200. We draw it in float32 and in
# the dtype that `ms.load` picks where none is named: bfloat16 where the machine has instructions for it. Whether it pays, the figure
# shows.

# %%
models = {"float32": model}
picked = ms.load("smollm2-135m", device="cpu").model
models[str(picked.dtype).removeprefix("torch.")] = picked
print("the dtype picked here:", here(picked.dtype))
print(
    here(
        "so there are two curves"
        if len(models) == 2
        else "so there is one curve: the second would be the same"
    )
)

# %% [markdown]
# Measuring is its own craft, and four habits matter here. Every size and every model **takes turns**. The **first** turn is thrown away:
# it pays for things that happen once. The rest gives a **median**, which one slow pass cannot move. And the cache is **rewound** before
# each pass, so that all see the same 200 tokens.


# %%
def cost_curves(models, sizes, turns=8, context=200):
    """{label: {tokens: median seconds of a pass over so many}}."""
    text = torch.arange(context + max(sizes), device=device)[None]
    caches = {label: each.new_cache(1, context + max(sizes)) for label, each in models.items()}
    times = {label: {size: [] for size in sizes} for label in models}
    for label, each in models.items():
        seconds(each, text[:, :context], caches[label])
    for size in [*sizes] * (turns + 1):
        for label, each in models.items():
            caches[label].lengths = [context]
            times[label][size].append(seconds(each, text[:, :size], caches[label]))
    return {
        label: {size: statistics.median(times[label][size][1:]) for size in sizes}
        for label in models
    }


curves = cost_curves(models, (1, 2, 4, 8, 16, 32))

# %%
show(
    plots.cost_curve(curves),
    alt="Cost curve: what a pass costs, in passes over one token, against the tokens in it from 1 "
    "to 32. A line for float32 and, where another dtype is picked, one for that; dotted: a level "
    "line at one, and a line where n tokens cost as much as n passes.",
    numbers=here(
        "; ".join(
            f"{label}, ms: " + ", ".join(f"{size}: {1e3 * s:.0f}" for size, s in curve.items())
            for label, curve in curves.items()
        )
    ),
)

# %% [markdown]
# How to read it:
#
# - Where the curve is **flat**, a token more in the pass is nearly free, and so is checking a guess.
# - Where it runs **along the dotted diagonal**, a pass over *n* tokens costs as much as *n* passes. There is nothing to win there,
#   however good the guesses are.
# - In between, it depends on how many guesses are right.
#
# Compare with the slack estimated above. The estimate assumed that arithmetic on a few rows is as fast as on 384, and that it hides behind
# the reading; the curve shows what is left of that.
#
# Do not expect a smooth line. A library may multiply one row, a few rows and many rows in different ways. And each line counts in
# passes over one token of its *own* dtype; how long those take stands in the legend.
#
# Make that exact. A pass over the pending token and *n* guesses costs `price = time(1 + n) / time(1)` plain passes. It writes one token
# and as many more as guesses were accepted. In the same time, plain decoding would have written `price` tokens. So speculation wins if
#
# $$1 + \text{accepted} > \text{price}, \quad\text{that is,}\quad \text{accepted} > \text{price} - 1.$$
#
# What follows is a verdict on your machine, from its curve in the dtype that was picked. (The guesses count as free here; a drafter that takes
# time must be right more often. Notebook 02 adds it.)

# %%
curve = list(curves.values())[-1]
for size, guesses in ((4, "three"), (8, "seven"), (16, "fifteen")):
    price = curve[size] / curve[1]
    print(f"a pass over {size} tokens costs {here(f'{price:.2f}')} passes over one:")
    needed = here(f"{max(0, price - 1):.2f}")
    print(f"  guessing {guesses} tokens pays if more than {needed} of them are accepted on average")
flat = max(size for size in curve if curve[size] <= 1.25 * curve[1])
print(
    "the longest pass that costs at most a quarter more than a pass over one "
    f"holds {here(flat)} tokens"
)

# %% [markdown]
# The package measures the curve in the same way with more care: on a GPU it reads the device's own clock, and
# unless told otherwise it repeats more often.
# `minispec bench` prints it under its tables, since no speedup can be judged without it.

# %%
again = bench.cost_curve(lm, (1, 4, 8), repeats=8)
for size in again:
    mine, theirs = curves["float32"][size] / curves["float32"][1], again[size] / again[1]
    print(
        f"float32, pass over {size}: ours {here(f'{mine:.2f}')}, "
        f"the package's {here(f'{theirs:.2f}')} passes over one"
    )

# %% [markdown]
# ## A hard case and an easy one
#
# How large can the slack be? One more what-if by counting: the same Llama 3.1 8B in bfloat16, on a GPU that reads 3.35 TB and computes 989
# TFLOP a second (NVIDIA's data sheet of the H100 SXM; bfloat16, without sparsity).

# %%
bandwidth, arithmetic = 3.35e12, 989e12  # bytes and operations a second
read_large, compute_large = 2 * large / bandwidth, 2 * large / arithmetic
print(
    f"8B on that GPU: reading {1e3 * read_large:.1f} ms, "
    f"arithmetic for one token {1e3 * compute_large:.3f} ms"
)
print(f"  reading takes as long as the arithmetic for {read_large / compute_large:.0f} tokens")
print(f"135M here, measured above: for {here(f'{read_s / token_s:.0f}')} tokens")

# %% [markdown]
# (The size of the model has cancelled: in bfloat16 the slack is the machine's arithmetic divided by its bandwidth. Size matters in another
# way: in a small model the many little operations weigh more.)
#
# The large model on the GPU, one text at a time, is the **easy** case. Its pass is bound by memory: the arithmetic of some hundreds of
# tokens fits beside the reading, and a handful of guesses disappears in it. Chen et al. (2023, abstract) rest on this: to score a short
# continuation in parallel takes a large model about as long as to sample a single token. Leviathan et al. (2023, section 1) start from
# the same observation: what limits large models is often memory bandwidth and communication, not arithmetic.
#
# The 135-million model on a small CPU is a **hard** case. A CPU computes little for each byte that it reads (if you run on one,
# compare the last two lines), so a pass over several tokens is not free: the arithmetic takes time, not only the reading. And the
# products are so small that the many little operations around them weigh more (the README gives their share on one machine, under "How
# fast is plain decoding here?"). A hard case is a good teacher: there one does not win by guessing much, only by guessing
# well, and the verdict above says how well.
#
# The slack is also what *batches* live on. With many texts in one pass, the weights are read once for all of them, and guesses compete
# for the same slack.
#
# ## Summary
#
# - A pass turns ids into logits at every position. Decoding uses the last row; temperature, top-k and top-p shape one distribution from
#   it, and `ms.Sampling` is that function.
# - The cache keeps keys and values, which never change. It changes the number of tokens read, not the tokens written. Its length is an
#   integer, and setting it forgets.
# - Prefill reads many tokens in a pass, decoding one. Either reads all weights once.
# - The cost curve says what guesses cost to check. Guessing *n* pays if more than `time(1 + n) / time(1) − 1` are accepted.
#
# ## Questions
#
# **1.** The keys and values of the text stay valid when a token is appended. Would they if a token were put at the *front*?
#
# <details><summary>Answer</summary>
#
# No. Every later token sees the new one, so its hidden states change from the second layer on, and with them its keys and values. Its
# position changes too. A cache can be cut or extended at its end only. That is enough for speculation, whose guesses lie at the end.
#
# </details>
#
# **2.** On some machine a pass over 8 tokens costs 3.2 passes over one. A drafter's guesses are accepted 2 at a time on average, out of
# 7. Is it worth it? And if the pass cost 2.5?
#
# <details><summary>Answer</summary>
#
# A round writes 3 tokens (two accepted, one of the model's own) in the time of 3.2: a loss. At 2.5 it writes 3 in the time of 2.5: a
# speedup of 1.2, less what drafting costs. With 3.2 one should guess fewer tokens: a later guess counts only if all before it were
# right, and a shorter pass is cheaper.
#
# </details>
#
# **3.** Quantising the weights to four bits divides the bytes to read by eight against float32. What does that do to the slack?
#
# <details><summary>Answer</summary>
#
# A pass over one token gets faster where reading is what it waits for. The arithmetic stays the same (or grows, since weights must be
# unpacked). So the arithmetic of fewer tokens fits beside the reading: the slack shrinks. Both gains are real, but they draw on the
# same account and do not multiply.
#
# </details>
#
# ## Change it
#
# - Time a pass over one token after 200 tokens and after 1,000, in turn (two caches, as in `cost_curves`). How many milliseconds more?
#   What must every token of a pass look through?
# - If the notebook used two threads, set `torch.set_num_threads(1)` (or, on a larger machine, more) and run from "The cost curve of a pass" on. Does the curve get flatter or
#   steeper? Threads add arithmetic; do they add as much bandwidth?
# - Write `min_p`, a fourth knob: keep the tokens whose probability is at least `min_p` times that of the likeliest. Add it to
#   `distribution`, and put it in place of `top_k 3` in the figure of bars.
#
# **Exercise:** [ex01](../exercises/ex01_autoregressive_decoding.ipynb), caches, draws, and a batch of rows that differ; each task is checked at once.
#
# **Next:** [02, greedy speculative decoding](02_greedy_speculative_decoding.ipynb). A small model guesses, the large one checks all guesses in one pass, and the text
# stays the same.
