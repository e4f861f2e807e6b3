"""EAGLE: the shift, the layer, the draft cache, the trees, and training as drafting."""

import copy
import itertools

import pytest
import torch

import minispec as ms
from minispec.audit import first_gap
from minispec.decode import Decoder
from minispec.drafters.dynamic_tree import DynamicTree
from minispec.drafters.eagle import Eagle, EagleNet
from minispec.train.eagle import new_net, unrolled
from minispec.tree import Shape

VOCAB = 20


@pytest.fixture(scope="module")
def lm():
    return ms.toy(vocab_size=VOCAB, seed=0, num_hidden_layers=7)


def head(lm, eagle=3, layers=None, ids=None, seed=1):
    """An untrained head with nothing at zero, so that every part of it matters."""
    n = lm.model.config.num_hidden_layers
    layers = layers or ((2, 3, 4) if eagle == 3 else (n,))
    vocabulary = torch.tensor(ids if ids is not None else range(lm.model.config.vocab_size))
    net = new_net(lm, layers, vocabulary, eagle)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if not name.startswith("embed"):
                weight.add_(torch.randn(weight.shape, generator=generator, dtype=weight.dtype) * 0.3)
    return net.eval().requires_grad_(False)


TREES = {
    "chain": None,
    "static": Shape.of([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0, 0]]),
    "dynamic": DynamicTree(depth=4, top_k=3, nodes=8),
    "dynamic by cost": DynamicTree(4, 3, 8, cost=(1.0, 1.02, 1.04, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6), stop_below=0.05),
}


class Oracle(EagleNet):
    """EAGLE-1 with the true next state in place of its layer: it reads the text with the target itself."""

    def __init__(self, lm):
        config = copy.deepcopy(lm.model.config)
        config.num_hidden_layers = 1
        super().__init__(config, (lm.model.config.num_hidden_layers,), torch.arange(config.vocab_size), eagle=1)
        self.embed_tokens, self.lm_head, self.target = lm.model.embed_tokens, lm.model.lm_head, lm.model

    def step(self, feature, tokens, cache, positions=None, mask=None):
        # Its cache lacks the first token of the text; the target's must have it.
        if cache.lengths == [0]:
            self.mine = self.target.new_cache(1, cache.capacity + 1)
            self.target.states(self.first, self.mine)
        self.mine.lengths = [cache.lengths[0] + 1]
        cache.reserve(tokens, None)
        return self.target.states(tokens, self.mine)[-1]


def test_an_oracle_for_the_layer_has_every_draft_accepted():
    """Off by one anywhere (feature, token, position, head) and this falls far below 100%."""
    lm = ms.toy(vocab_size=50, seed=3, num_hidden_layers=2)
    net = Oracle(lm)
    for prompt in ([1, 2, 3], [4], [9, 8, 7, 6, 5, 4, 3]):
        net.first = torch.tensor([prompt[:1]])
        if len(prompt) == 1:
            continue
        trace = ms.generate(lm, torch.tensor(prompt), Eagle(net, num_tokens=4), max_new_tokens=42).trace
        assert trace.acceptance_by_position == [1.0] * 4
        assert trace.tokens_per_pass > 4.5


def test_a_feature_that_is_not_shifted_is_noticed():
    """The same oracle, one place late, drafts what was just said."""
    lm = ms.toy(vocab_size=50, seed=3, num_hidden_layers=2)

    class Late(Oracle):
        def step(self, feature, tokens, cache, positions=None, mask=None):
            state = super().step(feature, tokens, cache, positions, mask)
            return torch.cat((feature[:, -1:], state), 1)[:, :-1] if tokens.shape[1] == 1 else feature

    net = Late(lm)
    net.first = torch.tensor([[1]])
    trace = ms.generate(lm, torch.tensor([1, 2, 3]), Eagle(net, num_tokens=4), max_new_tokens=42).trace
    assert trace.acceptance_by_position[0] < 0.5


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("eagle", [1, 3])
def test_the_text_is_the_targets_alone_and_in_a_batch(lm, eagle, tree):
    net = head(lm, eagle)
    prompts = [torch.tensor(p) for p in ([3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5], [8, 8])]
    wanted = [ms.generate(lm, p, max_new_tokens=24).tokens.tolist() for p in prompts]
    make = lambda: Eagle(net, 3, TREES[tree])
    alone = [ms.generate(lm, p, make(), max_new_tokens=24) for p in prompts]
    together = ms.generate_batch(lm, prompts, make(), max_new_tokens=24)
    assert [g.tokens.tolist() for g in alone] == wanted
    assert [g.tokens.tolist() for g in together] == wanted
    for one, many in zip(alone, together, strict=True):
        assert [r.drafted for r in one.trace.rounds] == [r.drafted for r in many.trace.rounds]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_sampled_rows_equal_the_request_alone(lm, tree):
    net = head(lm)
    prompts = [torch.tensor(p) for p in ([3, 1, 4], [5, 9, 2, 6, 5, 3, 5])]
    options = {"max_new_tokens": 20, "sampling": ms.Sampling(1.0, top_k=8)}
    together = ms.generate_batch(lm, prompts, Eagle(net, 3, TREES[tree]), seed=5, **options)
    for i, prompt in enumerate(prompts):
        alone = ms.generate(lm, prompt, Eagle(net, 3, TREES[tree]), seed=5 + i, **options)
        assert alone.tokens.tolist() == together[i].tokens.tolist()


@pytest.mark.parametrize("tree", ["static", "dynamic", "dynamic by cost"])
def test_every_node_of_a_tree_is_what_its_path_alone_would_draft(lm, tree):
    """A node's children must be the likeliest tokens after its own path, read step by step without any tree."""
    net = head(lm)
    torch.manual_seed(0)
    prompt = torch.randint(VOCAB, (6,))
    drafter = Eagle(net, 3, TREES[tree])
    decoder = Decoder(lm, [prompt], drafter, max_new_tokens=30)
    checked = 0
    for _ in decoder.run():
        if not decoder.requests[0].trace.rounds:
            continue
        text = torch.cat(
            (prompt, torch.tensor(decoder.requests[0].tokens[: -len(decoder.requests[0].trace.rounds[-1].emitted)]))
        )
        round_ = decoder.requests[0].trace.rounds[-1]
        tokens, parents = round_.tree.tokens[0].tolist(), round_.tree.parents[0].tolist()
        *named, _ = lm.model.states(text[None], lm.model.new_cache(1, len(text)), layers=net.layers_read)
        hidden = torch.stack(named, 2)[:, :-1]
        for node, parent in enumerate(parents):
            path, at = [], parent
            while at:
                path.insert(0, tokens[at - 1])
                at = parents[at - 1]
            cache = net.new_cache(1, len(text) + len(path))
            state = net.step(net.fuse(hidden), text[None, 1:], cache)[:, -1:]
            for token in path:
                state = net.step(state, torch.tensor([[token]]), cache)
            order = net.logits(state)[0, 0].argsort(descending=True).tolist()
            rank = order.index(tokens[node])
            elder = [i for i in range(node) if parents[i] == parent]
            assert rank < 3
            if tree == "static":
                assert rank == len(elder)
            checked += 1
    assert checked > 30


def test_the_draft_cache_holds_only_the_targets_own_features(lm):
    """After every round, keys computed from guessed features are gone: those of the text are computed from true ones."""
    net = head(lm)
    prompt = torch.tensor([3, 1, 4, 1, 5])
    for tree in TREES.values():
        drafter = Eagle(net, 3, tree)
        decoder = Decoder(lm, [prompt], drafter, max_new_tokens=24)
        rounds = 0
        for _ in decoder.run():
            if not decoder.requests[0].trace.rounds or not decoder.active:
                continue
            before = drafter.cache.lengths[0]
            text = torch.cat((prompt, torch.tensor(decoder.requests[0].tokens)))[: before + 1]
            *named, _ = lm.model.states(text[None], lm.model.new_cache(1, len(text)), layers=net.layers_read)
            fresh = net.new_cache(1, before)
            net.step(net.fuse(torch.stack(named, 2)[:, :-1]), text[None, 1:], fresh)
            torch.testing.assert_close(drafter.cache.keys[:, :, :, :before], fresh.keys[:, :, :, :before])
            rounds += 1
        assert rounds > 2


@pytest.mark.parametrize("eagle", [1, 3])
def test_unrolled_training_gives_what_drafting_gives(lm, eagle):
    """Step i at place j equals drafting i tokens on from there, one pass each, with a cache."""
    net = head(lm, eagle)
    torch.manual_seed(1)
    tokens = torch.randint(VOCAB, (2, 9))
    *named, _ = lm.model.states(tokens, lm.model.new_cache(2, 9), layers=net.layers_read)
    features = net.fuse(torch.stack(named, 2))
    steps = list(unrolled(net, features, tokens, 4))
    for row, place in itertools.product(range(2), range(5)):
        cache = net.new_cache(1, 9)
        state = net.step(features[row : row + 1, : place + 1], tokens[row : row + 1, 1 : place + 2], cache)[:, -1:]
        for i in range(4):
            if i:
                state = net.step(state, tokens[row, place + 1 + i].view(1, 1), cache)
            torch.testing.assert_close(steps[i][row, place], state[0, 0], rtol=1e-4, atol=1e-5)


def test_a_reduced_vocabulary_still_writes_the_targets_text(lm):
    net = head(lm, ids=[0, 3, 7, 11, 19])
    for tree, temperature in itertools.product(TREES.values(), (0.0, 1.0)):
        out = ms.generate(
            lm, torch.tensor([3, 1, 4]), Eagle(net, 3, tree), max_new_tokens=30, sampling=ms.Sampling(temperature)
        )
        assert {x for r in out.trace.rounds for x in r.drafted} <= {0, 3, 7, 11, 19}
        if not temperature:
            plain = ms.generate(lm, torch.tensor([3, 1, 4]), max_new_tokens=30)
            assert first_gap(lm, torch.tensor([3, 1, 4]), plain.tokens, out.tokens) is None


def test_a_budget_of_one_and_two_tokens(lm):
    net = head(lm)
    for tree, most in itertools.product(TREES.values(), (1, 2, 3)):
        wanted = ms.generate(lm, torch.tensor([3, 1, 4]), max_new_tokens=most).tokens.tolist()
        assert ms.generate(lm, torch.tensor([3, 1, 4]), Eagle(net, 3, tree), max_new_tokens=most).tokens.tolist() == wanted


def test_dynamic_trees_keep_parents_and_stop_where_nothing_is_likely(lm):
    net = head(lm)
    wide = ms.generate(lm, torch.tensor([3, 1, 4]), Eagle(net, 3, DynamicTree(4, 3, 50)), max_new_tokens=60).trace
    assert all(len(r.tree.parents[0]) == 3 + 9 * 3 for r in wide.rounds[:3])  # all candidates of four levels
    nothing = ms.generate(
        lm, torch.tensor([3, 1, 4]), Eagle(net, 3, DynamicTree(4, 3, 8, stop_below=1.1)), max_new_tokens=30
    ).trace
    assert max(int(r.tree.depths.max()) for r in nothing.rounds) == 1
    free = DynamicTree(4, 3, 8, cost=(1.0,) * 9)
    dear = DynamicTree(4, 3, 8, cost=tuple(float(100**n) for n in range(9)))
    counts = [
        [r.tree.counts[0] for r in ms.generate(lm, torch.tensor([3, 1]), Eagle(net, 3, t), max_new_tokens=30).trace.rounds]
        for t in (free, dear)
    ]
    assert counts[0][0] == 8 and set(counts[1]) == {0}


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="depth, top_k and nodes"):
        DynamicTree(depth=0)
    with pytest.raises(ValueError, match="cost curve"):
        DynamicTree(nodes=4, cost=(1.0, 2.0))
    with pytest.raises(ValueError, match="num_tokens"):
        Eagle(None, 0)


def rms(x, norm):
    return x / (x.square().mean() + norm.eps).sqrt() * norm.weight


def turned(x, place, net):
    """Rope, pair by pair."""
    half = len(x) // 2
    out = torch.empty_like(x)
    for i in range(half):
        angle = place * net.frequencies[i].double()
        out[i] = x[i] * angle.cos() - x[half + i] * angle.sin()
        out[half + i] = x[half + i] * angle.cos() + x[i] * angle.sin()
    return out


@pytest.mark.parametrize("eagle", [1, 3])
def test_the_layer_written_out_by_hand(lm, eagle):
    """One norm too many or a lost residual costs half of the acceptance and shows nowhere else."""
    net = head(lm, eagle)
    block, attention, n = net.layers[0], net.layers[0].self_attn, 5
    torch.manual_seed(2)
    tokens, hidden = torch.randint(VOCAB, (1, n)), torch.randn(1, n, len(net.layers_read), 16, dtype=torch.float64)
    got = net.step(net.fuse(hidden), tokens, net.new_cache(1, n))[0]
    size, group = attention.head_dim, attention.heads // attention.kv_heads
    queries, keys, values, streams = [], [], [], []
    for j in range(n):
        embedding = lm.model.embed_tokens.weight[tokens[0, j]]
        if eagle == 3:
            stream = net.fc.weight @ torch.cat(list(hidden[0, j]))
            x = torch.cat((rms(embedding, block.input_layernorm), rms(stream, block.hidden_norm)))
        else:
            x = stream = net.fc.weight @ torch.cat((embedding, hidden[0, j, 0])) + net.fc.bias
        parts = (attention.qkv_proj.weight @ x).split(size)
        queries.append([turned(q, j, net) for q in parts[: attention.heads]])
        keys.append([turned(k, j, net) for k in parts[attention.heads : attention.heads + attention.kv_heads]])
        values.append(parts[attention.heads + attention.kv_heads :])
        streams.append(stream)
    for j in range(n):
        out = []
        for h in range(attention.heads):
            p = torch.stack([queries[j][h] @ keys[i][h // group] for i in range(j + 1)]).div(size**0.5).softmax(0)
            out.append(sum(p[i] * values[i][h // group] for i in range(j + 1)))
        x = streams[j] + attention.o_proj.weight @ torch.cat(out)
        gate, up = (block.gate_up_proj.weight @ rms(x, block.post_attention_layernorm)).chunk(2)
        x = x + block.down_proj.weight @ (gate * gate.sigmoid() * up)
        torch.testing.assert_close(got[j], x, rtol=1e-5, atol=1e-5)  # angles are float32
        final = rms(x, net.norm) if eagle == 3 else x
        torch.testing.assert_close(net.logits(got[j]), net.lm_head.weight @ final, rtol=1e-5, atol=1e-5)
