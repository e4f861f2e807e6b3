"""Medusa: which state predicts which token, the tree and its padding, typical acceptance."""

import itertools

import pytest
import torch

import minispec as ms
from minispec import verify
from minispec.drafters.medusa import Medusa, MedusaHeads
from minispec.train.medusa import new_heads
from minispec.tree import Shape, TokenTree, grow

VOCAB = 20
PATHS = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]


@pytest.fixture(scope="module")
def lm():
    return ms.toy(vocab_size=VOCAB, seed=0)


def heads(lm, ids=None, count=3, own=False):
    ids = torch.arange(VOCAB) if ids is None else torch.tensor(ids)
    net = new_heads(lm, count, ids)
    if own:
        net = MedusaHeads(count, lm.model.config.hidden_size, ids, None).to(lm.model.dtype)
    generator = torch.Generator().manual_seed(2)
    for weight in net.parameters():
        weight.data += 0.3 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return net.eval().requires_grad_(False)


def medusa(lm, net=None, paths=PATHS):
    return Medusa(net or heads(lm), Shape.of(paths), lm.model.config.num_hidden_layers)


def test_untrained_heads_hand_the_last_state_through(lm):
    """Weights and biases start at zero, so a new head says exactly what the target's output matrix says."""
    state = torch.randn(2, lm.model.config.hidden_size, dtype=torch.float64)
    net = new_heads(lm, 3, torch.arange(VOCAB))
    for i in range(3):
        torch.testing.assert_close(net(state)[:, i], lm.model.logits(state))


@pytest.mark.parametrize("own", [False, True])
def test_a_child_is_the_token_of_its_rank_in_the_head_of_its_depth(lm, own):
    """The head reads the state that gave rise to the pending token: one place before it."""
    net = heads(lm, own=own)
    seen = 0
    text = [3, 1, 4]
    for event in ms.stream(lm, torch.tensor(text), medusa(lm, net), max_new_tokens=30):
        if isinstance(event, int):
            text.append(event)
            continue
        ids = torch.tensor([text[:-1]])  # all but the pending token
        *_, last = lm.model.states(ids, lm.model.new_cache(1, len(text)))
        order = net(last[0, -1]).argsort(-1, descending=True)  # [heads, ids]
        tokens, parents = event.tree.tokens[0].tolist(), event.tree.parents[0].tolist()
        shape = Shape.of(PATHS)
        assert parents == list(shape.parents[: len(parents)])
        for token, depth, rank in zip(tokens, shape.depths, shape.ranks, strict=False):
            assert token == order[depth - 1, rank]
            seen += 1
        text += event.emitted
    assert seen > 60


def test_the_text_is_the_targets_alone_and_in_a_batch(lm):
    prompts = [torch.tensor(p) for p in ([3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5])]
    for ids, most in itertools.product((None, [1, 4, 9, 16]), (1, 2, 3, 24)):
        net = heads(lm, ids)
        wanted = [ms.generate(lm, p, max_new_tokens=most).tokens.tolist() for p in prompts]
        drafter = medusa(lm, net, [[0], [1], [0, 0], [1, 0]])
        assert [g.tokens.tolist() for g in ms.generate_batch(lm, prompts, drafter, max_new_tokens=most)] == wanted
        assert [ms.generate(lm, p, drafter, max_new_tokens=most).tokens.tolist() for p in prompts] == wanted


def test_token_0_on_a_short_path_is_no_padding(lm):
    """Paths differ in length, and the target's next token is id 0: nothing that pads may count as accepted."""
    tree = TokenTree([[5, 6, 7, -1]], [[0, 0, 1, -1]])
    logits = torch.zeros(1, 5, 9)
    for at, best in ((0, 6), (2, 0), (1, 7), (3, 1), (4, 2)):
        logits[0, at, best] = 5.0
    path, token = verify.greedy(logits, tree)
    assert path.tolist() == [[2]] and token.tolist() == [0]
    p = torch.full((1, 5, 9), 0.0, dtype=torch.float64)
    p[0, 0, 0], p[0, 0, 6], p[0, 1:, 8] = 0.6, 0.4, 1.0  # token 0 is likelier than any that was drafted
    path, _ = verify.typical(p, tree, torch.full((1, 5), 0.5))
    assert path.tolist() == [[2]]


def test_paths_become_a_tree():
    """The mask, depths and order of a published example of four paths."""
    shape = Shape.of([[0], [1], [0, 0], [0, 0, 0]])
    assert (shape.parents, shape.ranks, shape.depths) == ((0, 0, 1, 3), (0, 1, 0, 0), [1, 1, 2, 3])
    tree = shape.filled([[11, 12, 21, 31]], [9])
    assert tree.ancestors[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
    assert tree.depths.tolist() == [[0, 1, 1, 2, 3]]
    assert shape.filled([[11, 12, 21, 31]] * 3, [2, 0, 1]).tokens.tolist() == [[11, 12], [-1, -1], [11, -1]]
    for wrong in ([[0], [0]], [[0, 0]], [[]]):
        with pytest.raises(ValueError, match="different paths"):
            Shape.of(wrong)


def best_by_search(rates, cost, most):
    """Every tree up to `most` nodes, by definition."""
    paths = [p for n in range(1, len(rates) + 1) for p in itertools.product(*[range(len(r)) for r in rates[:n]])]
    best = 1 / cost(1)
    for n in range(1, most + 1):
        for tree in itertools.combinations(paths, n):
            if all(len(p) == 1 or p[:-1] in tree for p in tree):
                worth = 1 + sum(torch.tensor([rates[d][r] for d, r in enumerate(p)]).double().prod().item() for p in tree)
                best = max(best, worth / cost(1 + n))
    return best


@pytest.mark.parametrize("slope", [0.0, 0.05, 0.2, 1.0])
def test_the_grown_tree_is_the_best_of_all(slope):
    rates = [[0.5, 0.2, 0.1], [0.4, 0.15], [0.3]]

    def cost(n):
        return 1 + slope * (n - 1)

    shape = grow(rates, cost, most=5)
    worth = [1.0]
    for parent, depth, rank in zip(shape.parents, shape.depths, shape.ranks, strict=True):
        worth.append(worth[parent] * rates[depth - 1][rank])
    assert sum(worth) / cost(len(worth)) == pytest.approx(best_by_search(rates, cost, 5))
    if slope == 1.0:
        assert shape == Shape((), ())  # a pass costs as much as its tokens: nothing gains


def by_hand(p, tree, epsilon=0.09, alpha=0.3):
    """Typical acceptance of one row, path by path."""
    tokens, parents = tree.tokens[0].tolist(), tree.parents[0].tolist()
    best = (0, 0.0, ())
    for node in range(1, len(tokens) + 1):
        path = [node]
        while parents[path[0] - 1]:
            path.insert(0, parents[path[0] - 1])
        good, log = True, 0.0
        for at in path:
            row = p[0, parents[at - 1]]
            entropy = -sum(float(x) * float(x.log()) for x in row if x > 0)
            chance = float(row[tokens[at - 1]])
            good &= chance > min(epsilon, alpha * torch.tensor(-entropy).exp().item())
            log += torch.tensor(chance).log().item()
        if good and (len(path), log) > best[:2] if best[2] else good:
            best = (len(path), log, tuple(path))
    return list(best[2])


def test_typical_acceptance_equals_its_definition():
    generator = torch.Generator().manual_seed(0)
    shape, lengths = Shape.of(PATHS), set()
    for _ in range(300):
        p = torch.rand(1, 7, 8, generator=generator, dtype=torch.float64) ** 6
        p /= p.sum(-1, keepdim=True)
        tokens = torch.randperm(8, generator=generator)[:6].tolist()
        tree = shape.filled([tokens], [9])
        path, token = verify.typical(p, tree, torch.rand(1, 7, generator=generator, dtype=torch.float64))
        wanted = by_hand(p, tree)
        assert [at for at in path[0].tolist() if at >= 0] == wanted
        assert p[0, wanted[-1] if wanted else 0, int(token)] > 0
        lengths.add(len(wanted))
    assert lengths == {0, 1, 2, 3}


def test_the_lossy_rule_must_be_asked_for_and_is_greedy_at_temperature_0(lm):
    prompt, drafter = torch.tensor([3, 1, 4]), medusa(lm)
    greedy = ms.generate(lm, prompt, drafter, max_new_tokens=24)
    assert ms.generate(lm, prompt, drafter, max_new_tokens=24, rule="typical").tokens.tolist() == greedy.tokens.tolist()
    hot = {"sampling": ms.Sampling(1.0), "max_new_tokens": 200, "seed": 3}
    lossless, lossy = (ms.generate(lm, prompt, drafter, rule=rule, **hot).trace for rule in ("lossless", "typical"))
    assert lossy.tokens_per_pass > lossless.tokens_per_pass  # that is what the lost law buys
    with pytest.raises(ValueError, match="'lossless' or 'typical'"):
        ms.generate(lm, prompt, drafter, rule="typcial")


def test_bad_shapes_are_named(lm):
    with pytest.raises(ValueError, match="4 deep, but there are 3 heads"):
        medusa(lm, paths=[[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]])
    with pytest.raises(ValueError, match="rank 4, but a head has 4 tokens"):
        medusa(lm, heads(lm, [1, 2, 3, 4]), [[4]])


def test_an_empty_shape_drafts_nothing(lm):
    drafter = Medusa(heads(lm), Shape((), ()), 2)
    trace = ms.generate(lm, torch.tensor([1, 2]), drafter, max_new_tokens=6).trace
    assert trace.tokens_per_pass == 1 and trace.draft_passes == 0
