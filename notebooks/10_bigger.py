# %% [markdown]
# # 10 · A bigger GPU, a bigger pair, and a server
#
# So far one small model, on a processor that you own. Here is what changes when the model is fifty times larger, the drafter was trained by somebody
# else, the passes run on a GPU, and a server answers many people at once. And what does not change.
#
# **You will be able to** compute whether a pair of models fits a card, with how much text; say what a target and its drafter must share; open published
# Medusa and EAGLE checkpoints and know which mistakes no reader can see; export a drafter for vLLM; say what several GPUs share in training.
#
# **You should know** draft models (notebook 02), Medusa heads (05) and EAGLE's features (06). **Time:** 50 minutes, of which two are computing.
# **Needs:** a CPU, no network. Two cells want a GPU and a network; without them they say in one line what they would do, and the same code runs here
# on small checkpoints.

# %%
import copy
import dataclasses
import json
import re
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

import minispec as ms
from minispec import plots
from minispec.audit import first_gap, read_requests
from minispec.notebook import here, show

torch.set_num_threads(
    min(2, torch.get_num_threads())
)  # two threads at most: the same numbers everywhere
target = ms.load("smollm2-135m", device="cpu", dtype="float32")
work = Path(tempfile.mkdtemp())  # a folder for what this notebook writes
GPU = False  # True, on a machine with a GPU and a network: two cells do what they announce

# %% [markdown]
# ## What fits which card
#
# Two things fill a card's memory: the **weights**, read in every pass, and the **key-value cache**, which grows with every token of every row. A pair of
# target and draft model has both twice. All of it can be computed before anything is downloaded, from a few numbers that stand in a model's
# `config.json` on the hub.
#
# Here are these numbers for some pairs that people use. They were not typed from memory. Layers, widths, heads and vocabularies are those of litgpt's
# table of architectures (`litgpt/config.py` in Lightning-AI/litgpt, which links each model's `config.json`). Whether input and output embeddings are one
# matrix is as torchtune builds the Llama and Qwen models (pytorch/torchtune, `_model_builders.py` of each family). For SmolLM2-1.7B, which torchtune
# lacks, it is told by the count: with one matrix the formula below gives the 1.71 billion that is published.

# %%
# layers, width, MLP, heads, key-value heads, head width, vocabulary, one embedding matrix
SIZES = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": (30, 576, 1536, 9, 3, 64, 49152, True),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": (24, 2048, 8192, 32, 32, 64, 49152, True),
    "Qwen/Qwen2.5-0.5B-Instruct": (24, 896, 4864, 14, 2, 64, 151936, True),
    "Qwen/Qwen2.5-3B-Instruct": (36, 2048, 11008, 16, 2, 128, 151936, True),
    "Qwen/Qwen2.5-7B-Instruct": (28, 3584, 18944, 28, 4, 128, 152064, False),
    "Qwen/Qwen2.5-32B-Instruct": (64, 5120, 27648, 40, 8, 128, 152064, False),
    "Qwen/Qwen3-0.6B": (28, 1024, 3072, 16, 8, 128, 151936, True),
    "Qwen/Qwen3-8B": (36, 4096, 12288, 32, 8, 128, 151936, False),
    "meta-llama/Llama-3.2-1B-Instruct": (16, 2048, 8192, 32, 8, 64, 128256, True),
    "meta-llama/Llama-3.1-8B-Instruct": (32, 4096, 14336, 32, 8, 128, 128256, False),
    "meta-llama/Llama-3.3-70B-Instruct": (80, 8192, 28672, 64, 8, 128, 128256, False),
}

# %% [markdown]
# A block of the Llama family has four matrices of attention, three of the MLP, and two norms. Qwen2.5 adds biases to queries, keys and values; Qwen3
# adds two small norms instead. Around the blocks stand the embedding, a last norm and the output matrix.


# %%
def parameters(name):
    layers, width, mlp, heads, kv, head, vocabulary, one_matrix = SIZES[name]
    block = width * head * (2 * heads + 2 * kv)  # queries and output; keys and values
    block += 3 * width * mlp + 2 * width  # the MLP, and two norms
    block += head * (heads + 2 * kv) if "Qwen2.5" in name else 0  # biases
    block += 2 * head if "Qwen3" in name else 0  # norms of queries and keys
    return layers * block + width + vocabulary * width * (1 if one_matrix else 2)


def cache_bytes(name):
    """Of one token: a key and a value for each key-value head of each layer, two bytes a number."""
    layers, _, _, _, kv, head, _, _ = SIZES[name]
    return layers * 2 * kv * head * 2


# %% [markdown]
# Formulas like these are easily wrong by a norm or a factor of two, so we check them where we can: against the model that we have loaded, and against
# a number that the hub itself counts in the files of Qwen2.5-7B-Instruct (7,615,616,512).

# %%
default = "HuggingFaceTB/SmolLM2-135M-Instruct"
assert parameters(default) == sum(weight.numel() for weight in target.model.parameters())
assert parameters("Qwen/Qwen2.5-7B-Instruct") == 7_615_616_512
assert round(parameters("HuggingFaceTB/SmolLM2-1.7B-Instruct") / 1e9, 2) == 1.71
cache = target.model.new_cache(1, 999)  # and one slot for padding: 1,000; in float32, four bytes
assert cache.nbytes == 1000 * 2 * cache_bytes(default)
print(
    f"our target: {parameters(default):,} weights, {cache_bytes(default):,} bytes of cache a token"
)

# %% [markdown]
# The package can answer the same question without a formula. Torch has a device called `meta`, on which a tensor has a shape and nothing else. There
# even a model of 70 billion weights is built in a moment, by the code that would run it.

# %%
from transformers import AutoConfig

FAMILIES = {"Qwen2.5": ("qwen2", "Qwen2ForCausalLM"), "Qwen3": ("qwen3", "Qwen3ForCausalLM")}
FIELDS = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
FIELDS += ("num_key_value_heads", "head_dim", "vocab_size", "tie_word_embeddings")


def on_paper(name):
    found = [FAMILIES[key] for key in FAMILIES if key in name]
    kind, family = found[0] if found else ("llama", "LlamaForCausalLM")
    settings = dict(zip(FIELDS, SIZES[name]))
    config = AutoConfig.for_model(kind, architectures=[family], **settings)
    with torch.device("meta"):
        return ms.Transformer(config).to(torch.bfloat16)


# %%
for name in SIZES:
    model = on_paper(name)
    assert sum(weight.numel() for weight in model.parameters()) == parameters(name)
    assert model.new_cache(1, 999).nbytes == 1000 * cache_bytes(name)
print(
    f"{len(SIZES)} models, the last with {parameters(name) / 1e9:.1f} billion weights: as computed"
)

# %% [markdown]
# Now the table. Of each card we keep 2 GB aside for all else: what CUDA itself takes, and the intermediate results of a pass. That is a guess; on your
# card `torch.cuda.max_memory_allocated()` knows. What is left after the weights of both models is room for cache, and we print it as **thousands of
# tokens**, of all rows together: 32 means one text of 32,000 tokens, or sixteen of 2,000.

# %%
PAIRS = [  # target, draft model
    ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    ("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    ("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"),
    ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
    ("Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
]
CARDS, ASIDE = (16, 24, 40, 80), 2.0  # GB, of 1,000,000,000 bytes


def memory(pair, thousands):
    """GB of both models in bfloat16, with that many thousand tokens in the cache."""
    return sum(2 * parameters(name) + 1000 * thousands * cache_bytes(name) for name in pair) / 1e9


# %%
def room(pair, card):
    """Thousands of tokens that fit beside the weights of a pair; below 0 if these do not fit."""
    each = memory(pair, 1) - memory(pair, 0)
    return (card - ASIDE - memory(pair, 0)) / each


def short(name):
    return name.split("/")[1].removesuffix("-Instruct")


print(f"{'target + draft model':<32}{'weights':>8}{'cache':>8}{'':>4}thousands of tokens that fit")
print(f"{'':<32}{'GB':>8}{'MB/1000':>8}" + "".join(f"{f'{card} GB':>9}" for card in CARDS))
for pair in PAIRS:
    fits = [f"{room(pair, card):.0f}" if room(pair, card) >= 1 else "no" for card in CARDS]
    each = 1e3 * (memory(pair, 1) - memory(pair, 0))
    row = f"{' + '.join(map(short, pair)):<32}{memory(pair, 0):>8.1f}{each:>8.0f}"
    print(row + "".join(f"{fit:>9}" for fit in fits))

# %% [markdown]
# Read it by columns. A card of 16 GB holds no pair around a target of 7 or 8 billion weights: the weights alone take all of it. (A T4, the usual free
# card, computes no bfloat16 either; minispec then takes float32 for a model trained in bfloat16, twice the memory, unless you say `--dtype float16`.) 24 GB
# hold such a pair with a few long texts. The 70-billion model fits no single card here; two of 80 GB would do, and neither minispec nor this course
# splits a model over cards. vLLM does.
#
# The draft model is a small part of the weights. What surprises is the cache. The smallest pair takes three times as much of it for a token as that of
# Qwen2.5-7B, since SmolLM2-1.7B keeps keys and values for all of its 32 heads, where the others share them in groups (grouped-query attention, Ainslie
# et al. 2023). And Qwen3's draft model, of which the weights are a fourteenth of its target's, adds almost as much cache as the target has: it has nearly as many layers, and as many
# key-value heads in each.

# %%
series, ticks = {}, (1, 2, 4, 8, 16, 32, 64, 128)
for i in (0, 2, 3, 4):
    label = " + ".join(map(short, PAIRS[i]))
    series[label] = {n: memory(PAIRS[i], n) for n in ticks}
crossing = (memory(PAIRS[2], 0) - memory(PAIRS[0], 0)) / (
    memory(PAIRS[0], 1) - memory(PAIRS[0], 0) - memory(PAIRS[2], 1) + memory(PAIRS[2], 0)
)
figure = plots.lines(
    series,
    "Weights and cache of a pair; dotted: a card of 24 GB",
    "tokens in the cache, thousands, all rows together",
    "GB",
    level=24,
    log=True,
)
show(
    figure,
    alt="Four lines of memory against the tokens in the cache. Three begin not far below the level "
    "of a 24 GB card. The pair with the small target begins far below, rises more steeply, and "
    "crosses one of them before the end.",
    numbers="GB at 1, 16 and 128 thousand tokens: "
    + "; ".join(f"{name} {s[1]:.1f}, {s[16]:.1f}, {s[128]:.1f}" for name, s in series.items()),
)
print(f"the first two lines cross at {crossing:.0f} thousand tokens")

# %% [markdown]
# For one user weights decide; for a server with many long texts the cache does. That is where it matters which drafter you choose. A draft model
# brings a cache of its own for all its layers; an EAGLE head has one layer; Medusa heads have none. Their weights are computed just as well:
#
# - **EAGLE-1** for Vicuna-7B (width 4,096, MLP 11,008; `train/vicuna_7B_config.json` in SafeAILab/EAGLE): a matrix from 2 to 1 width, one decoder layer.
# - **EAGLE-3** for Llama-3.1-8B (`eagle/traineagle3/config.json` there): fusing three states, a layer whose attention reads two widths, and an output matrix
#   of its own for 32,000 ids.
# - **Medusa** for Vicuna-7B: five heads of one residual block each, with an output matrix of its own for each head (version 1), or without (version 2).


# %%
def decoder_layer(width, mlp, heads, kv, head, reads=1):
    attention = reads * width * head * (heads + 2 * kv) + heads * head * width
    return attention + 3 * width * mlp + width  # one norm; EAGLE-3's two more are counted below


vicuna, ids = 4096, 32000
heads_v2 = 5 * (vicuna * vicuna + vicuna)
drafters = {
    "EAGLE-1, Vicuna-7B": 2 * vicuna**2 + vicuna + decoder_layer(vicuna, 11008, 32, 32, 128),
    "EAGLE-3, Llama-3.1-8B": 3 * 4096**2
    + decoder_layer(4096, 14336, 32, 8, 128, reads=2)
    + (3 + ids) * 4096,
    "Medusa version 1, Vicuna-7B": heads_v2 + 5 * ids * vicuna,
    "Medusa version 2, Vicuna-7B": heads_v2,
    "Llama-3.2-1B as draft model": parameters("meta-llama/Llama-3.2-1B-Instruct"),
}
for name, count in drafters.items():
    print(f"{name:<30}{count / 1e9:.2f} billion weights, {2 * count / 1e9:.2f} GB")
assert round(drafters["EAGLE-1, Vicuna-7B"] / 1e9, 2) == 0.24  # as EAGLE's README says

# %% [markdown]
# And the same count by the package, for the head that we can open: our own.

# %%
net = ms.load_drafter("eagle", target).net
own = sum(w.numel() for name, w in net.named_parameters() if not name.startswith("embed_tokens"))
width, mlp, heads, kv, head = SIZES[default][1:6]
counted = decoder_layer(width, mlp, heads, kv, head, reads=2) + 3 * width**2
assert own == counted + (3 + len(net.vocabulary)) * width
rows = len(net.vocabulary) * width
print(f"our EAGLE-3 head: {own / 1e6:.1f} million weights, {rows / 1e6:.1f} of them")
print("in rows of the target's own output matrix, which are not trained")

# %% [markdown]
# ## A pair, run
#
# What follows works with any two names of the table. Here it runs on a pair of *folders*, which is what a hub id becomes once it is fetched. Our draft
# model is written as such a folder, with its tokenizer, as `minispec export draft DIR` does; then it is opened like anybody's model.

# %%
from minispec.checkpoints import export_drafter

export_drafter(ms.load_drafter("draft", target), target, work / "small")
for file in sorted((work / "small").iterdir()):
    print(file.name)
small = ms.load(str(work / "small"), device="cpu", dtype="float32")


# %%
def compare(big, small, prompt, most=40, num_tokens=3):
    """One answer, plain and with a draft model: the gap where they part, and both traces."""
    plain = ms.generate(big, prompt, max_new_tokens=most)
    drafter = ms.DraftModel(small, num_tokens=num_tokens)
    drafted = ms.generate(big, prompt, drafter, max_new_tokens=most)
    gap = first_gap(big, big.encode(prompt), plain.tokens, drafted.tokens)
    return gap, plain.trace, drafted.trace


# %%
question = "Write a Python function that returns the sum of a list."
gap, plain, drafted = compare(target, small, question)
assert gap is None  # float32: the same tokens
print(f"the same tokens in {len(drafted.rounds) + 1} passes instead of {len(plain.rounds) + 1}")
print(f"{drafted.tokens_per_pass:.2f} tokens a round")
print("a token:", here(f"{1e3 * plain.tpot_s:.0f} ms plain, {1e3 * drafted.tpot_s:.0f} ms drafted"))

# %% [markdown]
# On a GPU the same function takes a larger pair. Two things differ there. The dtype is bfloat16, so the two texts may part where two logits tie up to
# rounding, and `first_gap` says how far apart they were (notebook 09, trap 6). And a card has more arithmetic for each byte that it
# reads, more *slack* (notebook 01), so the cost curve should be flatter. `minispec info` prints yours.

# %%
PAIR = ("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct")  # any row of the table
if GPU and torch.cuda.is_available():
    big, little = (ms.load(name, device="cuda") for name in PAIR)
    gap, plain, drafted = compare(big, little, question, most=128)
    times = f"{1e3 * plain.tpot_s:.1f} ms a token plain, {1e3 * drafted.tpot_s:.1f} drafted"
    used = f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB used, {memory(PAIR, 0):.1f} computed"
    print(here(f"{times}; {drafted.tokens_per_pass:.2f} tokens a round; gap {gap}; {used}"))
else:
    print(f"with a GPU: fetches {short(PAIR[0])} and {short(PAIR[1])}, and runs compare() on them")

# %% [markdown]
# From the shell it is `minispec generate --method draft --model Qwen/Qwen2.5-3B-Instruct --drafter Qwen/Qwen2.5-0.5B-Instruct --prompt ...`, and `minispec
# bench` takes the same two options. No numbers for large pairs are printed here, since none were measured for this course. One reported case is worth
# knowing before you choose: in vLLM's issue 15025 somebody drafts for a SmolLM2 of 1.7 billion weights with one of 135 million, distilled for the purpose.
# Acceptance is high, and it is *slower*. A reason that fits: the small model has thirty layers, the large one 24 (look at `SIZES`), and on a GPU a token costs at least
# the starting of its layers' operations, however narrow they are. More on that below.
#
# ## What must match
#
# A drafter and its target talk in token ids. So an id must mean the same text to both: **the same tokenizer**, entry by entry. That two models come from
# one family, or that both vocabularies have 32,000 entries, says nothing.
#
# But the *number of rows* of the output matrix need not match. Matrices are padded to sizes that suit the hardware they were trained on. Qwen2.5 has one tokenizer and
# two widths, as the table above says: 151,936 rows up to 3 billion weights, 152,064 from 7 billion on. Engines tripped over it: vLLM refused such pairs
# (issues 5203, 7252 and 10913) until its pull request 13849.
#
# What is right is quickly seen on a target with 6 ids and a draft model that has only the first 4.

# %%
p = torch.tensor([0.30, 0.25, 0.20, 0.10, 0.10, 0.05], dtype=torch.float64)
q = torch.tensor([0.40, 0.10, 0.30, 0.20], dtype=torch.float64)


def emitted(p, q):
    """The law of one token: accepted guesses, and what the residual adds (notebook 03)."""
    accepted = torch.minimum(p, q)
    residual = (p - q).clamp(min=0)
    return accepted + (1 - accepted.sum()) * residual / residual.sum()


wide = emitted(p, F.pad(q, (0, 2)))  # q is 0 for ids that the draft model lacks
narrow = emitted(p[:4] / p[:4].sum(), q)  # p cut down to what both have
print("q padded with zeros:", [f"{x:.2f}" for x in wide.tolist()])
print("p cut down:         ", [f"{x:.2f}" for x in narrow.tolist()], " the target's law is lost")
assert torch.allclose(wide, p)

# %% [markdown]
# Pad q, never cut p. An id that the draft model lacks has q = 0, so it can come only from the residual, and it does, with its full probability. If instead
# the *draft model* has more rows, they must not be drafted: the target has no p for them. minispec drafts what both have, and writes q into the target's
# width. The check is `same_tokenizer`: it compares both vocabularies entry by entry, and does not look at the matrices.

# %%
from minispec.drafters.draft_model import same_tokenizer

wider = ms.toy(vocab_size=49152 + 128, dtype="float32")  # a random model with 128 rows too many
wider = dataclasses.replace(wider, tokenizer=target.tokenizer, name="wider")
same_tokenizer(wider, target)  # raises nothing
run = ms.generate(target, question, ms.DraftModel(wider, num_tokens=2), max_new_tokens=8)
assert run.tokens.tolist() == ms.generate(target, question, max_new_tokens=8).tokens.tolist()
print("49,280 rows beside 49,152, one tokenizer: the same text")

# %%
other = copy.deepcopy(target.tokenizer)
other.add_tokens(["<extra>"])
try:
    same_tokenizer(dataclasses.replace(wider, tokenizer=other, name="other"), target)
    raise AssertionError("it was let through")
except ValueError as error:
    print(error)

# %% [markdown]
# One entry too many suffices. (There are ways around a different tokenizer: decoding and encoding again, or drafting only the words that both
# vocabularies share. transformers has both; this course has neither.)
#
# Heads must match more than that: they read the target's hidden states, so they fit one target, in one version. Heads of another fine-tune of
# the same model load and run, for nothing in their shapes tells the two apart; only acceptance can.
#
# ## Checkpoints that others trained
#
# A head on the hub is a folder with a `config.json` and a file of tensors. There is no standard; there are layouts that grew. These are what minispec
# reads (`minispec/checkpoints/`), with names that you can look up in the model lists of the READMEs of FasterDecoding/Medusa and SafeAILab/EAGLE, and in vLLM's tests:
#
# | layout | for example | how it is told |
# |---|---|---|
# | Medusa, version 1 | `FasterDecoding/medusa-vicuna-7b-v1.3` | `0.0.linear.weight`, and an output matrix `0.1.weight` for each head |
# | Medusa, version 2 | heads of the later trainer | the same without output matrices: the target's is used |
# | EAGLE-1 and 2 | `yuhuili/EAGLE-Vicuna-7B-v1.3` | `layers.0.*` without a first norm, `fc` from two widths |
# | EAGLE-3, original | `yuhuili/EAGLE3-LLaMA3.1-Instruct-8B` | `midlayer.*`, `fc` from three widths, `d2t` and `t2d` |
# | EAGLE-3, speculators | heads made with vLLM's `speculators` | `layers.0.*` with both norms, a nested `config.json` |
#
# On a machine with a network, `ms.load_drafter("eagle", lm, "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", tree="chain")` opens one. **No published weights were
# opened to make this course.** What we can do is to write small checkpoints with exactly these names, shapes and flags, compute by hand what they should
# give, and compare. The target is a toy of seven layers, width 16, 20 ids, in float64.

# %%
from safetensors.torch import save_file

toy = ms.toy(vocab_size=20, seed=0, num_hidden_layers=7)


def noise(shapes):
    dice = torch.Generator().manual_seed(3)
    draw = lambda shape: 0.4 * torch.randn(shape, generator=dice, dtype=torch.float64)
    return {name: draw(shape) for name, shape in shapes.items()}


def write(name, config, tensors, file="model.safetensors"):
    folder = work / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save = save_file if file.endswith(".safetensors") else torch.save
    save(tensors, folder / file)
    return folder


# %% [markdown]
# ### Medusa
#
# A head is a residual block and an output matrix: W (x + SiLU(W₁ x + b)). In version 1 each head has a matrix of its own, in version 2 all use the
# target's. The file is a pickle of a plain table of tensors.

# %%
blocks = {f"{i}.0.linear.weight": (16, 16) for i in (0, 1)}
blocks |= {f"{i}.0.linear.bias": (16,) for i in (0, 1)}
matrices = {"0.1.weight": (20, 16), "1.1.weight": (20, 16)}
medusa = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "someone/7b"}
v1, v2 = noise(blocks | matrices), noise(blocks)
write("medusa-v1", medusa, v1, "medusa_lm_head.pt")
write("medusa-v2", medusa | {"version": "2"}, v2, "medusa_lm_head.pt")


def medusa_by_hand(tensors, i, state):
    x = state + F.silu(tensors[f"{i}.0.linear.weight"] @ state + tensors[f"{i}.0.linear.bias"])
    return tensors.get(f"{i}.1.weight", toy.model.lm_head.weight) @ x


# %%
prompt = torch.tensor([3, 1, 4])
plain_toy = ms.generate(toy, prompt, max_new_tokens=20).tokens.tolist()
state = toy.model.states(prompt[None], toy.model.new_cache(1, 3))[-1][0, -1]  # the last one
for name, tensors in (("medusa-v1", v1), ("medusa-v2", v2)):
    drafter = ms.load_drafter("medusa", toy, work / name)
    wanted = torch.stack([medusa_by_hand(tensors, i, state) for i in (0, 1)])
    torch.testing.assert_close(drafter.net(state), wanted)
    run = ms.generate(toy, prompt, drafter, max_new_tokens=20)
    assert run.tokens.tolist() == plain_toy
    print(f"{name}: {len(drafter.net.blocks)} heads, the logits computed by hand, the same text")

# %% [markdown]
# Version 2 is told by what the file *lacks*, since published configurations do not say it reliably. Nor do they say how many heads there are: EAGLE's
# and Medusa's own loaders read with `strict=False`, and the file for Vicuna-7B holds five heads where its configuration says two. minispec counts them in the file.
#
# ### EAGLE
#
# An EAGLE head is one decoder layer. To compute it by hand without writing attention again, take the first place of a text: there is one key, so the
# softmax over keys is 1, and what attention returns is the value itself, whatever the queries are. That leaves a few matrix products.


# %%
def rms(x, weight):
    return x / (x.square().mean() + 1e-5).sqrt() * weight


def eagle_by_hand(tensors, states, token):
    """Logits at the first place, from the target's states there and the token after it."""
    t = {name.replace("midlayer.", "layers.0."): x for name, x in tensors.items()}
    layer = lambda name, x: t[f"layers.0.{name}.weight"] @ x
    norm = lambda name, x: rms(x, t[f"layers.0.{name}.weight"])
    embedding, third = toy.model.embed_tokens.weight[token], "layers.0.hidden_norm.weight" in t
    if third:  # EAGLE-3: three states are fused; attention reads both, each normed
        x = t["fc.weight"] @ torch.cat(states)
        read = torch.cat((norm("input_layernorm", embedding), norm("hidden_norm", x)))
    else:  # EAGLE-1: embedding and feature become one vector
        x = read = t["fc.weight"] @ torch.cat((embedding, states[-1])) + t["fc.bias"]
    value = layer("self_attn.v_proj", read).view(2, 4).repeat_interleave(2, 0)  # 2 heads serve 4
    x = x + layer("self_attn.o_proj", value.flatten())
    y = norm("post_attention_layernorm", x)
    x = x + layer("mlp.down_proj", F.silu(layer("mlp.gate_proj", y)) * layer("mlp.up_proj", y))
    return t["lm_head.weight"] @ rms(x, t["norm.weight"]) if third else toy.model.lm_head.weight @ x


# %% [markdown]
# And the files. EAGLE-3's head drafts 5 of the 20 ids. The file says which, as *offsets*: `d2t[i]` is the id minus i. (Whoever reads it as a list of ids drafts
# nonsense, loads without an error, and wonders about acceptance.)

# %%
IDS = torch.tensor([1, 4, 5, 11, 19])
ROWS = {"q": 16, "k": 8, "v": 8, "o": 16}


def layer(prefix, reads):
    """Shapes of a decoder layer whose attention reads vectors of that width."""
    shapes = {f"self_attn.{x}_proj.weight": (n, reads) for x, n in ROWS.items()}
    shapes["self_attn.o_proj.weight"] = (16, 16)
    shapes |= {"mlp.gate_proj.weight": (32, 16), "mlp.up_proj.weight": (32, 16)}
    shapes |= {"mlp.down_proj.weight": (16, 32), "post_attention_layernorm.weight": (16,)}
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


# %%
first = noise(layer("layers.0", 16) | {"fc.weight": (16, 32), "fc.bias": (16,)})
third = layer("midlayer", 32) | {"fc.weight": (16, 48), "norm.weight": (16,)}
third |= {"midlayer.input_layernorm.weight": (16,), "midlayer.hidden_norm.weight": (16,)}
third = noise(third | {"lm_head.weight": (5, 16)})
third |= {"d2t": IDS - torch.arange(5), "t2d": torch.isin(torch.arange(20), IDS)}

# %%
llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
llama |= {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 20, "rms_norm_eps": 1e-5}
llama |= {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 10000.0}
nested = {"speculators_model_type": "eagle3", "architectures": ["Eagle3DraftModel"]}
nested |= {"draft_vocab_size": 5, "norm_before_residual": False, "transformer_layer_config": llama}
renamed = {name.replace("midlayer.", "layers.0."): x for name, x in third.items()}
LAYOUTS = {
    "EAGLE-1": (llama | {"bias": True}, first),
    "EAGLE-3, original": (llama | {"draft_vocab_size": 5}, third),
    "EAGLE-3, speculators": (nested, renamed),
}

# %%
text, logits = torch.tensor([[3, 1, 4, 1, 5]]), {}
for name, (config, tensors) in LAYOUTS.items():
    drafter = ms.load_drafter("eagle", toy, write(name, config, tensors), num_tokens=3)
    net = drafter.net
    *states, _ = toy.model.states(text, toy.model.new_cache(1, 5), layers=net.layers_read)
    features = net.fuse(torch.stack(states, 2))[:, :-1]  # [1, 4, width]: of the tokens before ...
    out = net.step(features, text[:, 1:], net.new_cache(1, 4))  # ... these
    logits[name] = net.logits(out)[0]  # [4, ids]
    by_hand = eagle_by_hand(tensors, [s[0, 0] for s in states], token=1)
    torch.testing.assert_close(logits[name][0], by_hand)
    run = ms.generate(toy, prompt, drafter, max_new_tokens=20)
    assert run.tokens.tolist() == plain_toy
    print(f"{name}: reads states {net.layers_read}, drafts {len(net.vocabulary)} ids, as by hand")
assert torch.equal(logits["EAGLE-3, original"], logits["EAGLE-3, speculators"])

# %% [markdown]
# The two EAGLE-3 files hold the same numbers under two naming schemes, and give the same logits at all four places, bit by bit. The whole of it (longer
# texts by hand, own embeddings, Qwen2's biases, every flag) is in `tests/test_checkpoints.py`.
#
# ### What is refused, and what cannot be
#
# Most loaders take what fits and keep quiet about the rest. Then a wrong file drafts badly, and nobody knows why. minispec refuses what is missing, left
# over, of another shape, or asks for something that it does not compute, and names it. Here are some wrong files.


# %%
def refused(what, name, config, tensors, file="model.safetensors"):
    method = "medusa" if "medusa" in name else "eagle"
    folder = write(name, config, tensors, file)
    try:
        ms.load_drafter(method, toy, folder)
    except ValueError as error:
        message = re.sub(re.escape(str(work)) + r"[/\\]", "", str(error))
        print(f"{what}:\n    {re.sub(r' [(]GLOBAL.*?[)]', '', message)}")  # torch's own words
    else:
        raise AssertionError(f"{what}: it was let through")


# %%
SAYS = "EAGLE-3, original", llama | {"draft_vocab_size": 5}
lacks = {name: x for name, x in third.items() if name != "midlayer.hidden_norm.weight"}
refused("a tensor is missing", *SAYS, lacks)
refused("something else is there", *SAYS, third | {"fc_norm.0.weight": torch.ones(16)})
refused("ids where offsets belong", *SAYS, third | {"d2t": IDS})
refused("a flag that is not computed", SAYS[0], SAYS[1] | {"fc_norm": True}, third)
refused("too few heads", "medusa-v1", medusa | {"medusa_num_heads": 5}, v1, "medusa_lm_head.pt")

# %% [markdown]
# One more kind of file must never be opened at all. A pickle can hold instructions, and a loader that follows them runs a stranger's code. Only a table
# of plain tensors is read.


# %%
class Stranger:
    def __reduce__(self):
        return print, ("this would have been run",)


refused("a pickle with code", "medusa-v1", medusa, v1 | {"x": Stranger()}, "medusa_lm_head.pt")

# %% [markdown]
# Then there are flags whose **absence** means different things to different readers. `norm_before_residual` says whether the feature that goes past the
# attention is the normed one. Absent, it is false to speculators' converter and true to vLLM. minispec asks for it, and always writes it. The list of
# layers is worse: SpecForge numbers hidden states by the layer that they come out of, all others by the layer that they go into, under the same
# name. minispec refuses the list that is the usual one counted the other way.

# %%
silent = {name: x for name, x in nested.items() if name != "norm_before_residual"}
refused("silence on a flag", "EAGLE-3, speculators", silent, renamed)
counted = nested | {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
refused("layers by their outputs", "EAGLE-3, speculators", counted, renamed)

# %% [markdown]
# And last, what no reader can see: a flag that is *there*, and wrong. All names and shapes fit, the file loads, and the text stays the target's. Let us
# do that to our own trained head, in the speculators layout, and look at the only thing that changes.

# %%
eagle = ms.load_drafter("eagle", target, tree="chain", num_tokens=3)
export_drafter(eagle, target, work / "head", "speculators")
said = json.loads((work / "head" / "config.json").read_text())
print({name: said[name] for name in ("norm_before_residual", "eagle_aux_hidden_state_layer_ids")})
WRONG = {
    "as it was trained": {},
    "norm_before_residual: true": {"norm_before_residual": True},
    "every layer one too high": {"eagle_aux_hidden_state_layer_ids": [3, 16, 28]},
}
chosen = ("code-1", "reasoning-1", "reasoning-2")
asked = [target.encode(r["messages"]) for r in read_requests() if r["id"] in chosen]
answers = [ms.generate(target, ids, max_new_tokens=40).tokens.tolist() for ids in asked]

# %%
from minispec.trace import Trace

pooled = {}
for name, change in WRONG.items():
    (work / "head" / "config.json").write_text(json.dumps(said | change))
    drafter = ms.load_drafter("eagle", target, work / "head", tree="chain", num_tokens=3)
    runs = [ms.generate(target, ids, drafter, max_new_tokens=40) for ids in asked]
    assert [run.tokens.tolist() for run in runs] == answers
    pooled[name] = Trace([round for run in runs for round in run.trace.rounds])
    print(f"{name:<28}{pooled[name].tokens_per_pass:.2f} tokens a round, the same text")
(work / "head" / "config.json").write_text(json.dumps(said))
right = pooled["as it was trained"].tokens_per_pass
assert all(trace.tokens_per_pass < right for name, trace in pooled.items() if WRONG[name])

# %%
rates = {name: trace.acceptance_by_position for name, trace in pooled.items()}
show(
    plots.acceptance_by_position(pooled),
    alt="Three lines of the share of guesses accepted by position: highest for the head as it was "
    "trained, lower with either of the two wrong settings.",
    numbers="accepted by position: "
    + "; ".join(f"{name} " + ", ".join(f"{r:.2f}" for r in rs) for name, rs in rates.items()),
)

# %% [markdown]
# The first mistake ruins the head, and would be noticed: hardly a guess is accepted. The second is the dangerous one. It looks like a head that is
# a little weaker than one had hoped, and one would go and train it for longer.
#
# So a file that loads and writes the right text is not yet read rightly. There is one defence: **a number that the head's author published for some
# requests, and your count of the same number on them**. Be sure that it is the same number (notebook 09, trap 7).
#
# ## Ours, for others
#
# The other direction: our drafters, as vLLM opens them.
#
# ```
# minispec export draft DIR          # a model like any other: transformers and vLLM open it
# minispec export medusa DIR         # vLLM's Medusa layout; --layout original for the one above
# minispec export eagle DIR          # the original EAGLE-3 layout, which vLLM opens; or --layout speculators
# ```

# %%
from safetensors import safe_open

export_drafter(eagle, target, work / "for-vllm")
with safe_open(work / "for-vllm" / "model.safetensors", "pt") as file:
    for name in sorted(file.keys()):
        print(f"{name:<42}{file.get_slice(name).get_shape()}")

# %%
again = ms.load_drafter("eagle", target, work / "for-vllm", tree="chain", num_tokens=3)
states = torch.randn(1, 5, 3, 576, generator=torch.Generator().manual_seed(0))
tokens = target.encode(question)[None, :5]
both = []
for net in (eagle.net, again.net):
    both.append(net.logits(net.step(net.fuse(states), tokens, net.new_cache(1, 5))))
assert torch.equal(*both)
print("written, read again, the same logits:", torch.equal(*both))

# %% [markdown]
# A server is then started with one option more than without a drafter:
#
# ```
# python -m vllm.entrypoints.openai.api_server --model TARGET \
#     --speculative-config '{"method": "eagle3", "model": "DIR", "num_speculative_tokens": 3}'
# ```
#
# `benchmarks/serve.sh OUT` does all of it: it makes an environment for vLLM, exports, starts a server without a drafter and with each, sends our
# requests with vLLM's own benchmark tool at several concurrencies, and stops the server whatever happens. It is
# made for a GPU and for a CPU, and has run on a CPU only.
#
# ### Does the server do what we do?
#
# A drafter in another engine can go wrong in silence, as we have just seen. So it was checked: same requests, same chain of three, greedy, float32. This is the table of
# `results/xeon-avx512-2-cores/vllm-agreement.md`, made by `benchmarks/vllm_agreement.py` with vLLM 0.32 on the CPU, on the 48 requests with at most 64
# new tokens each (a test compares the rows here with the file):
#
# | method | drafts (vLLM and ours) | mean acceptance length, vLLM | ours | difference | same text | gaps where texts part |
# |---|---|---|---|---|---|---|
# | draft | 2045 and 2013 | 1.445 | 1.436 | +0.009 | 48 of 48 | none |
# | medusa | 2289 and 2255 | 1.283 | 1.280 | +0.002 | 48 of 48 | none |
# | eagle | 1972 and 1945 | 1.498 | 1.489 | +0.009 | 48 of 48 | none |
#
# All 48 texts are the same with every drafter, and acceptance agrees within a hundredth. vLLM counts a few drafts more: at the end of a text, where
# fewer than three tokens are wanted, it drafts all the same.
#
# "Mean acceptance length" is vLLM's word for 1 + accepted / drafts, counted over rounds with a draft. And its acceptance by position is
# *unconditional*: accepted at a position, over all drafts. Ours is conditional: over those that got so far. From one trace both can be had:

# %%
rounds = [r for r in pooled["as it was trained"].rounds if r.drafted]
length = 1 + sum(len(r.accepted) for r in rounds) / len(rounds)
theirs = [sum(len(r.accepted) > k for r in rounds) / len(rounds) for k in range(3)]
print(f"mean acceptance length {length:.3f} over {len(rounds)} drafts")
print("by position, over all drafts:    ", ", ".join(f"{x:.3f}" for x in theirs))
print(
    "by position, given all before:   ", ", ".join(f"{x:.3f}" for x in rates["as it was trained"])
)
assert abs(length - 1 - sum(theirs)) < 1e-9

# %% [markdown]
# The first line is one more than the sum of the second. Compare like with like, or a drafter seems to get worse on its way into a server.
#
# ## Training on several GPUs
#
# Our heads learnt on one processor core. A head for a larger target wants GPUs, and the command is the same with a launcher in front:
#
# ```
# minispec train data --model HuggingFaceTB/SmolLM2-1.7B-Instruct --out TEXT.npz      # the target writes what the head learns from
# accelerate launch --multi_gpu --num_processes 4 -m minispec train eagle \
#     --model HuggingFaceTB/SmolLM2-1.7B-Instruct --text TEXT.npz --batch 4 --out HEAD
# ```
#
# (Training text is kept in 16 bits a token, so the target must have at most 65,536 ids, else `train data` says so. Of the table above that leaves SmolLM2.)
#
# The launcher starts four processes, one a GPU, and all run the same program. What is shared out? **The batches, and nothing else.** Each process
# holds the whole head, the whole optimiser and the whole target. This is data parallelism: it saves time, not memory.
#
# Let us see how batches are shared. Every process draws the *same* list, from the same seed, and takes every fourth of it.

# %%
from accelerate.data_loader import BatchSamplerShard

from minispec.train.fit import Batches

lengths, steps, size = [10 + i % 7 for i in range(100)], 5, 4
shares = {}
for processes in (1, 4):
    whole = Batches(lengths, size, steps * processes, seed=0)
    each = [list(BatchSamplerShard(whole, processes, rank)) for rank in range(processes)]
    shares[processes] = each
    assert all(len(share) == steps for share in each)
    assert [b for step in zip(*each) for b in step] == list(whole)  # nothing lost, nothing twice
print("one process, its first batches: ", *shares[1][0][:2])
print("process 0 of 4, its first ones: ", *shares[4][0][:2])
print("process 1 of 4, its first ones: ", *shares[4][1][:2])

# %% [markdown]
# So with four processes each step reads four batches, and the same number of steps reads four times the text. To do *the same* training, divide `--batch`
# by the number of processes; to train on more, leave it.
#
# After each backward pass the processes average their gradients, so that all heads take the same step and stay equal. Is that the same as one process with the joint
# batch? Nearly. The loss is a mean over the places of a batch (those whose token is part of the answer), and the mean of two means is the mean of all only if both have
# the same number of places. Let us measure how far apart they are, with a head for a tiny target that wrote its own texts. (On the real one it would
# take longer, and show nothing else.)

# %%
import numpy as np

from minispec.checkpoints.files import named_tensors, plain_config, write_folder
from minispec.train.data import Corpus, Text

small = ms.toy(40, dtype="float32", hidden_size=64, num_attention_heads=2, num_hidden_layers=7)
config = plain_config(small.model.config, torch.float32)
write_folder(work / "tiny", dict(named_tensors(small.model)), {}, config, dtype=torch.float32)
tiny = ms.load(str(work / "tiny"), device="cpu", dtype="float32")

dice, texts = np.random.default_rng(0), []
for _ in range(64):
    ids = torch.from_numpy(dice.integers(0, 40, int(dice.integers(1, 9))))
    answer = ms.generate(tiny, ids, max_new_tokens=int(dice.integers(2, 24))).tokens
    texts.append(Text("chat", *(x.numpy().astype(np.uint16) for x in (ids, answer)), 0.0))
corpus = Corpus(texts, tiny.name)
print(f"{len(texts)} texts, {corpus.tokens} tokens of answers")

# %%
from minispec.train.ahead import Examples, kept_layers
from minispec.train.eagle import EagleTrainer, new_net, train_eagle
from minispec.train.teacher import States

kept = kept_layers(tiny)
examples = Examples(texts, States(tiny, texts, kept, work / "states"), range(len(texts)))
head = new_net(tiny, kept[:-1], torch.arange(40)).requires_grad_(True)
trainer = EagleTrainer(head, tiny, 3, kept)


def gradient(batch):
    head.zero_grad()
    trainer([examples[i] for i in batch]).backward()
    return head.fc.weight.grad.flatten().clone()


# %%
def apart(a, b):
    """Gradients of two halves, averaged, beside that of the joint batch; relative."""
    joint = gradient([*a, *b])
    return float(((gradient(a) + gradient(b)) / 2 - joint).norm() / joint.norm())


places = [len(text.answer) for text in texts]
order = sorted(range(len(texts)), key=places.__getitem__)
equal = [i for i in order if places[i] == 14 and len(texts[i].prompt) > 4]
halves = {"equal": (equal[:1], equal[1:2]), "alike": (order[20:24], order[24:28])}
halves["very unlike"] = (order[:4], order[-4:])
found = {name: apart(*half) for name, half in halves.items()}
for name, (a, b) in halves.items():
    counts = [sum(places[i] for i in half) for half in (a, b)]
    print(f"{name:<12}{counts[0]:>3} and {counts[1]:>2} answer tokens: {found[name]:.0%} apart")
assert found["equal"] < 1e-3 and found["alike"] < found["very unlike"]

# %% [markdown]
# Batches hold texts of similar length, but two processes get different batches, so in practice it lies between the two. It is a slightly different weighting of
# the texts, and no error; but the same seed on one and on four GPUs does not give the same head.
#
# Now the command's own code, in one process, for a few updates. What would be different in four is said in the recipe that it leaves.

# %%
recipe = {"layers": None, "eagle": 3, "unroll": 3, "train_head": False, "drafted": 30}
recipe |= {"steps": 40, "batch": 4, "lr": 1e-2, "seed": 0}
_ = train_eagle(tiny, corpus, work / "states", work / "trained", recipe)
notes = json.loads((work / "trained" / "recipe.json").read_text())
print("in the folder:", *sorted(file.name for file in (work / "trained").iterdir()))
print("recipe:", {name: notes[name] for name in ("processes", "steps", "batch", "layers")})
print("the loss fell:", notes["loss"]["last"] < notes["loss"]["first"] - 0.05)
assert notes["loss"]["last"] < notes["loss"]["first"] - 0.05

# %% [markdown]
# The first process does what must be done once: it computes the target's states, which the others then read from its files, evaluates, saves every few
# minutes, and writes the folder at the end. An interrupted training goes on with the same command, and with the same number of processes only, for
# the batches that are still to come depend on it. `tests/test_train_draft.py` runs two real processes on a CPU: each sees its own texts, both report the
# same losses, one folder is written. (Accelerate's launcher starts one process where there is no GPU, whatever number you give, and the recipe says so. Two are started by
# `torchrun --nproc_per_node 2 -m minispec train eagle --device cpu ...`.) On several GPUs it has not been run for this course.
#
# ## --compile and CUDA graphs
#
# On a large card a pass of a small model is short, and what remains is the *telling*: every operation of a pass is started from Python, one by one.
# How many are there in a pass over one token?

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **(kwargs or {}))


with torch.no_grad(), Operations() as one_pass:
    target.model(torch.tensor([[1]]), target.model.new_cache(1, 8))
each = one_pass.count // len(target.model.layers)
print("operations in a pass, views included:", here(f"{one_pass.count}, about {each} a layer"))

# %% [markdown]
# A **CUDA graph** records them once and starts them all together from then on. But a recording plays exactly what was recorded: the same operations,
# on tensors of the same shapes, at the same places in memory. Decoding is the opposite of that: the cache grows, blocks have one token or five, masks change.
#
# So `minispec/compile.py` makes passes whose shapes do not change. Blocks are padded to 1, 2, 4, 8, ... tokens. The cache is read *whole*, all slots
# that it has room for, and a mask says which of them count. Tokens, positions, slots and mask are copied to fixed places before the pass starts. What the
# padding writes goes to a slot that no token sees. The same passes run on a CPU, where they are called instead of replayed; so here we
# can count what a graph would need.

# %%
from minispec.compile import graphed

fixed = dataclasses.replace(target, model=graphed(target.model))
tree = ms.load_drafter("eagle", target)  # a dynamic tree: blocks of any size
a, b = (ms.generate(lm, question, tree, max_new_tokens=40) for lm in (target, fixed))
assert a.tokens.tolist() == b.tokens.tolist()

at, shapes = len(target.encode(question)), set()
for r in a.trace.rounds:
    shapes.add((1 + r.tree.counts[0], at + 1 + r.tree.counts[0]))  # tokens, keys
    at += len(r.emitted)
(store,) = next(iter(fixed.model.stores.values()))
print(f"eager: {len(a.trace.rounds)} passes of {len(shapes)} different shapes")
print(f"fixed: {len(store.passes)} shapes, of {sorted(size for size, _ in store.passes)} tokens")

# %% [markdown]
# A few recordings serve the whole text, and the next texts too, since the cache is handed on. The price: a pass reads slots that hold nothing, and
# a block of 5 costs as much as one of 8. Rounding may differ, since sums run over more terms (here the tokens are the same); the law of the text does not.
#
# What stays eager: the prompt, whose length is different each time; batches, whose rows part; Medusa heads, which are a few operations. On a CPU there
# is nothing to record: there `--compile` packs each matrix once into the order in which oneDNN reads it. **The capture itself has never run for this
# course**, for want of a GPU; the cell below would be its first time on your machine.

# %%
if GPU and torch.cuda.is_available():
    from minispec.compile import compiled, compiled_drafter

    lm = ms.load("smollm2-135m", device="cuda")
    for name, fast in (("eager", lm), ("graphs", compiled(lm))):
        drafter = ms.load_drafter("eagle", lm)
        drafter = drafter if fast is lm else compiled_drafter(drafter)
        runs = [ms.generate(fast, question, drafter, max_new_tokens=64) for _ in range(3)]
        print(here(f"{name}: {1e3 * runs[-1].trace.tpot_s:.2f} ms a token, the third time"))
else:
    print("with a GPU: times a token with eager passes and with CUDA graphs, target and EAGLE head")

# %% [markdown]
# `minispec bench --compile` compares a compiled method with compiled plain decoding, never with the eager one (notebook 09, trap 4), and `benchmarks/gpu.sh` measures
# all of this in eight minutes on a machine without a network.
#
# ## A reading list
#
# Methods that this course does not build, and what each changes in *draft, verify, accept, commit*. Speedups are left out on purpose: you know by now what to ask
# about them.
#
# **Multi-token prediction (MTP).** Gloeckle, Youbi Idrissi, Rozière, Lopez-Paz, Synnaeve 2024, "Better & Faster Large Language Models via Multi-token
# Prediction" (arXiv 2404.19737): the model itself is trained from the start to predict several tokens with several heads on one trunk. In the loop these are
# Medusa heads that nobody has to add; verification stays as it is. DeepSeek-AI 2024, "DeepSeek-V3 Technical Report" (arXiv 2412.19437, section 2.2)
# predicts the further tokens one after the other, each module reading the state of the one before and the next token's embedding: that is the shape of an
# EAGLE head, trained together with its target instead of after it.
#
# **Suffix decoding.** Oliaro, Jia, Campos, Qiao 2024, "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications" (arXiv 2411.04975): n-gram
# lookup whose memory is a suffix tree over the prompt *and over earlier answers to other requests*. A longer match drafts more, and frequent
# continuations form a tree. In the loop only `propose` changes; but `start` no longer forgets everything, so what a request costs depends on what was asked
# before. Notebook 11 says why our gate objects to learning inside `commit`, and where it may happen instead.
#
# **Parallel drafting.** An, Bai, Liu, Li, Barsoum 2025, "PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model Adaptation" (arXiv 2504.18583), and
# Xiao, Zhang, Ge, Ouyang, Ordonez, Yu 2024, "ParallelSpec: Parallel Drafter for Efficient Speculative Decoding" (arXiv 2410.05589): the draft model is taught to fill
# several places in *one* pass. In notebook 02 that replaces the `for` in `write_draft`: drafting four tokens costs one pass of the draft model instead
# of four, so longer drafts become cheap. What is lost is what Medusa lacks too: a place does not see which guess was made before it.
#
# **Lookahead decoding.** Fu, Bailis, Stoica, Zhang 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (arXiv 2402.02057): no
# drafter and no training. The target's own pass carries extra rows that guess a window of future tokens in parallel (Jacobi iteration); n-grams that come
# up there are collected in a pool, and those that fit the last token are verified in the same pass. So *draft* and *verify* become one pass, under a mask
# of two parts, and the pool takes the drafter's place. It pays with rows: whether it can gain is a question to the cost curve.
#
# ## Summary
#
# - Memory is weights plus cache, both from numbers in `config.json`. With long texts and many rows the cache decides, and key-value heads decide the cache.
# - A pair must share its tokenizer, entry by entry; the rows of the matrices may differ. Pad q with zeros, never cut p.
# - Published heads come in layouts. A missing tensor or an uncomputed flag can be refused by name; a flag that is there and wrong shows in acceptance only.
# - vLLM with our EAGLE head writes our texts, and accepts as much of its drafts. It counts acceptance differently: compare like with like.
# - Several GPUs share the batches of a training and average gradients; every process holds everything.
# - A CUDA graph replays fixed shapes, so blocks are padded, and the cache is read whole under a mask.
#
# ## Questions
#
# **1.** A pair fits your card with room for 40 thousand tokens. You serve 32 requests at a time, of up to 2,000 tokens each. What happens, and what can you change
# without another card?
#
# <details><summary>Answer</summary>
#
# 64 thousand tokens do not fit. Serve fewer at a time, or shorter ones; or take another drafter. An EAGLE head in place of the draft model saves most of
# the second model's weights and all but one layer of its cache; lookup saves both.
#
# </details>
#
# **2.** You load a published EAGLE-3 head. The text is right, and acceptance at the first position is a third of what its card says. Name three suspects, in
# the order in which you would check them.
#
# <details><summary>Answer</summary>
#
# First whether the two numbers are the same number, on the same kind of requests, with the same chat template. Then the target: another version or fine-tune
# of the model. Then the flags that load cleanly: the list of layers (counted by inputs or by outputs), `norm_before_residual`, `norm_output`.
#
# </details>
#
# **3.** Why does a graph over a block of 4 give the right logits for a block of 3, although the fourth token is nobody's?
#
# <details><summary>Answer</summary>
#
# No token of the block sees it: it stands after them, and its key and value go to a slot that the mask hides from all. Its own output row is
# thrown away. It costs its share of the arithmetic, and that is all.
#
# </details>
#
# ## Change it
#
# - Add a model that you care about to `SIZES` (its `config.json` is on the hub), and a pair to `PAIRS`. Check the count against the hub's. Then change two bytes a number to one in
#   `cache_bytes`, as an 8-bit cache would, and see which "no" becomes a number.
# - Break a file in a way that `refused` does not show yet: two layers, a vocabulary of 24, `d2t` of another length. Does the message tell you what to do?
# - Swap `input_layernorm` and `hidden_norm` in the tensors of `third`. It loads. What does `eagle_by_hand` say? Who could notice without it?
#
# **The way on.** [Notebook 11](11_capstone.ipynb), the capstone: a drafter of your own.
