# %% [markdown]
# # 00 · Start here
#
# A language model writes one token at a time, and for each token it reads all of its weights. **Speculative decoding** lets something
# cheap guess a few tokens ahead, and has the model check all guesses in one pass. The text stays what the model would have written;
# only the number of passes falls.
#
# In this course you build it, from the first line, on a real language model: 135 million parameters, small enough for a laptop without
# a GPU. And you find out for yourself when it helps and when it does not.
#
# **You will be able to** say what the course holds and choose your way through it; check that your machine is ready; see three
# methods write the same text in a different number of passes.
#
# **You should know** some PyTorch, and roughly what a transformer does. **Time:** 10 minutes, of which one is computing. **Needs:** a
# CPU. The model (93 MB) is fetched once; after that no network is needed.
#
# ## The map
#
# | notebook | you build | minutes |
# |---|---|---|
# | **00 start here** | a race between three methods | 10 |
# | [01 autoregressive decoding](01_autoregressive_decoding.ipynb) | decoding, the key-value cache, and what a pass costs | 45 |
# | **[02 greedy speculative decoding](02_greedy_speculative_decoding.ipynb)** | draft, verify, accept: the loop | 25 |
# | **[03 rejection sampling](03_rejection_sampling.ipynb)** | the same with a temperature, and the proof that nothing changes | 40 |
# | [04 n-gram lookup](04_ngram_lookup.ipynb) | drafting without a model | 20 |
#
# **If you have one hour:** 00, 02, and 03 up to "A test on samples". They hold the whole idea. **If your question is "will it help me?":** 01, then the sections
# on draft length in 02 and on losing in 04.
#
# The [glossary](glossary.md) lists the words of the subject, with the place where each is explained.
#
# Each notebook builds its method in plain code first, then shows that the package `minispec` does the same. The package is small
# enough to be read: each method is one file.
#
# ## Is this machine ready?
#
# Numbers between ⟦ and ⟧ are readings of the machine that ran the cell: times, versions, memory. Yours will differ. All other output
# should be the same on your machine, and the project's checks compare it word for word.

# %%
import os
import platform
import sys
from importlib.metadata import version

import torch

import minispec as ms
from minispec import hub, widgets
from minispec.notebook import here

torch.set_num_threads(min(2, torch.get_num_threads()))  # two at most: the same numbers everywhere
fine = sys.version_info[:2] >= (3, 10)
print(
    "Python",
    here(platform.python_version()),
    "(fine)" if fine else "(too old: the package needs 3.10 or newer)",
)
print("torch", here(torch.__version__), "and transformers", here(version("transformers")))

# %% [markdown]
# The next cell fetches the model if it is not there yet, and opens it. Its weights have a checksum: every number in this course was
# measured on exactly these weights.

# %%
lm = ms.load("smollm2-135m", device="cpu", dtype="float32")
right = hub.sha256(lm.folder / "model.safetensors") == hub.WEIGHTS_SHA256
print(
    "weights: the right ones"
    if right
    else "weights: other ones; delete their folder and run this cell again"
)
print(
    f"{sum(weight.numel() for weight in lm.model.parameters()):,} parameters, "
    f"{len(lm.model.layers)} layers"
)

# %%
device, dtype = hub.pick_device(), hub.pick_dtype(device=hub.pick_device())
advice = {
    "cuda": "a GPU is there; the notebooks run on the CPU unless you change "
    "device='cpu' to device='cuda'",
    "mps": "Apple's GPU is there; the notebooks run on the CPU unless you change device='cpu'",
    "cpu": "no GPU; everything here runs without one",
}
print(
    here(
        f"{torch.get_num_threads()} of {os.cpu_count()} processors used, best device {device}, "
        f"dtype that ms.load picks {dtype}"
    )
)
print(here(advice[device.type]))

# %% [markdown]
# ## The race
#
# One request, three methods. **Autoregressive** is plain decoding: a pass, a token. **N-gram lookup** looks for an earlier place with the
# same last few tokens, and copies what followed there, eight tokens at most. The **draft model** is a small network, trained on what the
# large one writes.
#
# The request asks for a text to be repeated with a change, so much of the answer can be copied.

# %%
request = """Rewrite this note for a colleague. Keep the facts, and change "I" to "we":

I moved the backup job to three in the morning, because the database was slow at midnight. \
I also made the job
write its log to a file of its own. If the job fails twice, I get a message."""

drafters = {
    "autoregressive": None,
    "n-gram lookup": ms.NGram(),
    "draft model": ms.load_drafter("draft", lm),
}
for drafter in drafters.values():
    ms.generate(lm, request, drafter=drafter, max_new_tokens=4)  # a process's first passes are slow

# %%
runs = {
    name: ms.generate(lm, request, drafter=drafter, max_new_tokens=64)
    for name, drafter in drafters.items()
}
print(runs["autoregressive"].text)

# %% [markdown]
# (It did not change "I" to "we", and it lost a fact: a model of this size is not clever. What matters here is that it is a real one, and
# that all methods write *exactly* this text.)

# %%
first = runs["autoregressive"].tokens
for name, run in runs.items():
    assert run.tokens.equal(first)
    count = len(run.trace.rounds) + 1  # one more: the pass that read the prompt
    seconds = run.trace.ttft_s + sum(round.seconds for round in run.trace.rounds)
    print(
        f"{name:<15} {len(run.tokens)} tokens, the same text, in {count:>2} passes; "
        f"{here(f'{len(first) / seconds:.0f} tokens a second')}"
    )
assert len(runs["n-gram lookup"].trace.rounds) < len(runs["autoregressive"].trace.rounds)

# %% [markdown]
# The same text, in fewer passes: far fewer with lookup, hardly fewer with the draft model, which has not learnt to copy. Whether fewer
# passes also mean less *time* is another question, and the reason why this course measures so much: a pass that checks eight guesses
# costs more than a pass over one token, and guessing costs something too.
#
# (We compute in float32. In bfloat16, a pass over several tokens rounds otherwise than a pass over one, and where two tokens are nearly
# equally likely the texts can part; the README says how often, and by how little.)
#
# Here is how the race went on this machine:


# %%
def passes(run):
    """What each pass emitted, and the second at which it was there."""
    clock, emitted = run.trace.ttft_s, [(run.trace.ttft_s, run.tokens[:1].tolist())]
    for round in run.trace.rounds:
        clock += round.seconds
        emitted.append((clock, round.emitted))
    return emitted


widgets.race_panel({name: passes(run) for name, run in runs.items()})

# %% [markdown]
# Look at the steps. Plain decoding climbs one token at a time. Lookup climbs several at once where it copies, after passes that take
# longer. Who wins depends on how tall and how long the steps are, and both can be measured. You will do that in notebooks 01 and 02.
#
# ## Try it yourself
#
# With a running kernel, the next cell lets two methods race on a prompt of yours, side by side. Try a request whose answer repeats the
# question ("Repeat the following text exactly." and two sentences), then a free one ("Why is the sky blue?").

# %% tags=["live"]
widgets.race_live(lm, drafters)

# %% [markdown]
# ## How the notebooks work
#
# - Open the `.ipynb` files (the `.py` beside each is its source) and run them from top to bottom. A live cell that you find again later has
#   to be run again. Every figure was drawn by the cell above it; change the cell and draw it again.
# - Each ends with a summary and three questions with folded answers; from 01 on, also with things to change in the code.
# - Claims about *counted* work (passes, tokens) are checked by `assert` in the cells. Claims about *time* are only printed: they are true
#   of one machine.
#
# ## Summary
#
# - Speculative decoding trades passes over one token for fewer passes over several.
# - The text does not change. That is a claim about the code, and this course proves it rather than trusting it.
# - Fewer passes are not yet less time. The cost of a pass, on your machine, decides.
#
# ## Questions
#
# **1.** A method needs half as many passes as plain decoding, and takes longer. How can that be?
#
# <details><summary>Answer</summary>
#
# Its passes are wider (they check guesses beside the next token), and the guesses themselves take time. If a pass over nine tokens takes
# twice as long as a pass over one, half as many passes have gained nothing, before a single guess is paid for.
#
# </details>
#
# **2.** Why does the draft model not have to be good for the text to be right?
#
# <details><summary>Answer</summary>
#
# Because the large model checks every guess and keeps only what it would have written. A bad guess costs time, never correctness. (With a
# temperature, "what it would have written" takes more care: notebook 03.)
#
# </details>
#
# **3.** On which of your own tasks would you expect lookup to gain most?
#
# <details><summary>Answer</summary>
#
# Where the answer repeats what stands in the prompt: editing a text or code, summarising, answering from a document. Notebook 04
# measures it.
#
# </details>
#
# **Next:** [02, greedy speculative decoding](02_greedy_speculative_decoding.ipynb), if you have one hour; else [01, autoregressive
# decoding and what a pass costs](01_autoregressive_decoding.ipynb).
