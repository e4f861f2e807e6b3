# %% [markdown]
# # 04 · N-gram lookup: drafting without a model
#
# Ask a model to correct or condense a text, and most of its answer already stands in your question. Then the best drafter is no model at all:
# find where the last few words stood before, and guess that the same words follow.
#
# **You will be able to** write prompt lookup in ten lines; name three traps in it and a choice; predict from the overlap of answer and prompt
# how much it gains; try out any setting on a known text without running the model.
#
# **You should know** the loop *draft, verify, accept* (notebook 02). **Time:** 20 minutes, of which two are computing. **Needs:** a
# CPU. With a GPU, change one line in the next cell.

# %%
import torch

import minispec as ms
from minispec import plots
from minispec.audit import read_requests
from minispec.notebook import here, show

torch.set_num_threads(min(2, torch.get_num_threads()))  # two at most: the same numbers everywhere
device = "cpu"  # "cuda" if you have a GPU
target = ms.load("smollm2-135m", device=device, dtype="float32")
requests = {request["id"]: request for request in read_requests()}  # the package's 48 requests
print(requests["summarise-1"]["messages"][0]["content"])

# %%
prompt = target.encode(requests["summarise-1"]["messages"])
plain = ms.generate(target, prompt, max_new_tokens=70)
print(plain.text)

# %% [markdown]
# Most of the answer can be read in the question: whole phrases, in the same order. A model that writes them token by token works each
# one out from all of its weights. (A model of this size is not good at its task; where it departs from the question it is often wrong.
# That does not matter here.)
#
# ## Ten lines
#
# Take the last *n* tokens of the text so far (an *n-gram*), look for an earlier place where the same *n* tokens stand, and copy what
# follows there. Try long n-grams first: where more words agree, the continuation is more likely to agree too.


# %%
def look_up(text, most, sizes=(4, 3, 2)):
    """What followed the longest n-gram that ends `text` and stood in it before; `most` at most."""
    for n in sizes:
        ending = text[-n:]
        # the latest earlier place first; the ending itself is left out
        for at in range(len(text) - n - 1, -1, -1):
            if text[at : at + n] == ending:
                return text[at + n : at + n + most]
    return []


words = ["the", "red", "fox", "saw", "the", "blue", "fox", "and", "the", "red"]
print("after 'the red':", look_up(words, 3))
print("after 'and the':", look_up(words[:-1], 3))
print("with n = 1 too: ", look_up(words[:-1], 3, sizes=(2, 1)))

# %% [markdown]
# Saxena 2023 published this as *prompt lookup decoding*. Three details decide whether it works, and one is a choice:
#
# 1. **The ending must not find itself.** The last *n* tokens stand at the end of the text, trivially; the search has to start before
#    them, or every lookup succeeds with nothing behind it.
# 2. **No match costs nothing.** Then there is no draft, and the round is a plain pass over one token. A made-up guess in its place
#    would cost a wider pass.
# 3. **A short continuation is used.** If only two tokens follow the match, two are drafted.
# 4. **Which match?** That is a choice. `ms.NGram` takes the latest (`match="latest"`), vLLM the earliest.

# %%
assert look_up([*"abcab"], 4) == [*"cab"]  # 1 and 3: not the ending itself; three tokens suffice
assert look_up([*"abc"], 4) == []  # 2: no match, no draft
assert look_up([*"abcabdab"], 1) == ["d"]  # 4: the latest
print("checked:", look_up([*"abcab"], 4), look_up([*"abc"], 4), look_up([*"abcabdab"], 1))

# %% [markdown]
# ## The same loop as before
#
# The loop is that of notebook 02, with another drafter. There is one cache less, because nothing but the text is remembered.


# %%
@torch.inference_mode()
def speculate(prompt, most, count=8):
    text, cache = prompt.tolist(), target.model.new_cache(1, len(prompt) + most + count + 1)
    text.append(target.model(prompt[None].to(device), cache)[0, -1].argmax().item())
    accepted_counts = []
    while len(text) < len(prompt) + most:
        guesses = look_up(text, count)
        answers = (
            target.model(torch.tensor([[text[-1], *guesses]], device=device), cache)[0]
            .argmax(-1)
            .tolist()
        )
        accepted = 0
        while accepted < len(guesses) and guesses[accepted] == answers[accepted]:
            accepted += 1
        text += [*guesses[:accepted], answers[accepted]]
        cache.lengths = [len(text) - 1]
        accepted_counts.append(accepted)
    return text[len(prompt) :], accepted_counts


mine, accepted = speculate(prompt, most=70)
assert mine[: len(plain.tokens)] == plain.tokens.tolist()
print(
    f"{len(mine)} tokens, the same ones, "
    f"in {len(accepted) + 1} passes of the target instead of {len(mine)}"
)

# %% [markdown]
# The package's `ms.NGram` is this drafter. It keeps a table from n-grams to the places that follow them, so that a lookup takes the same
# time in a long text as in a short one.

# %%
lookup = ms.generate(
    target, prompt, drafter=ms.NGram(min_ngram=2, max_ngram=4, num_tokens=8), max_new_tokens=70
)
rounds = lookup.trace.rounds
assert lookup.tokens.tolist() == plain.tokens.tolist()
# the last round is cut at 70 tokens
assert [len(round.accepted) for round in rounds][:-1] == accepted[: len(rounds) - 1]
show(
    plots.token_tape(lookup.trace, lambda token: target.tokenizer.decode([token])),
    alt="A tape of tokens, one line a round: some rows are long and filled with copied tokens, "
    "some have struck-out tokens, and some hold the target's own token only.",
    numbers="accepted of drafted, by round: "
    + ", ".join(f"{len(r.accepted)}/{len(r.drafted)}" for r in rounds[:12]),
)
print(f"{lookup.trace.tokens_per_pass:.2f} tokens a round (prefill is not counted as a round)")

# %% [markdown]
# Rounds 1 and 2 end only because a draft holds eight tokens. Round 3 ends because the answer departs from the question: the copy is wrong,
# and the target corrects it. Two tokens after they agree again there is a match, and the copy goes on. Rounds without a match draft nothing:
# one frame, no struck-out tokens. And some rounds match by accident: eight guesses, none right, a pass over nine tokens for one token.
#
# ## Overlap predicts the gain
#
# How much of an answer can be copied depends on the request. Take two requests of each of the eight kinds, and set side by side how
# many tokens a round lookup emits, and the **overlap**: the share of the answer's 3-grams that stood in the text before, in the prompt or in
# the answer so far. (Requests -2 and -3 of each kind; -1 of one kind was used above.)

# %%
kinds = list(dict.fromkeys(request["kind"] for request in requests.values()))
chosen = [request for request in requests.values() if request["id"][-2:] in ("-2", "-3")]
prompts = [target.encode(request["messages"]).tolist() for request in chosen]
runs = [
    ms.generate(target, torch.tensor(p), drafter=ms.NGram(), max_new_tokens=48) for p in prompts
]
answers = [run.tokens.tolist() for run in runs]
print(
    f"{len(runs)} answers, {sum(map(len, answers))} tokens, "
    f"{sum(len(run.trace.rounds) + 1 for run in runs)} passes"
)


# %%
def ngrams(tokens, n=3):
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]


def overlap(prompt, answer):
    known, seen_before = set(ngrams(prompt)), 0
    for gram in ngrams(answer):
        seen_before += gram in known
        known.add(gram)
    return seen_before / max(1, len(ngrams(answer)))


points = {kind: [] for kind in kinds}
for request, p, run, answer in zip(chosen, prompts, runs, answers):
    points[request["kind"]].append((overlap(p, answer), run.trace.tokens_per_pass))

# %%
numbers = "; ".join(
    f"{kind} " + ", ".join(f"({x:.2f}, {y:.2f})" for x, y in ps) for kind, ps in points.items()
)
show(
    plots.dots(
        points,
        "Overlap predicts what lookup gains",
        "share of the answer's 3-grams that stood in the text before",
        "tokens a round",
        level=1,
    ),
    alt="A dot for each of sixteen requests: the more of the answer's 3-grams stood in the text "
    "before, the more tokens a round.",
    numbers="(overlap, tokens a round): " + numbers,
)

# %%
from scipy.stats import spearmanr

pairs = [pair for ps in points.values() for pair in ps]
rank = spearmanr(*zip(*pairs)).statistic
print(f"rank correlation of overlap and tokens a round, over {len(pairs)} requests: {rank:.2f}")

# %% [markdown]
# (Rank correlation is 1 if both put the requests in the same order, and 0 if the one says nothing about the other.)
#
# Where an answer says new things, a round emits hardly more than one token; where it repeats the question or itself (names, list items, a
# refrain), more. Before you celebrate the highest dot, read its text:

# %%
best = max(range(len(runs)), key=lambda i: runs[i].trace.tokens_per_pass)
print(f"{chosen[best]['id']}, {runs[best].trace.tokens_per_pass:.2f} tokens a round:")
print(runs[best].text)

# %% [markdown]
# The model has fallen into a loop, and nothing is easier to guess than a loop. Tokens a round measure how *predictable* a text is, not how
# good it is. When a benchmark shows a very large gain for lookup, read the texts.
#
# ## Try settings without the model
#
# At temperature 0 the text does not depend on what was drafted. So once a text is known, any drafter can be **replayed** against it,
# without a single pass of the target: walk along the text, draft, count how far the draft agrees. That takes milliseconds instead of
# minutes.


# %%
def replay(prompt, answer, most, sizes):
    """(drafted, accepted) of each round that would have written `answer`."""
    done, rounds = 1, []  # the first token comes from prefill
    while done < len(answer):
        guesses = look_up(prompt + answer[:done], min(most, len(answer) - done - 1), sizes)
        right = 0
        while right < len(guesses) and guesses[right] == answer[done + right]:
            right += 1
        rounds.append((len(guesses), right))
        done += right + 1
    return rounds


replayed = [replay(p, answer, 8, (4, 3, 2)) for p, answer in zip(prompts, answers)]
assert [len(rounds) for rounds in replayed] == [len(run.trace.rounds) for run in runs]
print(
    "replayed rounds:",
    sum(map(len, replayed)),
    "  real rounds:",
    sum(len(run.trace.rounds) for run in runs),
)

# %% [markdown]
# The replay agrees with the real runs, round for round. Now change the settings: how short an n-gram may count as a match, and how long a
# draft may be.

# %%
print("shortest n-gram   longest draft   rounds   drafted   accepted of them")
for shortest in (1, 2, 3):
    for most in (2, 4, 8, 16):
        sizes = tuple(range(4, shortest - 1, -1))
        rounds = [r for p, answer in zip(prompts, answers) for r in replay(p, answer, most, sizes)]
        drafted, right = sum(d for d, _ in rounds), sum(a for _, a in rounds)
        print(f"{shortest:>15}{most:>16}{len(rounds):>9}{drafted:>10}{right / drafted:>12.0%}")

# %% [markdown]
# Two forces are at work. A match of a single token is often an accident: it drafts much and is right seldom. Demanding three tokens drafts
# little and is right more often, but misses chances. And longer drafts save rounds only where whole sentences are copied; elsewhere they
# are rows of a pass that nobody needed.
#
# ## When it loses
#
# Lookup itself is nearly free, but checking is not: a pass over *n + 1* tokens costs more than a pass over one, on this machine as much as the
# cost curve says (notebook 01). A round that drafts eight tokens and accepts none has paid for a wide pass and got one token.

# %%
from minispec.bench import cost_curve

curve = cost_curve(target, sizes=range(1, 18), repeats=3)
print(
    "tokens in the pass:",
    ", ".join(f"{n}: {here(f'{1e3 * curve[n]:.0f} ms')}" for n in (1, 2, 3, 5, 9, 17)),
)
# %% [markdown]
# It tells what rounds can gain at best: their tokens would have taken as many plain passes, and the time of these is divided by
# that of the rounds.


# %%
def gain(rounds):
    """At best: plain passes over the time of these rounds, both from the cost curve."""
    tokens = sum(accepted + 1 for _, accepted in rounds)
    return tokens * curve[1] / sum(curve[1 + drafted] for drafted, _ in rounds)


# %%
lengths = (2, 4, 8, 16)
gains = {}
for kind in kinds:
    mine = [i for i, request in enumerate(chosen) if request["kind"] == kind]
    gains[kind] = [
        gain([r for i in mine for r in replay(prompts[i], answers[i], n, (4, 3, 2))])
        for n in lengths
    ]
    print(
        f"{kind:<10}", ", ".join(f"{n}: {here(f'{g:.2f}')}" for n, g in zip(lengths, gains[kind]))
    )

# %%
show(
    plots.bars(
        {f"at most {n} tokens": [gains[kind][i] for kind in kinds] for i, n in enumerate(lengths)},
        kinds,
        "What lookup gains at best on this machine, by the longest draft allowed",
        "times as fast",
        level=1,
    ),
    alt="Four bars for each kind of request, one for each longest draft: "
    "the gain at best on the machine that ran this.",
    numbers="drafts of at most 8 tokens: "
    + ", ".join(f"{kind} {here(f'{gains[kind][2]:.2f}')}" for kind in kinds),
)
losers = [kind for kind in kinds if gains[kind][2] < 1]
print("kinds that lose with 8 tokens here:", here(", ".join(losers) or "none"))

# %% [markdown]
# A bar below the line at 1 is a loss. If your machine shows any, they are at kinds where most matches are accidents: the drafts are long, few
# of their tokens are accepted, and the wide passes are paid for all the same. Where the curve is flat, nothing is lost by trying.
#
# Lookup knows *what stood before*; a draft model knows *how language goes on*. To choose between such drafters at every step could gain more
# than either: "Speculative Decoding: Performance or Illusion?" (2026) computes how much for n-grams and EAGLE.
#
# ## With a temperature
#
# Lookup needs nothing new. Its guess was fixed before the target's random number is drawn, so the rule is: draw from p as always, and
# see whether the guess hit it (notebook 03). Here is our first request, four times (at temperature 0 these are four copies of one text):

# %%
for temperature in (0.0, 0.5, 1.0):
    sampling = ms.Sampling(temperature=temperature, top_p=0.9)
    batch = ms.generate_batch(
        target, [prompt] * 4, drafter=ms.NGram(), max_new_tokens=40, sampling=sampling, seed=1
    )
    rounds = [len(generation.trace.rounds) for generation in batch]
    tokens = [len(generation.tokens) - 1 for generation in batch]
    print(f"temperature {temperature}: {sum(tokens) / sum(rounds):.1f} tokens a round")

# %% [markdown]
# On this request a higher temperature copies less faithfully, so fewer guesses hit.
#
# ## Summary
#
# - Lookup drafts what followed the last few tokens before, the longest match first. It has no weights and no cache.
# - Its traps: finding its own ending, paying for no match, dropping short continuations.
# - What it gains follows the overlap of the answer with what stood before. From the task you can guess it in advance; two requests of one
#   kind can still lie far apart.
# - At temperature 0 any drafter can be replayed against a known text: the cheapest experiment in this course.
#
# ## Questions
#
# **1.** Your lookup starts its search at the very end of the text. What does it draft, and what is the sign of it in the trace?
#
# <details><summary>Answer</summary>
#
# The ending finds itself, and nothing follows it: the draft is empty in every round (or, if the code pads it, full of nonsense). The trace
# shows one token a pass even in a text that repeats itself word for word.
#
# </details>
#
# **2.** Two requests have the same tokens a round, 1.5. In one, every second round drafts one token that is accepted, and the others draft
# nothing; in the other, every round drafts eight tokens. Which is faster?
#
# <details><summary>Answer</summary>
#
# The first. Its passes are over one or two tokens, the other's over nine. The tokens are the same; the cost curve decides. (Where it is flat,
# they tie.)
#
# </details>
#
# **3.** Why does lookup need no q at a temperature?
#
# <details><summary>Answer</summary>
#
# q is the distribution that a drafted token was drawn from. A looked-up token was not drawn: given the text, it is certain. With q
# one-hot, the rule of notebook 03 becomes "accept with probability p(x), else draw from p without x, scaled up to sum to 1", and that is
# the same as drawing from p and seeing whether it was x.
#
# </details>
#
# ## Change it
#
# - Give `look_up` the *earliest* match first and replay. Does it matter?
# - Write a request of your own with high overlap ("Repeat this list three times: apple, pear, plum, ...") and one with little; predict their
#   tokens a round. Then: `p = target.encode("your request")`, `run = ms.generate(target, p, drafter=ms.NGram(), max_new_tokens=48)`, and look at
#   `run.text`, `overlap(p.tolist(), run.tokens.tolist())` and `run.trace.tokens_per_pass`.
# - Draft from a different text: a document (a list of token ids) that the answer is likely to quote. One line in `look_up` suffices.
#
# **Exercise:** [ex04](../exercises/ex04_ngram_lookup.ipynb), a table that grows with the text, and drafts for a batch; each task is checked at once.
#
# **The way on.** Lookup knows only the past, a draft model only how language goes on from its own small view. The second half of the
# course ([05](05_medusa.ipynb), [06](06_eagle.ipynb)) looks inside the target: its last hidden state already knows more than one token (Medusa), and can be continued (EAGLE).
