# %% [markdown]
# # 02 · Greedy speculative decoding
#
# A small model guesses a few tokens ahead. The large one reads all the guesses in **one** pass and keeps those that it would have
# written itself. The text does not change by a single token; the number of passes falls.
#
# **You will be able to** write the loop *draft, verify, accept, commit*; say why its output is exactly the target's; find the
# hole that a fully accepted draft leaves in a drafter's cache; choose the length of the draft from measured numbers.
#
# **You should know** what a key-value cache is, and that a pass over several tokens can cost little more than a pass over one
# (notebook 01). **Time:** 25 minutes, of which two are computing. **Needs:** a CPU. With a GPU, change one line in the next cell.
#
# If you come straight from notebook 00: a *pass* is one run of the model over some tokens; it gives logits for the next token at every
# position. A *key-value cache* remembers what was read, so that a pass needs only the new tokens. *Prefill* is the first pass: it reads
# the whole prompt and already gives one token.

# %%
import torch

import minispec as ms
from minispec import plots, widgets
from minispec.notebook import here, show

torch.set_num_threads(min(2, torch.get_num_threads()))  # two at most: the same numbers everywhere
device = "cpu"  # "cuda" if you have a GPU
target = ms.load("smollm2-135m", device=device, dtype="float32")
draft = ms.load_drafter("draft", target).small
for name, model in (("target", target.model), ("draft", draft.model)):
    weights = sum(weight.numel() for weight in model.layers.parameters())
    print(f"{name}: {len(model.layers)} layers, {weights / 1e6:.0f} million weights in them")

# %% [markdown]
# Two models with **one tokenizer**. The *target* is the model whose text we want: SmolLM2 with 135 million parameters. The *draft
# model* is a fraction of it: its layers started as the target's first ones and were then trained on texts that the target wrote. Its
# embeddings are the target's own, which is why we count the layers only.
#
# ## The idea, by hand
#
# Let both models continue the same text, each for itself.

# %%
prompt = target.encode("Write a Python function that returns the sum of a list.")  # ids [time]


@torch.inference_mode()
def continue_with(model, ids, count):
    """`count` greedy tokens, the slow way: read everything again for every token."""
    ids = ids.tolist()
    for _ in range(count):
        logits = model(torch.tensor([ids], device=device), model.new_cache(1, len(ids)))
        ids.append(logits[0, -1].argmax().item())  # of [1, time, vocab], the last row
    return ids


start = torch.tensor(continue_with(target.model, prompt, 11))
wanted = continue_with(target.model, start, 6)[len(start) :]
guessed = continue_with(draft.model, start, 6)[len(start) :]
assert guessed[0] == wanted[0] and guessed != wanted


# %%
def words(tokens):
    return [target.tokenizer.decode([token]) for token in tokens]


print("so far:", repr(target.tokenizer.decode(start[len(prompt) :])))
print("target:", words(wanted))
print("draft: ", words(guessed))

# %% [markdown]
# Compare the last two lines from the left. Up to the first difference, the draft model wrote what the target wrote. Had we known
# that, we could have spared the target those passes. From the difference on, the draft model goes its own way.
#
# ## One pass checks all guesses
#
# We can know it. Give the target the text **and** the guesses in one pass. It returns logits at every position, and the logits at a
# position say what it would write *next*. So one pass answers several questions: what would you write after the text? After the text
# and the first guess? After the first two? When a model writes a text token by token we ask only the last of these, but the pass has
# computed them all.

# %%
ids = torch.cat((start, torch.tensor(guessed)))
with torch.inference_mode():
    # [time, vocab]
    logits = target.model(ids[None].to(device), target.model.new_cache(1, len(ids)))[0]
answers = logits[len(start) - 1 :].argmax(-1).tolist()  # after the text, guess 1, guess 2, ...
agree = [guess == answer for guess, answer in zip(guessed, answers)]
n = agree.index(False)  # guesses before the first difference
for i, (guess, answer) in enumerate(zip([*words(guessed), "(none)"], words(answers))):
    verdict = "accepted" if i < n else "correction" if i == n else "worthless"
    print(
        f"after {i} guesses the target writes {answer!r:>10}   "
        f"the guess was {guess!r:>10}   {verdict}"
    )

# %% [markdown]
# Read from the top. As long as guess and answer agree, the guess is what the target writes: it is **accepted**. At the first
# difference we still gain a token, the target's own answer there: the **correction**. What stands below that line is worthless,
# because it follows a guess that was wrong.
#
# There is one more answer than guesses. If *all* guesses agree, the last answer is a token that nobody guessed: the **bonus**
# token. So a pass with six guesses emits between one and seven tokens, and never fewer than a pass without guesses.
#
# ## Why the text stays the same
#
# By induction. Suppose the text so far is what the target alone would have written. Every token that we accept equals the argmax of
# the target's logits after exactly the text before it, and the correction or bonus *is* that argmax. So the longer text is again
# what the target alone would have written. The guesses decide only how many tokens a round emits. (With sampling it takes more care:
# notebook 03. A draft model and the check in one pass are from Leviathan et al. 2023 and Chen et al. 2023; Stern et al. 2018 did it for
# greedy decoding, with extra output heads as the drafter. The [glossary](glossary.md) lists the papers.)
#
# ## With caches: rewinding
#
# Decoding does not read everything again for every token: the keys and values of what was read stay in a cache. Speculation adds
# one need. After a rejection the cache holds keys and values of tokens that are not part of the text, and they must go.
#
# Here each row of a cache has a length, and what lies beyond it is never read. So forgetting is setting an integer.

# %%
with torch.inference_mode():
    cache = target.model.new_cache(1, 100)
    target.model(start[None].to(device), cache)
    target.model(torch.tensor([guessed], device=device), cache)
    print(
        "after the text and six guesses:", cache.lengths[0] - len(start), "tokens beyond the text"
    )
    cache.lengths = [len(start)]  # this is the rewind
    again = target.model(torch.tensor([wanted[:1]], device=device), cache)[0, -1].argmax().item()
print("after the rewind the target goes on as it should:", again == wanted[1])

# %% [markdown]
# One convention spares much confusion, and this package follows it everywhere. Between two passes the cache holds **all tokens but
# the last**. The last one is *pending*: it was decided, but not yet read. The next pass reads the pending token and the guesses
# together.
#
# ## The loop
#
# First the drafter. It reads whatever its cache lacks, then writes `count` guesses.


# %%
def write_draft(model, text, cache, count):
    new, guesses = text[cache.lengths[0] :], []
    for _ in range(count):
        logits = model(torch.tensor([new], device=device), cache)
        guesses.append(logits[0, -1].argmax().item())
        new = guesses[-1:]
    return guesses


# %% [markdown]
# Then the loop: draft, verify, accept, commit. To commit is to append what was accepted, and to forget what was rejected.


# %%
@torch.inference_mode()
def speculate(prompt, most, count, small=draft.model, write_draft=write_draft):
    """At least `most` tokens, also beyond the end; and how many guesses each round accepted."""
    text, room = prompt.tolist(), len(prompt) + most + count + 1
    cache, small_cache = target.model.new_cache(1, room), small.new_cache(1, room)
    # prefill gives the first token
    text.append(target.model(prompt[None].to(device), cache)[0, -1].argmax().item())
    accepted_counts = []
    while len(text) < len(prompt) + most:
        guesses = write_draft(small, text, small_cache, count)
        block = torch.tensor([[text[-1], *guesses]], device=device)  # pending token, then guesses
        answers = target.model(block, cache)[0].argmax(-1).tolist()
        accepted = 0
        while accepted < count and guesses[accepted] == answers[accepted]:
            accepted += 1
        text += [*guesses[:accepted], answers[accepted]]  # accepted ones, then correction or bonus
        cache.lengths = [len(text) - 1]  # all but the pending token
        # this one may be shorter: see "The hole" below
        small_cache.lengths = [min(small_cache.lengths[0], len(text) - 1)]
        accepted_counts.append(accepted)
    return text[len(prompt) :], accepted_counts


# %%
mine, accepted = speculate(prompt, most=60, count=4)
plain = ms.generate(target, prompt, max_new_tokens=len(mine))
assert mine == plain.tokens.tolist()
print(target.tokenizer.decode(mine))
print("---")
print(
    f"{len(mine)} tokens, the same as without guesses, "
    f"in {len(accepted) + 1} passes of the target instead of {len(mine)}"
)
print("accepted in each round:", *accepted)

# %% [markdown]
# The same tokens in fewer passes. Note what `speculate` does not contain: any judgement of the draft model. It may be brilliant or
# random; only the number of rounds changes.
#
# ## The package's version
#
# `ms.generate` with a drafter runs this loop, with the corners finished: it ends at the end-of-text token even inside an accepted
# block, never drafts beyond what may still be emitted, and does all this for a batch whose rows accept different numbers. It keeps
# a `Trace` of every round.

# %%
theirs = ms.generate(target, prompt, drafter=ms.DraftModel(draft, num_tokens=4), max_new_tokens=60)
rounds = theirs.trace.rounds
assert theirs.tokens.tolist() == mine[:60]
# the last round is cut at 60 tokens
assert [len(round.accepted) for round in rounds][:-1] == accepted[: len(rounds) - 1]
print("the same tokens:", theirs.tokens.tolist() == mine[:60])
print(f"{theirs.trace.tokens_per_pass:.2f} tokens a round (prefill is not counted as a round)")

# %% [markdown]
# ## The token tape
#
# What happened, round by round. Each line is one pass of the target.

# %%
show(
    plots.token_tape(theirs.trace, lambda token: target.tokenizer.decode([token])),
    alt="A tape of tokens, one line a round: accepted guesses are filled, rejected ones "
    "struck out, and the target's own token has a thick frame.",
    numbers="accepted of drafted, by round: "
    + ", ".join(f"{len(r.accepted)}/{len(r.drafted)}" for r in rounds[:12]),
)

# %% [markdown]
# Long rounds fall on set phrases, which follow almost by themselves. Short ones fall where the text decides something: which name,
# which verb. And look at what the draft model does *not* know: it misses `sum`, although the text has just used it. It guesses from
# language, and hardly looks back; notebook 04 builds a drafter that does nothing but look back. The struck-out tokens cost time, and
# gave nothing.
#
# Here are three rounds in slow motion: the guesses, the pass, what was accepted, what was written. The grey box is the pending token.

# %%
widgets.round_panel(
    theirs.trace, lambda token: target.tokenizer.decode([token]), before=theirs.tokens[:1].tolist()
)

# %% [markdown]
# With a running kernel you can step through all of them: play, or use the slider and the buttons.

# %% tags=["live"]
widgets.round_live(
    theirs.trace, lambda token: target.tokenizer.decode([token]), before=theirs.tokens[:1].tolist()
)

# %% [markdown]
# ## The hole
#
# Look once more at `speculate`. After a round in which **all** guesses were accepted, how long is the draft model's cache? It wrote
# the last guess, but nobody fed it that guess: its cache ends one token early. `write_draft` above is safe, because it reads
# *whatever its cache lacks*. Here is a version that assumes, once the prompt is read, that the cache lacks the pending token only.


# %%
def write_draft_with_a_hole(model, text, cache, count):
    if cache.lengths[0]:  # the prompt has been read, so ...
        cache.lengths = [len(text) - 1]  # ... "all but the pending token is there"
    return write_draft(model, text, cache, count)


sound, sound_accepted = speculate(prompt, 60, 2)
faulty, faulty_accepted = speculate(prompt, 60, 2, write_draft=write_draft_with_a_hole)
assert sound[:60] == faulty[:60]
print("the same text:", sound[:60] == faulty[:60])
print(f"rounds without the hole: {len(sound_accepted)}; with it: {len(faulty_accepted)}")

# %% [markdown]
# The text is still right, since the target decides it. So no test that looks at texts can find this fault. It shows only in
# acceptance, and there it looks like a draft model that is a little weaker than hoped.
#
# There is a test that finds it at once. **Let the target draft for itself.** Then every guess must be accepted, in every round.

# %%
_, sound_accepted = speculate(prompt, 24, 3, small=target.model)
_, faulty_accepted = speculate(
    prompt, 24, 3, small=target.model, write_draft=write_draft_with_a_hole
)
print("the target as its own drafter, accepted of 3:", *sound_accepted)
print("the same with the hole:                      ", *faulty_accepted)
assert set(sound_accepted) == {3} and faulty_accepted[0] == 3 and set(faulty_accepted) != {3}

# %% [markdown]
# The first round is right in both, because no round came before it. From then on the faulty drafter reads with a hole in its
# memory. Keep this test: it finds almost every mistake in a drafter's bookkeeping (positions, caches, a mask that is one off).
#
# ## How often is a guess accepted?
#
# One request says little. Here are six of the 48 requests that come with the package, of three kinds, with four guesses a round. For
# position *k* in the draft, count only the rounds in which everything before it was accepted (those in which it was *tried*): the share
# accepted among them is the **acceptance rate at position k**.

# %%
from minispec.audit import read_requests
from minispec.trace import Trace

kinds = ("explain", "code", "reasoning")
requests = [
    request
    for request in read_requests()
    if request["kind"] in kinds and request["id"][-2:] in ("-1", "-2")
]
prompts = [target.encode(request["messages"]) for request in requests]
runs = [
    ms.generate(target, p, drafter=ms.DraftModel(draft, num_tokens=4), max_new_tokens=48)
    for p in prompts
]
for request, run in zip(requests, runs):
    print(
        f"{request['id']:<12}{run.trace.tokens_per_pass:.2f} tokens a round: "
        f"{' '.join(run.text.split()[:8])} ..."
    )

# %%
pooled = Trace([round for run in runs for round in run.trace.rounds])
rates = pooled.acceptance_by_position
tried = [sum(round.tried > k for round in pooled.rounds) for k in range(len(rates))]
show(
    plots.acceptance_by_position({"draft model, six requests": pooled}),
    alt="The share of guesses that were accepted, against the position in the draft, "
    "of those that were tried there.",
    numbers="accepted of tried, by position: "
    + ", ".join(f"{rate * n:.0f}/{n}" for rate, n in zip(rates, tried)),
)

# %% [markdown]
# Acceptance differs much between requests. (The package's README has all kinds; with some, this draft model does worse.) And see how fast
# the number of tries falls: the rates at the later positions rest on few rounds, so do not read much into their ups and downs.
#
# From these rates follows what a draft of any length is worth. A round emits one token for certain, a second one if the first guess is
# accepted, a third if the first two are, and so on:
#
# $$E(\text{tokens a round}) = 1 + a_1 + a_1 a_2 + a_1 a_2 a_3 + \dots$$
#
# If all rates were equal this would be the geometric sum of Leviathan et al. 2023 (equation 1).

# %%
from minispec.theory import expected_tokens

expected = {n: expected_tokens(rates[:n]) for n in range(len(rates) + 1)}
shorter = [
    ms.generate(target, p, drafter=ms.DraftModel(draft, num_tokens=2), max_new_tokens=48).trace
    for p in prompts
]
counted = Trace([round for trace in shorter for round in trace.rounds]).tokens_per_pass
print(
    "expected tokens a round, by draft length:",
    ", ".join(f"{n}: {tokens:.2f}" for n, tokens in expected.items()),
)
print(f"counted with drafts of two tokens: {counted:.2f}")

# %% [markdown]
# The two need not be equal: with shorter drafts the rounds begin at other places in the text, and the last round of a request is cut.
#
# ## How long should a draft be?
#
# Longer drafts emit more tokens a round, and cost more: each guess is a pass of the small model, and the target's pass becomes wider.
# Two measurements decide: the cost curve of the target's pass (notebook 01) and the time of one guess.

# %%
from minispec.bench import cost_curve

curve = cost_curve(target, sizes=range(1, 14), repeats=9)
guess_s = cost_curve(draft, sizes=[1], repeats=15)[1]
print(
    "target, ms by tokens in the pass:",
    ", ".join(f"{n}: {here(f'{1e3 * s:.0f}')}" for n, s in curve.items()),
)
print(
    f"draft model, one guess: {here(f'{1e3 * guess_s:.1f} ms')}, "
    f"{here(f'{guess_s / curve[1]:.2f}')} of a target pass"
)

# %% [markdown]
# With *n* guesses, a round takes the time *t*(1 + *n*) of a pass over 1 + *n* tokens, and *n* times the time *g* of a guess. Without
# guesses, *E* tokens take *E* · *t*(1). So the speedup is at best
#
# $$\frac{E \cdot t(1)}{t(1 + n) + n\,g}.$$
#
# *At best*, because nothing but passes and guesses is counted.

# %%
bound = {n: tokens * curve[1] / (curve[1 + n] + n * guess_s) for n, tokens in expected.items()}
best = max(bound, key=bound.get)
show(
    plots.lines(
        {"at best, on this machine": bound, "if checking and drafting were free": expected},
        "What a draft of n tokens gains",
        "drafted tokens a round",
        "times as fast as plain decoding",
        level=1,
    ),
    alt="Two lines against the number of drafted tokens: the gain if checking and drafting "
    "were free, which rises, and the gain at best with this machine's costs, which lies below it.",
    numbers="at best: " + ", ".join(f"{n}: {here(f'{gain:.2f}')}" for n, gain in bound.items()),
)
print(
    f"best length here: {here(best)} drafted tokens, "
    f"{here(f'{bound[best]:.2f}')} times as fast at best"
)

# %% [markdown]
# (If neighbouring times jump about, the machine was busy with something else: run the last three cells again.)
#
# The upper line is what acceptance alone promises. The lower one is what is left when guesses and wider passes are paid for. If it
# has its top at 0, with a gain of exactly 1, then on this machine, with these two models, in this dtype, **no draft pays**, and the
# honest advice is not to draft. That is no failure of the method: it is what the cost curve says about a small model on a
# processor whose arithmetic is already busy with one token.
#
# Whether you see a gain or a loss above, you can now say why, and what would have to change: a cheaper guess, a higher acceptance,
# or a flatter curve. Try it: the calculator draws the bound for any acceptance (the same at every position) and any cost of a guess,
# with your machine's curve and for an ideal machine, on which a pass costs the same over any number of tokens.

# %%
widgets.speedup_panel(curve)

# %% tags=["live"]
widgets.speedup_live(curve)

# %% [markdown]
# ## Stop when unsure
#
# A fixed length is crude. The draft model knows something about its own chances: how likely it finds its best guess. `DraftModel`
# can stop where that falls below `min_confidence`.

# %%
total = {}
for confidence in (0.0, 0.3, 0.6):
    drafter = ms.DraftModel(draft, num_tokens=4, min_confidence=confidence)
    traces = [
        ms.generate(target, p, drafter=drafter, max_new_tokens=48).trace for p in prompts[::2]
    ]
    rounds = [round for trace in traces for round in trace.rounds]
    drafted, taken = sum(len(r.drafted) for r in rounds), sum(len(r.accepted) for r in rounds)
    total[confidence] = drafted
    print(
        f"stops below {confidence}: {len(rounds)} rounds, {drafted} tokens drafted, "
        f"{taken} of them accepted"
    )
assert total[0.6] < total[0.3] < total[0.0]

# %% [markdown]
# The higher the threshold, the fewer guesses are wasted, and the more chances are missed: every accepted guess that is lost is a pass
# more. Where the balance lies, the costs above decide. The stop is decided *before* the target looks at the guess, so the text is not
# touched. The draft model that ships with the package stops below 0.3 (`ms.load_drafter("draft", lm)`), and guesses only the 8,192 ids
# that are most frequent in what the target writes, which makes a guess cheaper.
#
# ## Summary
#
# - One pass over the pending token and *n* guesses gives *n + 1* answers. Accept the guesses that agree, take the answer after them.
# - The output is the target's, token by token, whatever the drafter does. Only the number of passes depends on it.
# - Rewinding a cache is setting its length. After a full accept the drafter's cache lacks one token: it must read it, or acceptance
#   falls without any visible error.
# - A draft pays if its expected tokens outweigh a wider pass and the guesses. Both are measured, not assumed.
#
# ## Questions
#
# **1.** A colleague's implementation emits, after a rejection, the next token in the *following* round only, so that a round without an
# accepted guess emits nothing. Is the text still right? What is the cost?
#
# <details><summary>Answer</summary>
#
# What is emitted is right, but the loop may never end: after a round that emits nothing, the same draft model makes the same wrong guess
# about the same text. The pass that rejected the guess had already computed what stands there instead. Taking it guarantees one token
# a round, so that speculation never needs more passes than plain decoding.
#
# </details>
#
# **2.** Acceptance is 0.8 at every position, a pass over *n + 1* tokens costs the same as a pass over one, and a guess costs a tenth of a
# pass. What do four guesses gain at best?
#
# <details><summary>Answer</summary>
#
# Expected tokens: 1 + 0.8 + 0.64 + 0.512 + 0.4096 = 3.36. A round costs 1 + 4 · 0.1 = 1.4 passes. 3.36 / 1.4 = 2.4 times as fast, at
# best.
#
# </details>
#
# **3.** You replace the draft model by one that is twice as good, and the speedup does not change. Your texts are right. Name two
# things to look at.
#
# <details><summary>Answer</summary>
#
# The drafter's bookkeeping: let the target draft for itself; all must be accepted. And the costs: a draft model that is better
# because it is larger may cost what it gains, and past some length the cost curve takes what acceptance gives.
#
# </details>
#
# ## Change it
#
# - Give `speculate` a drafter that repeats the last token `count` times. Predict the rounds, then run it. The text must not change. Why
#   does it hardly matter how large `count` is?
# - Replace the prompt by "Write a poem about the sea.", then by "Count from 1 to 40.", and compare the tokens a round. Is counting as easy
#   to guess as you thought? (`speculate` does not stop at the end of a text: choose prompts with answers of 60 tokens or more.)
# - If you have a GPU, change `device` in the first cell and run the section on draft length again. Which of the two measurements changes
#   more?
#
# **Exercise:** [ex02](../exercises/ex02_greedy_verification.ipynb), the loop, to its last corner; each task is checked at once.
#
# **Next:** with a temperature the target *draws* its token, and "equal to the argmax" is no longer the question. [Notebook
# 03](03_rejection_sampling.ipynb) finds the rule that keeps the target's distribution exactly.
