# %% [markdown]
# # 08 · Batches and concurrency
#
# So far one text was written at a time. A server writes many at once, in one pass for all of them. Then two things want the same spare
# arithmetic: more texts, and more guesses. This notebook builds the batch, and finds out who should get it.
#
# **You will be able to** write a round for a batch whose rows accept different numbers of guesses; compute from a cost curve up to which
# batch guessing pays; say what a batch costs in memory and in idle rows; read the numbers of a server: queue, first token, throughput.
#
# **You should know** the cost curve of a pass and the key-value cache (notebook 01), the loop *draft, verify, accept* (02), n-gram lookup
# (04), and what a draft tree is (05, 06). Where the time of a single request goes is the matter of [07](07_where_the_time_goes.ipynb).
# **Time:** 45 minutes, of which two are computing. **Needs:** a CPU. With a GPU, change one line in the next cell.

# %%
import statistics
import time

import numpy as np
import torch

import minispec as ms
from minispec import plots, widgets
from minispec.audit import read_requests
from minispec.notebook import here, show

torch.set_num_threads(min(2, torch.get_num_threads()))  # two at most: the same numbers everywhere
device = "cpu"  # "cuda" if you have a GPU
target = ms.load("smollm2-135m", device=device, dtype="float32")
requests = {request["id"]: request for request in read_requests()}  # the package's 48 requests
names = ["rewrite-1", "chat-1", "explain-3"]
asked = [requests[name]["messages"] for name in names]
prompts = [target.encode(messages).tolist() for messages in asked]
for name, prompt, messages in zip(names, prompts, asked):
    print(f"{name:<10} {len(prompt):>3} tokens: {messages[-1]['content'][:60]!r} ...")

# %% [markdown]
# ## One pass for three texts
#
# A pass takes a rectangle of ids: a row a text. Three prompts of different length do not fill a rectangle, so the short ones are padded. In
# this package a padding is the id -1, and it stands on the **right**, behind the row's own tokens.


# %%
def rectangle(rows):
    """Rows of ids as one tensor [rows, longest]; -1 fills what is short."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[-1] * (width - len(row))] for row in rows], device=device)


print(rectangle([[11, 12, 13], [21], [31, 32]]))

# %% [markdown]
# The rows also have **histories** of different length. Say the caches of three rows hold 5, 2 and 4 tokens, and the rectangle above comes
# in. Each new token needs three answers, and each is worked out from its own row's length, never from another's:
#
# - Which **slot** of the cache takes its key and value? The first free one of its row.
# - Which **position** does it have in its text? For a chain the same number; in a tree, the row's length plus the node's depth.
# - Which slots may it **see**? All that its row holds, and itself. Not what lies behind: there may be leftovers of rejected guesses.

# %%
lengths, block = [5, 2, 4], rectangle([[11, 12, 13], [21], [31, 32]])
for row, length in enumerate(lengths):
    for i, token in enumerate(block[row].tolist()):
        at = length + i
        sees = "".join("#" if slot <= at else "." for slot in range(8))
        told = f"token {token}, slot and position {at}, sees {sees}"
        print(f"row {row}: {told if token >= 0 else 'padding'}")

# %% [markdown]
# Three rows, three staircases, each beginning at another place. The padding needs an answer too, since a rectangle has no holes: what it
# writes goes into one spare slot that nobody reads, and its logits are thrown away. What it costs we shall see.
#
# `KVCache.reserve` gives the same answers for any lengths, as two tensors. Afterwards each row has grown by its own number of tokens.

# %%
cache = ms.KVCache((1, 3, 1, 8, 1), torch.float32, torch.device("cpu"))  # eight slots a row
cache.lengths = lengths
slots, seen = cache.reserve(block.cpu(), None)
for row, i in (block.cpu() >= 0).nonzero().tolist():
    assert slots[row, i] == lengths[row] + i
    assert seen[row, i].tolist() == [slot <= lengths[row] + i for slot in range(8)]
print("slots:", slots.tolist(), "(8 is the spare one)")
print("lengths before:", lengths, " after:", cache.lengths)

# %% [markdown]
# ## Rows that accept different numbers
#
# Now a round. Every row drafts for itself, by lookup in its own text (notebook 04), and some rows draft nothing. One pass reads all pending
# tokens and all guesses. Then each row accepts as many as *it* may, and its cache is rewound to *its* length. That is all: `cache.lengths`
# is a list.


# %%
def look_up(text, most, sizes=(4, 3, 2)):
    """What followed the longest n-gram that ends `text` and stood in it before."""
    for n in sizes:
        for at in range(len(text) - n - 1, -1, -1):
            if text[at : at + n] == text[-n:]:
                return text[at + n : at + n + most]
    return []


def agreeing(draft, answers):
    """How many guesses from the left are what the target answers."""
    n = 0
    while n < len(draft) and draft[n] == answers[n]:
        n += 1
    return n


# %% [markdown]
# A row that has written enough feeds nothing more. It stays in the rectangle as a line of padding until the last row is done.


# %%
def block_of(text, room, count):
    """A row's part of the rectangle: its pending token, then its guesses; nothing without room."""
    return [text[-1], *look_up(text, min(count, room - 1))] if room else []


@torch.inference_mode()
def speculate_batch(prompts, most, count=4):
    """`most` tokens a row, also beyond the end; of each round (accepted, drafted) a row."""
    texts, ends = [[*prompt] for prompt in prompts], [len(prompt) + most for prompt in prompts]
    cache, log = target.model.new_cache(len(texts), max(ends)), []
    answers = target.model(rectangle(texts), cache).argmax(-1).tolist()  # prefill, all in one pass
    for text, row in zip(texts, answers):
        text.append(row[len(text) - 1])
    while any(blocks := [block_of(t, end - len(t), count) for t, end in zip(texts, ends)]):
        answers = target.model(rectangle(blocks), cache).argmax(-1).tolist()
        log.append([None] * len(texts))
        for r, (block, row) in enumerate(zip(blocks, answers)):
            if block:
                n = agreeing(block[1:], row)
                texts[r] += [*block[1 : 1 + n], row[n]]
                log[-1][r] = n, len(block) - 1
        cache.lengths = [len(text) - 1 for text in texts]  # of each row all but its pending token
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts)], log


# %%
written, log = speculate_batch(prompts, most=32)
for name, tokens in zip(names, written):
    print(f"{name:<10} {target.tokenizer.decode(tokens)[:75]!r} ...")
print("accepted of drafted, a column a row; a dash: the row has ended")
for number, round in enumerate(log[:14], 1):
    print(f"  round {number:>2}:  " + "".join(f"{r[0]}/{r[1]}  " if r else " -   " for r in round))

# %% [markdown]
# The columns do not care for each other: in one and the same pass one row accepts four guesses, another has none to offer. After a few
# rounds the texts are of quite different length.

# %%
grown = {}
for row in range(3):
    own = [1, *(r[row][0] + 1 for r in log if r[row])]
    grown[names[row]] = dict(enumerate(np.cumsum(own).tolist()))
show(
    plots.lines(grown, "Three rows of one batch", "round", "tokens written"),
    alt="Tokens written against the round, a line for each of three rows of one batch: they rise "
    "at different rates and reach the same height after different numbers of rounds.",
    numbers="rounds until a row has its 32 tokens: "
    + ", ".join(f"{name} {max(line)}" for name, line in grown.items()),
)

# %% [markdown]
# ## The same tokens as alone
#
# Is each row what it would be alone? In float32 at temperature 0 that must hold token by token, and so must the rounds: what was drafted
# depends on the row's own text only.

# %%
for row, prompt in enumerate(prompts):
    (alone,), rounds = speculate_batch([prompt], most=32)
    assert alone == written[row]
    assert [r[0] for r in rounds] == [r[row] for r in log if r[row] is not None]
print("each row wrote, round by round, what it writes alone: True")

# %% [markdown]
# `ms.generate_batch` is this loop with the corners finished: rows end at the end-of-text token or at a stop string, a row that has ended
# leaves the rectangle at once, drafts may be trees, and each row rolls its own dice. Plain decoding and three drafters, in a batch and one
# by one:

# %%
drafters = {
    "plain": None,
    "n-gram": ms.NGram(num_tokens=4),
    "draft model": ms.load_drafter("draft", target),
    "eagle, dynamic tree": ms.load_drafter("eagle", target),
}
for name, drafter in drafters.items():
    batch = ms.generate_batch(target, asked, drafter, max_new_tokens=20)
    alone = [ms.generate(target, text, drafter, max_new_tokens=20) for text in asked]
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(batch, alone))
    assert all(b.tokens.tolist() == w[: len(b.tokens)] for b, w in zip(batch, written))
    print(f"{name:<20} the same in a batch; rounds a row:", *(len(g.trace.rounds) for g in batch))

# %% [markdown]
# With a temperature the same is asked: your answer must not depend on who else is in the batch. So row *i* has a random generator of its
# own, seeded with `seed + i`.

# %%
options = {"max_new_tokens": 12, "sampling": ms.Sampling(temperature=0.8)}
batch = ms.generate_batch(target, asked[:2], drafters["n-gram"], seed=5, **options)
alone = [ms.generate(target, asked[i], drafters["n-gram"], seed=5 + i, **options) for i in (0, 1)]
assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(batch, alone))
print("drawn at temperature 0.8, each row as alone with its own seed: True")

# %% [markdown]
# **What raggedness saves.** Some implementations take a batch of one only; transformers' assisted generation is one of them. A simple way
# out would be to let every row advance by what the *least* lucky row accepted. The texts stay right; only, the more rows, the unluckier the
# unluckiest. Since the texts are known now, we can count without the model: walk along them, and draft at each place.


# %%
def right_after(row, done):
    """How many guesses are right when the row has written `done` tokens."""
    rest = written[row][done:]
    return agreeing(look_up(prompts[row] + written[row][:done], min(4, len(rest) - 1)), rest)


in_step, done = 0, 1
while done < 32:
    in_step, done = in_step + 1, done + 1 + min(right_after(row, done) for row in range(3))
assert len(log) <= in_step <= 31
print(f"rounds for the batch: ragged {len(log)}, in step {in_step}, without guesses 31")

# %% [markdown]
# In step, one row that has nothing to copy takes the gain from all others. Ragged, the batch takes as long as its slowest row, and the
# others are done before.
#
# ## Who gets the slack?
#
# Correctness is settled; now the cost. A pass reads all weights once, however many tokens are in it. The arithmetic that fits beside the
# reading is the **slack** (notebook 01). A guess rides on it, and so does a row. A batch of *b* rows with *n* guesses each is one pass over
#
# $$b \, (1 + n) \text{ tokens.}$$
#
# Three live requests show it on your machine: plain decoding, in one batch, against one after the other.

# %%
seconds = {}
for label, groups in {"batch": [asked], "one by one": [[text] for text in asked]}.items():
    start = time.perf_counter()
    for group in groups:
        ms.generate_batch(target, group, max_new_tokens=12)
    seconds[label] = time.perf_counter() - start
print("; ".join(f"{label}: {here(f'{s:.1f} s')}" for label, s in seconds.items()))
ratio = seconds["one by one"] / seconds["batch"]
print(f"the batch writes {here(f'{ratio:.1f}')} times as many tokens a second")

# %% [markdown]
# From here on we use larger batches than a notebook should run. They were measured on the machine that is named below, by `minispec
# bench --methods ngram eagle eagle:chain --batch 1,4,16,64`: sixteen requests, at most 64 tokens each, greedy, three times. The file holds
# every round of every run, and comes with the package. Its numbers do not change with your machine, so what follows prints the same
# everywhere. Of the three runs of a batch we look at the one that took the median time.

# %%
from minispec.bench import COLUMNS, measured
from minispec.report import Times

result = measured("batches")
machine, sizes, methods = (
    result["machine"],
    result["settings"]["batches"],
    result["settings"]["methods"],
)
print(f"{machine['threads']} threads of {machine['cpu']}, {machine['dtype']}, {machine['model']}")
print(f"batches of {sizes}; methods: {', '.join(methods)}; {len(result['requests'])} requests")


def runs_of(method, batch):
    """Of each group of rows that was a batch, the middle one of its runs."""
    return Times(result, method, batch).middle()


def named(round):
    """A stored round: nodes, accepted, emitted, and its seconds by phase."""
    return dict(zip(COLUMNS, round))


# %% [markdown]
# Between the runs the benchmark timed single passes over 1, 2, 3 and more tokens, after 200 cached ones. Their medians are the cost curve.

# %%
cells, sweeps = result["passes"]["cells"], result["passes"]["seconds"]
medians = [statistics.median(column) for column in zip(*sweeps)]
curve = {tokens: s for (tokens, cached), s in zip(cells, medians) if cached == 200}
show(
    plots.cost_curve({machine["dtype"]: {n: curve[n] for n in (1, 2, 4, 8, 17, 33, 65)}}),
    alt="Cost curve of the committed run: what a pass costs, in passes over one token, against "
    "the tokens in it, with a level line at one and a diagonal where n tokens cost n passes.",
    numbers="milliseconds by tokens: "
    + ", ".join(f"{tokens}: {1e3 * s:.0f}" for tokens, s in curve.items()),
)

# %% [markdown]
# The largest measured pass holds a handful of rows with guesses, and we shall need more. A straight line says how it goes on: a **fixed**
# part, and a part **for each token**. The slack is the one divided by the other: how many tokens take as long as the fixed part.

# %%
tokens, times = np.array(list(curve)), np.array(list(curve.values()))
each, fixed = np.polyfit(tokens, times, 1, w=1 / times)  # least squares of the relative error
slack = fixed / each
worst = max(abs(fixed + each * n - s) / s for n, s in curve.items())
print(f"a pass: {1e3 * fixed:.1f} ms and {1e3 * each:.2f} ms a token; slack {slack:.0f} tokens")
print(f"the line misses no measured point by more than {worst:.0%}")


# %% [markdown]
# To predict, we take the measured points where there are some, straight lines between them, and go on behind the last one as the curve went
# between its last two.


# %%
def pass_s(n):
    """Seconds of a pass over n tokens."""
    (a, low), (b, high) = list(curve.items())[-2:]
    if n <= b:
        return float(np.interp(n, list(curve), list(curve.values())))
    return high + (n - b) * (high - low) / (b - a)


print("batch   plain pass   ms a token   with four guesses a row")
for b in (1, 4, 16, 64):
    plain, wide = 1e3 * pass_s(b), 1e3 * pass_s(5 * b)
    print(f"{b:>5}{plain:>10.0f} ms{plain / b:>13.1f}{wide:>15.0f} ms, {wide / plain:.1f} times")

# %% [markdown]
# Read the third column: the batch alone makes a token cheaper, without any guess. It uses the same spare arithmetic, and it never guesses
# wrong. Then the last one: what four guesses a row add to the pass. At batch 1 they are cheapest. The larger the batch, the nearer the
# factor comes to five, for then the pass is nothing but arithmetic, and five times the tokens take five times as long.
#
# So take the best case there is: **every guess is right**, and costs nothing to make. What do *n* guesses gain?

# %%
perfect = {
    f"{n} guess{'es' * (n > 1)}": {
        b: (1 + n) * pass_s(b) / pass_s(b * (1 + n)) for b in (1, 2, 4, 8, 16, 32, 64)
    }
    for n in (1, 2, 4, 8)
}
show(
    plots.lines(
        perfect,
        "If every guess were right",
        "rows of the batch",
        "predicted speedup",
        level=1,
        log=True,
    ),
    alt="Predicted speedup against the rows of the batch, from 1 to 64, if every guess is right, "
    "for 1, 2, 4 and 8 guesses a row: all lines fall towards one as the batch grows.",
    numbers="at batch 1 and 64: "
    + ", ".join(f"{name} {line[1]:.2f} and {line[64]:.2f}" for name, line in perfect.items()),
)
assert all(line[64] < line[1] for line in perfect.values())

# %% [markdown]
# A full batch leaves perfect guesses little to win. Real guesses are wrong sometimes, and a wrong one costs exactly as much as a right one.
#
# ## Up to which batch?
#
# Put the straight line into the condition that a round emits more tokens a second than plain passes do. With *E* tokens a round, *f* the
# fixed part and *c* the part for each token:
#
# $$E \, (f + c\,b) > f + c\,b\,(1 + n) \quad\Longleftrightarrow\quad b \;<\; \frac{f}{c} \cdot \frac{E - 1}{1 + n - E}$$
#
# Look at the two factors. *f / c* is the slack. *E - 1* guesses a round are accepted, and *1 + n - E* are rejected. So
#
# $$\text{guessing pays up to a batch of} \quad \text{slack} \times \frac{\text{accepted}}{\text{rejected}} \quad \text{rows}$$
#
# if drafting is free. One number is the machine's, the other the drafter's.


# %%
drafting = [name for name in methods if name in result["drafters"]]
reach = {}
for name in drafting:
    found = [named(r) for run in runs_of(name, 1) for row in run["rounds"] for r in row]
    accepted = sum(r["accepted"] for r in found) / len(found)
    rejected = sum(r["nodes"] for r in found) / len(found) - accepted
    reach[name] = slack * accepted / rejected
    print(
        f"{name:<12} a round accepts {accepted:.2f} and rejects {rejected:.2f}: "
        f"up to {reach[name]:.1f} rows"
    )

# %% [markdown]
# The formula explains two things at once. A drafter that guesses little and is often right reaches further than one that guesses much: what
# counts is the ratio, not the tokens a round. And a **large tree** rejects more by construction, for of the children of a node one at most
# can be right. It buys accepted tokens with rejected ones: a good trade while there is slack, a bad one when there is none. It is the size
# that a batch punishes, not the shape: of all drafts with so many nodes the best tree is never worse than the chain, which is one of them.
#
# ## Measured
#
# Now the runs. Speedup of decoding over plain decoding *at the same batch*: tokens a second of all rows together, the first token of each
# row left out, since it comes from prefill.


# %%
def rate(method, batch):
    """Tokens a second after the first tokens, of all rows; of each batch the median run."""
    tokens = sum(len(row) - 1 for run in runs_of(method, batch) for row in run["tokens"])
    seconds = {}
    for run in result["runs"]:
        if (run["method"], run["batch"]) == (method, batch):
            seconds.setdefault(tuple(run["rows"]), []).append(run["seconds"] - run["ttft_s"])
    return tokens / sum(map(statistics.median, seconds.values()))


print("tokens a second    " + "".join(f"batch {b:<6}" for b in sizes))
for name in methods:
    print(f"{name:<19}" + "".join(f"{rate(name, b):<12.1f}" for b in sizes))

# %%
speedup = {name: {b: rate(name, b) / rate("autoregressive", b) for b in sizes} for name in drafting}
for name in drafting:
    for b in sizes:
        assert abs(rate(name, b) / Times(result, name, b).decode_rate() - 1) < 1e-6
show(
    plots.lines(
        speedup, "Measured", "rows of the batch", "speedup over the same batch", level=1, log=True
    ),
    alt="Measured speedup over plain decoding at the same batch, against the batch size, a line "
    "for each drafter: n-gram lookup, EAGLE with a dynamic tree, and EAGLE with a chain.",
    numbers="; ".join(
        f"{name}: " + ", ".join(f"{b}: {gain:.2f}" for b, gain in line.items())
        for name, line in speedup.items()
    ),
)

# %% [markdown]
# `Times` of the package computes the same rates, and `minispec report` prints them. Two things to know. The batch of 64 holds each request
# four times, and there is one such batch only. And EAGLE's tree is the one that ships: it takes as many nodes a
# round as pay by a cost curve that is stored with it, measured with one row. In a larger batch it goes on as if it were alone.
#
# Where does each drafter stop paying on that machine? The sentences are computed.


# %%
def joined(batches):
    return ", ".join(map(str, batches)) or "none"


for name, line in speedup.items():
    wins, losses = [b for b in sizes if line[b] > 1], [b for b in sizes if line[b] <= 1]
    print(f"{name:<12} faster than plain at batch {joined(wins)}; not at {joined(losses)}", end="")
    print(f"   (formula: up to {reach[name]:.1f})")
for b in sizes:
    tree, chain = speedup["eagle"][b], speedup["eagle:chain"][b]
    print(
        f"batch {b:>2}: EAGLE's {'tree' if tree > chain else 'chain'} is ahead; "
        f"tree {tree:.2f}, chain {chain:.2f}"
    )
best = {b: max(methods, key=lambda name: rate(name, b)) for b in sizes}
print("fastest:", ", ".join(f"batch {b} {name}" for b, name in best.items()))

# %% [markdown]
# And what does the batch itself gain, without any guess?

# %%
gained = rate("autoregressive", max(sizes)) / rate("autoregressive", 1)
longer = gained / max(sizes)
print(f"plain decoding, batch {max(sizes)} against 1: {gained:.1f} times the tokens a second,")
print(f"and every single row gets its tokens {1 / longer:.1f} times more slowly")
assert gained > 1

# %% [markdown]
# So the two are rivals. The batch raises **throughput**, tokens a second of all requests together, and makes each request slower.
# Speculation makes a request faster, as long as there are few of them. With one user on one machine, the slack is free for guesses. With a
# long queue, fill the batch first, and ask then whether any slack is left.
#
# ("Performance or Illusion?" (2026) reports for vLLM on GPUs that speedup falls as the batch grows. There the slack is larger by an order
# of magnitude (notebook 01 computes hundreds of tokens for a large model), so the same decline sets in at larger batches.)
#
# ## What the formula leaves out
#
# **Padding.** The pass is as wide as its widest draft. If one row of sixteen finds a long match, the other fifteen carry padding of that
# width. Count it: of the places in all rectangles, how many were neither a pending token nor a guess?


# %%
def rectangles(method, batch):
    """Of each pass: rows that go on, width, and the guesses in it."""
    found = []
    for run in runs_of(method, batch):
        for step in range(max(map(len, run["rounds"]))):
            nodes = [row[step][0] for row in run["rounds"] if step < len(row)]
            found.append((len(nodes), 1 + max(nodes), sum(nodes)))
    return found


def padding(method, batch):
    places = sum(rows * width for rows, width, _ in rectangles(method, batch))
    return 1 - sum(rows + guesses for rows, _, guesses in rectangles(method, batch)) / places


for name in drafting:
    print(f"{name:<12} padding: " + ", ".join(f"batch {b} {padding(name, b):.0%}" for b in sizes))
assert all(padding(name, 1) == 0 for name in drafting)

# %% [markdown]
# A drafter whose drafts differ much in length pays most: lookup often drafts eight tokens or none. A chain of fixed length pays only near
# the end of a text, where drafts get shorter. So which is it that sets EAGLE's tree behind its chain in a batch: wrong guesses, or the
# rectangle? Count the places a pass computes for each token that comes out, without and with the padding.

# %%
for name in drafting:
    tokens = sum(len(row) - 1 for run in runs_of(name, 16) for row in run["tokens"])
    filled = sum(rows + guesses for rows, _, guesses in rectangles(name, 16)) / tokens
    computed = sum(rows * width for rows, width, _ in rectangles(name, 16)) / tokens
    print(f"{name:<12} batch 16: {filled:.2f} places a token, {computed:.2f} with padding")

# %% [markdown]
# Tree and chain fill about as many places for a token. It is the rectangle that sets the tree behind: its size differs from row to row.
# Engines such as vLLM avoid padding altogether: they put all rows one behind the other into a single long line, and attention is told
# where each row begins. That needs special attention kernels, which is why it is not done here.
#
# **Drafting.** It was free above. Here is its share of the time after the first token. (In each run the row with most rounds was in every
# pass, so its rounds have the time of the whole run.)


# %%
def spent(method, batch, *phases):
    """Seconds of all rounds in some phases."""
    whole = [max(run["rounds"], key=len) for run in runs_of(method, batch)]
    return sum(named(round)[phase] for rounds in whole for round in rounds for phase in phases)


for name in drafting:
    share = {b: spent(name, b, "draft_s") / spent(name, b, *COLUMNS[4:]) for b in sizes}
    print(
        f"{name:<12} drafting: " + ", ".join(f"batch {b} {part:.1%}" for b, part in share.items())
    )

# %% [markdown]
# **Keys and values.** Each row brings its own cache, which is read too. Do the passes as they were, padding and all, cost what the curve
# says? It was measured with one row and 200 cached tokens, so this is a fair test of "a batch is a pass over so many tokens".

# %%
for name in methods:
    ratios = []
    for b in sizes:
        predicted = sum(pass_s(rows * width) for rows, width, _ in rectangles(name, b))
        ratios.append(f"batch {b} {predicted / spent(name, b, 'verify_s'):.2f}")
    print(f"{name:<15} predicted / measured: {', '.join(ratios)}")

# %% [markdown]
# A ratio near 1 says that a pass over *b* rows of *m* tokens costs what a pass over *b m* tokens of one row costs: tokens are tokens. Where
# it is below 1 the passes cost more than that; what we left out are the caches of all rows, the mask, and the slower write of ragged rows.
# Where it is above 1, wide passes run better than the straight line promised.
#
# One more word on the caches. Our requests are short. Where contexts are so long that reading keys and values dominates a pass, a row costs
# much more than its tokens' arithmetic, with guesses or without. There guesses can pay at large batches too (MagicDec, Chen et al. 2024).
#
# ## A batch ends with its longest row
#
# The rows of a batch began together. They do not end together: the answers differ in length, and with guesses also the number of rounds for
# the same length. A row that has ended leaves its place empty. How much of a batch is empty, over its whole run?


# %%
def idle(method, batch):
    """The share of places, rows x rounds until the last one ended, that stood empty."""
    batches = [run["rounds"] for run in runs_of(method, batch)]
    places = sum(len(rows) * max(map(len, rows)) for rows in batches)
    return 1 - sum(len(row) for rows in batches for row in rows) / places


for name in methods:
    print(f"{name:<15} empty: " + ", ".join(f"batch {b} {idle(name, b):.0%}" for b in sizes))
assert idle("autoregressive", 1) == 0
limit = result["settings"]["max_new_tokens"]
cut = sum(len(run["tokens"][0]) == limit for run in runs_of("autoregressive", 1))
print(f"{cut} of {len(result['requests'])} answers have all the {limit} tokens that they may have")

# %%
going = {}
for name in methods:
    ends = [len(row) for row in runs_of(name, 16)[0]["rounds"]]
    going[name] = {r: sum(end > r for end in ends) for r in (*range(0, max(ends), 4), max(ends))}
show(
    plots.lines(going, "Rows of a batch of 16 that still go on", "round", "rows"),
    alt="Rows still going on against the round, from 16 down to 0, for plain decoding and three "
    "drafters, over the same sixteen requests.",
    numbers="rounds until the last row has ended: "
    + ", ".join(f"{name} {max(line)}" for name, line in going.items()),
)

# %% [markdown]
# An answer that is cut at the limit takes plain decoding the same number of rounds as every other such answer. With guesses it does not:
# requests that are easy to guess are done early, and the hard ones keep the batch alive. A batch takes as many rounds as its hardest row.
# (The empty places cost no arithmetic here, since ended rows leave the rectangle. But the last passes read all weights for few rows, as a
# small batch does.)
#
# All together now: price every rectangle as it was, with its padding and its missing rows, by the curve, and leave only drafting free. What
# speedup does that predict, beside the one that was measured?


# %%
def priced(method, batch):
    """Tokens a second if each pass costs what the curve says, and nothing else takes time."""
    tokens = sum(len(row) - 1 for run in runs_of(method, batch) for row in run["tokens"])
    return tokens / sum(pass_s(rows * width) for rows, width, _ in rectangles(method, batch))


for name in drafting:
    line = {b: priced(name, b) / priced("autoregressive", b) for b in sizes}
    told = ", ".join(f"batch {b} {gain:.2f} ({speedup[name][b]:.2f})" for b, gain in line.items())
    print(f"{name:<12} predicted (measured): {told}")

# %% [markdown]
# What the two numbers share is counted work. What is left between them is drafting, caches, and noise.
#
# ## A server does not wait
#
# The cure is to let somebody else sit down. After every pass, the server takes those who have ended out of the batch, and takes in those
# who wait. That is **continuous batching**, or iteration-level scheduling (Orca, Yu et al. 2022). On paper: sixteen requests, each needing
# as many rounds as it did above when it was alone, and four seats.


# %%
def passes(rounds, seats, refill):
    """Passes until all are served. `refill`: take a free seat at once, not when all are free."""
    waiting, seated, count = list(rounds), [], 0
    while waiting or seated:
        if refill or not seated:
            while waiting and len(seated) < seats:
                seated.append(waiting.pop(0))
        seated, count = [left - 1 for left in seated if left > 1], count + 1
    return count


assert passes([3, 1, 1, 1], 2, False) == 4 and passes([3, 1, 1, 1], 2, True) == 3
for name in methods:
    alone = {run["rows"][0]: len(run["rounds"][0]) for run in runs_of(name, 1)}
    needed = [alone[row] for row in sorted(alone) if alone[row]]
    static, continuous = passes(needed, 4, False), passes(needed, 4, True)
    assert continuous <= static
    print(f"{name:<15} {static} passes in batches of four, {continuous} if free seats are refilled")

# %% [markdown]
# (Prefill is left out. In a server it is not: a newcomer's prompt is read in a pass too, and whoever is writing waits for it, or shares the
# pass with it.)
#
# What a user sees of this are three times. In the **queue** the request waits for a seat. The **time to first token** is queue and prefill.
# The **time per output token** is what follows. Throughput is the provider's number; these are the user's, and they pull in opposite
# directions: more seats mean a shorter queue, and longer passes for all who are seated.
#
# ## Memory decides how many seats there are
#
# Each seat needs a cache. A token's keys and values are two vectors for each layer and each key head:

# %%
c = target.model.config
numbers = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim
room = target.model.new_cache(4, 100)  # 4 rows of 100 tokens, and the spare slot
assert room.nbytes == 4 * (100 + 1) * numbers * 4 == room.keys.nbytes + room.values.nbytes
weights = sum(w.numel() for w in target.model.parameters())
print(
    f"{numbers:,} numbers a token: {4 * numbers / 1e3:.0f} kB in float32, "
    f"{2 * numbers / 1e3:.0f} kB in bfloat16"
)
print(f"4 rows of 100 tokens, float32: {room.nbytes / 1e6:.1f} MB, as counted")
print(f"the weights hold as many numbers as the caches of {weights // numbers:,} tokens")

# %%
print("bfloat16, MB:   " + "".join(f"{f'{tokens} tokens':>14}" for tokens in (250, 1000, 4000)))
for b in sizes:
    row = [2 * numbers * b * tokens / 1e6 for tokens in (250, 1000, 4000)]
    print(f"  batch {b:<8}" + "".join(f"{megabytes:>14.0f}" for megabytes in row))
print(f"  weights: {2 * weights / 1e6:.0f}")

# %% [markdown]
# Batch and context multiply, so caches overtake weights sooner than one thinks. And a simple cache reserves more than it needs: every row
# gets room for the longest prompt and for all the tokens that it *might* write. What share was used in the end?

# %%
for b in sizes:
    used = reserved = 0
    for run in runs_of("autoregressive", b):
        before = [len(result["requests"][row]["prompt"]) for row in run["rows"]]
        used += sum(before) + sum(map(len, run["tokens"]))
        reserved += len(before) * (max(before) + limit)
    print(f"batch {b:>2}: {used / reserved:.0%} of the reserved slots were used at the end")

# %% [markdown]
# The rest is empty memory that could have been seats. PagedAttention (Kwon et al. 2023, the idea that vLLM began with) hands out slots in
# small blocks as a text grows, as an operating system hands out pages. Guesses fit in well: the slots of rejected ones are written over in
# the next round. And a drafter with layers has keys and values too, for every row:

# %%
nets = {
    "EAGLE's head": drafters["eagle, dynamic tree"].net,
    "the draft model": drafters["draft model"].small.model,
}
for name, net in nets.items():
    print(f"{name} adds {net.new_cache(4, 100).nbytes / room.nbytes:.1%} to every seat")

# %% [markdown]
# ## A real server
#
# Now vLLM, which does all of this: continuous batching, paged caches, rows without padding. `benchmarks/serve.sh` starts it without a
# drafter, and with our EAGLE head and our draft model (chains of three guesses), sends it our requests, and lets vLLM's own benchmark tool
# measure. *Concurrency* 4 means: four requests are under way at any time; when one is answered, the next is sent. The server has sixteen
# seats here, so up to 16 at a time nobody should wait for one: the column of the queue shows whether that is so.

# %%
served = {
    (row["method"], int(row["order"][1])): row for row in result["served"] if row["order"][0] == "c"
}
loads = sorted({load for _, load in served})
servants = list(dict.fromkeys(method for method, _ in served))
one = next(iter(served.values()))
print(
    f"vLLM {one['vllm']}, {one['dtype']}, by benchmarks/serve.sh: {one['completed']} requests a run"
)
print(
    "at a time   method   tokens/s   queue ms   first token ms (99%)   a token ms   tokens a round"
)
for (method, load), r in sorted(
    served.items(), key=lambda item: (item[0][1], servants.index(item[0][0]))
):
    first = f"{r['median_ttft_ms']:.0f} ({r['p99_ttft_ms']:.0f})"
    print(
        f"{load:>9}   {method:<6}{r['output_throughput']:>11.1f}{r['mean_queue_ms']:>11.1f}"
        f"{first:>23}{r['median_tpot_ms']:>13.1f}{r['acceptance_length'] or 1:>17.2f}"
    )

# %% [markdown]
# Read the rows without a drafter (`plain`) from top to bottom: what becomes of the tokens a second of all requests together, and of the
# time that each single one waits for a token? That is the batch, inside a server. Then compare the methods at the same concurrency.

# %%
faster = {
    name: {
        load: served["plain", load]["median_tpot_ms"] / served[name, load]["median_tpot_ms"]
        for load in loads
    }
    for name in servants
    if name != "plain"
}
show(
    plots.lines(
        faster,
        "In the server",
        "requests at a time",
        "speedup, time per output token",
        level=1,
        log=True,
    ),
    alt="Speedup of the time per output token over the server without a drafter, against the "
    "number of requests under way, a line for EAGLE and one for the draft model.",
    numbers="; ".join(
        f"{name}: " + ", ".join(f"{load}: {gain:.2f}" for load, gain in line.items())
        for name, line in faster.items()
    ),
)

# %%
few, many = (served["plain", load] for load in (loads[0], loads[-1]))
print(
    f"plain, from {loads[0]} to {loads[-1]} at a time: "
    f"{many['output_throughput'] / few['output_throughput']:.1f} times the tokens a second, "
    f"a token takes {many['median_tpot_ms'] / few['median_tpot_ms']:.1f} times as long"
)
for load in loads:
    now = {name: served[name, load] for name in servants}
    quick = min(servants, key=lambda name: now[name]["median_tpot_ms"])
    full = max(servants, key=lambda name: now[name]["output_throughput"])
    print(f"{load:>2} at a time: shortest time per token {quick}; most tokens a second {full}")
for name, line in faster.items():
    trend = "falls" if line[loads[-1]] < line[loads[0]] else "does not fall"
    print(f"{name}: from {loads[0]} to {loads[-1]} at a time its speedup {trend}")

# %% [markdown]
# Two cautions. Times of two different programs on one machine may be set side by side, but a ratio of them would mix their overheads with
# their methods: so each is compared with its own plain decoding only. And a drafter does nothing for prefill. Where the first token takes
# longer with one, the drafter had to read the prompt too, or the passes that the newcomer waited for were longer.
#
# A check that should always be made on such a table is **Little's law**: the mean number of requests in a system is their rate of arrival
# times the time they spend in it. For those who are just writing: tokens a second times seconds a token.

# %%
for load in loads:
    r = served["plain", load]
    writing = r["output_throughput"] * r["median_tpot_ms"] / 1e3
    print(f"{load:>2} at a time: about {writing:.1f} are writing, the others wait or are read")

# %% [markdown]
# (*About*: the law holds for means, and the tool reports the median.) If the number came out far above the concurrency, one of the columns
# would not mean what its name says.
#
# Requests at a fixed concurrency are polite: each waits until another has been answered. Users are not. They come when they come, and if
# they come faster than the server answers, they pile up before it. In the last runs one request a second arrived, on average, at times
# drawn by chance:

# %%
print("a second   method   tokens/s   queue ms   first token ms   a token ms")
for r in (row for row in result["served"] if row["order"][0] == "r"):
    print(
        f"{r['order'][1]:>8.0f}   {r['method']:<6}{r['output_throughput']:>11.1f}"
        f"{r['mean_queue_ms']:>11.1f}{r['median_ttft_ms']:>17.0f}{r['median_tpot_ms']:>13.1f}"
    )

# %% [markdown]
# A server that spends more on each token keeps its requests longer, so more of them are there at once, so its batch is larger, and so each
# pass takes longer still. When all seats are taken, the queue begins. So a drafter that loses a little at a given batch loses more at a
# given rate of arrivals, and one that gains wins more.
#
# ## Guess less when it is full
#
# A server does not know in the morning how many will come. So the length of the draft should follow the load. With the acceptance of
# EAGLE's chain by position, and free drafting, the curve says for each batch which length is best:

# %%
from minispec.theory import expected_tokens

rates = Times(result, "eagle:chain", 1).conditional()
lengths_by_batch = {}
for b in (1, 2, 4, 8, 16, 32, 64):
    gains = [
        expected_tokens(rates[:n]) * pass_s(b) / pass_s(b * (1 + n)) for n in range(len(rates) + 1)
    ]
    lengths_by_batch[b] = int(np.argmax(gains))
    print(
        f"batch {b:>2}: best draft length {lengths_by_batch[b]}, predicted speedup {max(gains):.2f}"
    )
assert lengths_by_batch[64] <= lengths_by_batch[1]

# %% [markdown]
# Zero guesses is a length too, and the right one for a full server whose guesses are not good enough. SmartSpec (Liu et al. 2024) chooses
# the length in every step this way, none included, by the tokens a second that are expected to come out; they call that goodput. Note what
# is not needed: the text does not change, whatever is chosen, so the choice may be made anew in each round.
#
# ## The batch explorer
#
# The model of this notebook to play with, on the curve of the committed run: a chain and a tree, against the batch. Acceptance is that of
# the first choice, the same at every depth; of what it misses, the second choice gets half that share, and so on. Drafting is free, and
# nothing is padded.

# %%
from minispec.explorers import seconds_of

assert all(abs(seconds_of(curve, n) - pass_s(n)) < 1e-12 for n in (1, 10, 65, 500))
widgets.batches_panel(curve)

# %% [markdown]
# The tree lives on slack: its line falls faster than the chain's. A short draft promises less and lasts longer (the best "tree" of three
# nodes is a chain here: where the first choice is right so often, depth is worth more than breadth). With guesses that are wrong every
# second time both are soon below the line. Move the sliders: which acceptance would a chain of four need to pay at batch 64? How many nodes
# may a tree have there?

# %% tags=["live"]
widgets.batches_live(curve)

# %% [markdown]
# ## Summary
#
# - In a batch every row has its own length: slot, position and mask follow from it, and so does the rewind. Each row writes what it writes
#   alone.
# - A batch of *b* rows with *n* guesses each is a pass over *b (1 + n)* tokens. Rows and guesses use the same slack, and rows are never
#   wrong.
# - With free drafting, guessing pays up to a batch of slack × accepted / rejected. What is rejected costs as much as what is accepted, so
#   long drafts and large trees give up first.
# - Padding to the widest draft, caches, and empty seats come on top. Continuous batching fills the seats; paging makes room for more of
#   them.
# - Throughput, time to first token and time per output token are different numbers. Name the load with each of them.
#
# ## Questions
#
# **1.** A machine has a slack of 300 tokens. A drafter proposes five tokens a round, of which two are accepted on average. Up to which
# batch does it pay, if drafting is free? What if only one of the five is accepted?
#
# <details><summary>Answer</summary>
#
# Accepted 2, rejected 3: 300 · 2/3 = 200 rows. Accepted 1, rejected 4: 300 · 1/4 = 75 rows. Half the accepted tokens, and far less than
# half the batch, since what is not accepted is rejected.
#
# </details>
#
# **2.** In a colleague's batch all rows are right, except that a row's text changes when another row of the batch is replaced by a longer
# one. What do you look at?
#
# <details><summary>Answer</summary>
#
# Whatever is computed from the longest row in place of the row's own length: the positions (does the pending token stand at the end of the
# rectangle, or at the end of its row?), the slots, and the mask (does a short row see the padding or the leftovers behind its own text?).
# With sampling also the dice: one generator for all rows hands a row other numbers when its neighbours take more.
#
# </details>
#
# **3.** A provider says: "With speculative decoding our server gives each user tokens twice as fast, and it serves as many users as
# before." Can both be true?
#
# <details><summary>Answer</summary>
#
# Yes, as long as there is slack at that load: with few users at a time, or on hardware with much spare arithmetic. Ask for the concurrency
# at which it was measured, and for the tokens a second of all users together, with and without, when the server is full.
#
# </details>
#
# ## Change it
#
# - In `speculate_batch`, rewind all rows to the length of the shortest (`[min(...)] * 3`). Which assertion fails, and what does the text
#   look like? Then rewind each row by one token too few.
# - In `passes`, serve the request with the fewest rounds first (`waiting.sort()`). Do the passes change? Who would complain?
# - Replace `curve` in the last cells by one of your own machine: `from minispec.bench import cost_curve`, then `cost_curve(target, (1, 2,
#   4, 8, 16, 32, 64))`. Who gets the slack there?
#
# **Exercise:** [ex07](../exercises/ex07_ragged_batches.ipynb), the ragged block, its mask, its dice, the loop, and the largest batch that
# pays; each task is checked at once.
#
# **The way on.** You have now seen numbers from one machine, and computed sentences about them. [Notebook 09](09_testing_a_claim.ipynb)
# asks what it takes to believe such a sentence.
