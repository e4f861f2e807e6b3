"""Compiled passes: the same text, drafts and rounds; and nothing on the way that a graph could not hold.

What only a GPU can run, the capture of a graph and its replay, is behind one `if` in `FixedPass.start`.
"""

import copy
import dataclasses
import gc
import json

import pytest
import torch

import minispec as ms
from minispec import audit, bench, verify
from minispec import compile as compiling
from minispec.cli import main
from minispec.compile import compiled, compiled_drafter, graphed, packed
from minispec.model import Transformer

PROMPTS = [torch.tensor([1, 2, 3, 1, 2]), torch.tensor([4])]
METHODS = ["autoregressive", "ngram", "draft", "medusa", "eagle chain", "eagle static", "eagle dynamic"]
SAMPLINGS = [ms.Sampling(), ms.Sampling(1.0, top_p=0.9)]


def fixed_shapes(lm, drafter):
    """Both as `compiled` makes them on CUDA, here with graphs that are called instead of replayed."""
    drafter = copy.copy(drafter)
    if isinstance(drafter, ms.DraftModel):
        drafter.small = dataclasses.replace(drafter.small, model=graphed(drafter.small.model))
    if isinstance(drafter, ms.Eagle):
        drafter.net = graphed(drafter.net)
    return dataclasses.replace(lm, model=graphed(lm.model)), drafter


def facts(generation):
    rounds = [(r.drafted, r.accepted, r.emitted, r.tree.parents.tolist()) for r in generation.trace.rounds]
    return generation.tokens.tolist(), rounds, generation.trace.draft_passes


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", METHODS)
def test_fixed_shapes_change_nothing(name, sampling):
    lm = ms.toy(vocab_size=30)
    small = ms.toy(vocab_size=30, seed=1, num_hidden_layers=1)
    drafters = {"autoregressive": None, "ngram": ms.NGram(1, 3, 4), "draft": ms.DraftModel(small, 3), **audit.toy_heads(lm)}
    drafter = drafters[name]
    fast, same = fixed_shapes(lm, drafter)
    for prompt in PROMPTS:  # one cache serves both, one after the other
        options = {"max_new_tokens": 40, "sampling": sampling}
        assert facts(ms.generate(fast, prompt, same, **options)) == facts(ms.generate(lm, prompt, drafter, **options))
    (stores,) = fast.model.stores.values()
    assert len(stores) == 1 and {size for size, _ in stores[0].passes} <= {1, 2, 4, 8}


def test_packed_weights_change_nothing_but_rounding(target):
    """The real target in float32: every method writes the text that it writes with plain weights."""
    fast = compiled(target)
    prompt = "List three fruits, then list them again."
    plain = ms.generate(target, prompt, max_new_tokens=40).tokens.tolist()
    assert ms.generate(fast, prompt, max_new_tokens=40).tokens.tolist() == plain
    for method in ("draft", "medusa", "eagle"):
        drafter = ms.load_drafter(method, target)
        generation = ms.generate(fast, prompt, compiled_drafter(drafter), max_new_tokens=40)
        assert generation.tokens.tolist() == plain and len(generation.trace.rounds) < 38, method
    assert compiled_drafter(None) is None
    together = ms.generate_batch(fast, [prompt, "Hi"], max_new_tokens=12)
    assert together[0].tokens.tolist() == plain[:12]


def test_every_matrix_is_packed_and_no_other_weight_is_held_twice(target):
    fast = compiled(target).model
    linear = [name for name, m in target.model.named_modules() if isinstance(m, torch.nn.Linear)]
    assert linear == [name for name, m in fast.named_modules() if isinstance(m, compiling.PackedLinear)]
    assert not any(isinstance(m, torch.nn.Linear) for m in fast.modules()) and len(linear) == 4 * 30 + 1
    pairs = zip(target.model.parameters(), fast.parameters(), strict=True)
    assert all(a is b for a, b in pairs)
    net = packed(ms.load_drafter("eagle", target).net)
    assert isinstance(net.fc, compiling.PackedLinear) and isinstance(net.lm_head, compiling.PackedLinear)


def test_packed_products_are_the_products():
    linear = torch.nn.Linear(24, 7)
    x = torch.randn(1, 3, 24)
    with torch.no_grad():
        assert torch.allclose(packed(torch.nn.Sequential(linear))(x), linear(x), atol=1e-6)


def test_what_nothing_helps_is_refused():
    with pytest.raises(ValueError, match=r"cannot pack weights in float64 on this processor; leave --compile out"):
        compiled(ms.toy())
    elsewhere = ms.toy(dtype="float32")
    elsewhere.model.to("meta")
    with pytest.raises(ValueError, match="nothing to compile for the device meta; leave --compile out"):
        compiled(elsewhere)


def test_two_texts_at_once_have_a_cache_each_and_give_it_back():
    lm = ms.toy(vocab_size=30)
    fast, _ = fixed_shapes(lm, None)
    streams = [ms.stream(fast, prompt, max_new_tokens=20) for prompt in PROMPTS]
    events = [list(pair) for pair in zip(*streams, strict=True)]
    for i, prompt in enumerate(PROMPTS):
        plain = list(ms.stream(lm, prompt, max_new_tokens=20))
        assert [event[i] if isinstance(event[i], int) else event[i].emitted for event in events] == [
            event if isinstance(event, int) else event.emitted for event in plain
        ]
    del streams
    gc.collect()
    assert [len(stores) for stores in fast.model.stores.values()] == [2]


def test_a_cache_is_clean_whatever_the_last_text_left_in_it():
    lm = ms.toy(vocab_size=30)
    fast, _ = fixed_shapes(lm, None)
    ms.generate(fast, PROMPTS[0], max_new_tokens=8)
    (store,) = fast.model.stores[compiling.SMALLEST]
    store.keys.fill_(float("nan"))
    store.values.fill_(float("nan"))
    assert facts(ms.generate(fast, PROMPTS[0], max_new_tokens=8)) == facts(ms.generate(lm, PROMPTS[0], max_new_tokens=8))


@torch.inference_mode()
def test_a_pass_that_does_not_fit_the_cache_is_refused():
    model = graphed(ms.toy().model)
    cache = model.new_cache(1, 4)
    model(torch.tensor([[1, 2, 3]]), cache)
    with pytest.raises(ValueError, match="room for 4 tokens a row, and a row needs 5"):
        model(torch.tensor([[1, 2]]), cache)


@torch.inference_mode()
def test_a_long_block_is_read_eagerly_and_goes_on_in_fixed_shapes(monkeypatch):
    monkeypatch.setattr(compiling, "LARGEST", 4)
    lm = ms.toy(vocab_size=30)
    model, tokens = graphed(lm.model), torch.arange(12)[None]
    cache, plain = model.new_cache(1, 12), lm.model.new_cache(1, 12)
    for part in tokens.split((2, 3, 6, 1), dim=1):
        assert torch.allclose(model(part, cache), lm.model(part, plain), atol=1e-12)
    assert {size for size, _ in cache.store.passes} == {1, 4} and cache.lengths == [12]


@torch.inference_mode()
def test_no_number_is_read_back_before_the_verdict():
    """On the device "meta" a tensor has no content: whatever asks for it, as a graph must not, raises."""
    config = ms.toy(vocab_size=30).model.config
    tree = ms.TokenTree.chain([[1, 2, 3]], torch.rand(1, 3, 30)).to(torch.device("meta"))
    with torch.device("meta"):
        model = graphed(Transformer(config).eval())
        model.set_frequencies(torch.device("meta"))
        cache = model.new_cache(1, 20)
        cache.lengths = [5]
        block = torch.zeros(1, 4, dtype=torch.int64)
        assert compiling.fixed(block, cache)
        state, last = model.states(block, cache, 5 + tree.depths, tree.ancestors, (1,))
        p = model.logits(last).softmax(-1)
        u = torch.zeros(1, 4)
        rules = [verify.greedy(p, tree), verify.fixed(lambda at: p[:, 0], tree, u)]
        rules += [verify.drawn(lambda at: p[:, 0], tree, u), verify.typical(p, tree, u)]
    assert state.shape == last.shape == (1, 4, 16)
    assert all(path.shape == (1, 3) and token.shape == (1,) for path, token in rules)


def test_the_command_compiles(capsys, target):
    argv = ["generate", "--prompt", "Count to nine.", "--max-new-tokens", "8", "--dtype", "float32", "--json"]
    texts = []
    for more in ([], ["--compile"], ["--compile", "--method", "ngram"]):
        main([*argv, *more])
        texts.append(json.loads(capsys.readouterr().out)["tokens"])
    assert texts[0] == texts[1] == texts[2]
    with pytest.raises(SystemExit) as stop:
        main([*argv, "--compile", "--dtype", "float64"])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == "" and "cannot pack weights in float64" in err and err.count("\n") == 1


def test_the_bench_shows_every_method_eager_and_compiled(monkeypatch):
    used = []
    right = compiling.compiled_drafter
    monkeypatch.setattr(compiling, "compiled_drafter", lambda drafter: used.append(drafter) or right(drafter))
    lm, drafter = ms.toy(dtype="float32"), ms.NGram(1, 3, 4)
    requests = [{"id": "a", "kind": "chat", "messages": PROMPTS[1], "max_new_tokens": 9}]
    result = bench.bench(lm, {"ngram": drafter}, requests, max_new_tokens=9, compile=True)
    names = ["autoregressive", "ngram", "autoregressive compiled", "ngram compiled"]
    assert sorted(run["method"] for run in result["runs"]) == sorted(names) and used == [None, drafter]
    assert all(run["same_text"] == [True] for run in result["runs"])
