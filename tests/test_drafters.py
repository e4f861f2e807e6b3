"""Drafters: what they propose, what their caches hold, and that the output is the target's own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import minispec as ms
from minispec import exact
from minispec.decode import Decoder
from minispec.sampling import Dice, Sampling

IDS = torch.tensor([1, 2, 3, 1, 2])


def started(drafter, *texts):
    drafter.start(ms.toy(), 64, [torch.tensor(text) for text in texts], None, Dice(Sampling(), range(len(texts))))
    return drafter


def chain(tree):
    return [[token for token in row if token >= 0] for row in tree.tokens.tolist()]


def test_ngram_copies_what_followed_last_time():
    drafter = started(ms.NGram(1, 2, 3), [5, 6, 7, 8, 9, 5, 6])
    assert chain(drafter.propose([9])) == [[7, 8, 9]]


def test_ngram_prefers_the_longest_match_and_then_the_chosen_position():
    text = [1, 2, 9, 3, 2, 8, 4, 2, 7, 1, 2]
    assert chain(started(ms.NGram(1, 2, 1), text).propose([9])) == [[9]], "1 2 stood before; 2 alone would give 7"
    text = [2, 9, 3, 2, 8, 4, 2]
    assert chain(started(ms.NGram(1, 1, 1), text).propose([9])) == [[8]]
    assert chain(started(ms.NGram(1, 1, 1, match="earliest"), text).propose([9])) == [[9]]


def test_ngram_does_not_match_itself_and_drafts_nothing_without_a_match():
    assert chain(started(ms.NGram(1, 3, 4), [1, 2, 3, 4]).propose([9])) == [[]]
    assert chain(started(ms.NGram(2, 3, 4), [7]).propose([9])) == [[]], "a prompt shorter than the n-gram"


def test_ngram_uses_a_short_continuation():
    assert chain(started(ms.NGram(1, 1, 5), [4, 4]).propose([9])) == [[4]]


def test_ngram_respects_the_budget_and_keeps_rows_apart():
    drafter = started(ms.NGram(1, 1, 5), [1, 2, 3, 4, 1], [6, 7, 8], [9, 5, 9])
    assert chain(drafter.propose([2, 5, 5])) == [[2, 3], [], [5, 9]]
    drafter.commit([[2], [6], []], None)
    assert chain(drafter.propose([5, 5, 0])) == [[3, 4, 1, 2], [7, 8, 6], []]
    drafter.keep_rows([2, 1])
    assert chain(drafter.propose([5, 1])) == [[5, 9], [7]]


def brute_force(text, sizes, most):
    """The definition, by search: the longest n-gram that occurred before, its latest occurrence."""
    for n in sizes:
        for at in range(len(text) - n - 1, -1, -1):
            if n <= len(text) and text[at : at + n] == text[-n:]:
                return text[at + n : at + n + most]
    return []


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.lists(st.integers(0, 3), max_size=10))
def test_ngram_equals_a_search_by_definition(prompt, more):
    drafter = started(ms.NGram(1, 3, 4), prompt)
    for token in more:
        drafter.commit([[token]], None)
    assert chain(drafter.propose([4])) == [brute_force(prompt + more, (3, 2, 1), 4)]


class RandomTree(ms.NGram):
    """Trees of random shape, redrawn every round: fixed children, or siblings sampled without replacement from q."""

    def __init__(self, nodes, sampled):
        super().__init__(1, 1)
        self.nodes, self.sampled = nodes, sampled

    def start(self, target, cache_rows, prompts, hidden, dice):
        super().start(target, cache_rows, prompts, hidden, dice)
        self.generators = [torch.Generator().manual_seed(g.initial_seed()) for g in dice.generators]

    def keep_rows(self, rows):
        super().keep_rows(rows)
        self.generators = [self.generators[row] for row in rows]

    def propose(self, budget):
        rows = [self.grow(min(self.nodes, most), chance) for most, chance in zip(budget, self.generators, strict=True)]
        width = max(len(tokens) for tokens, *_ in rows)
        pad = lambda values: [*values, *[-1] * (width - len(values))]
        q = [[*q, *[torch.full((5,), 0.2)] * (width - len(q))] for *_, q in rows]
        q = torch.stack([torch.stack(row) for row in q]).double() if self.sampled and width else None
        tokens, parents = (torch.tensor([pad(row[i]) for row in rows]).view(len(rows), width) for i in (0, 1))
        return ms.TokenTree(tokens, parents, q)

    def grow(self, nodes, chance):
        tokens, parents, qs = [], [], []
        law = {}  # of a parent's children
        for i in range(nodes):
            parent = int(torch.randint(0, i + 1, (), generator=chance))
            q = law.setdefault(parent, torch.rand(5, generator=chance, dtype=torch.float64).softmax(-1))
            left = q.clone()
            left[[x for x, at in zip(tokens, parents, strict=True) if at == parent]] = 0
            if not left.sum():
                break
            tokens.append(int(left.multinomial(1, generator=chance)))
            parents.append(parent)
            qs.append(q)
        return tokens, parents, qs


DRAFTERS = {
    "fixed trees": lambda: RandomTree(7, sampled=False),
    "sampled trees": lambda: RandomTree(7, sampled=True),
    "ngram": lambda: ms.NGram(1, 3, 4),
    "draft": lambda: ms.DraftModel(ms.toy(seed=1, num_hidden_layers=1), 4),
    "the target itself": lambda: ms.DraftModel(ms.toy(), 4),
    "unsure": lambda: ms.DraftModel(ms.toy(seed=1), 4, min_confidence=0.5),
}


@pytest.mark.parametrize("name", DRAFTERS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_both_caches_equal_a_fresh_computation_after_every_round(name, data):
    """Random prompts, batches, ends and temperatures; float64, so that equal means equal."""
    lm, drafter = ms.toy(eos_id=data.draw(st.sampled_from([None, 0]))), DRAFTERS[name]()
    prompts = data.draw(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=9), min_size=1, max_size=3))
    options = {
        "max_new_tokens": data.draw(st.integers(1, 14)),
        "sampling": Sampling(data.draw(st.sampled_from([0.0, 1.0])), top_k=data.draw(st.sampled_from([0, 2]))),
        "seed": data.draw(st.integers(0, 99)),
    }
    decoder = Decoder(lm, [torch.tensor(prompt) for prompt in prompts], drafter, **options)
    for _ in decoder.run():
        for i, request in enumerate(decoder.active):
            text = request.prompt.tolist() + request.tokens
            assert decoder.cache.lengths[i] == len(text) - 1, "all but the pending token"
            if request.trace.rounds:
                assert list(tree_path(request.trace.rounds[-1])) == request.trace.rounds[-1].accepted
            assert same_as_fresh(lm, decoder.cache, i, text[:-1])
            if isinstance(drafter, ms.DraftModel) and request.trace.rounds:
                fed = drafter.cache.lengths[i]
                assert drafter.fed[i] == text[:fed]
                assert same_as_fresh(drafter.small, drafter.cache, i, text[:fed])
    for row, (request, prompt) in enumerate(zip(decoder.requests, prompts, strict=True)):
        assert 1 <= len(request.tokens) <= options["max_new_tokens"]
        alone = {**options, "seed": options["seed"] + row}
        again = ms.generate(lm, torch.tensor(prompt), DRAFTERS[name](), **alone)
        assert again.tokens.tolist() == request.tokens, "a row of a batch equals the request alone"
        if options["sampling"].temperature == 0:
            plain = ms.generate(lm, torch.tensor(prompt), **alone)
            assert plain.tokens.tolist() == request.tokens
            assert plain.finish_reason == request.finish_reason


def tree_path(round):
    """The tokens along the accepted path, each a child of the one before."""
    at = 0
    for node in round.path:
        assert round.tree.parents[0, node - 1] == at
        yield int(round.tree.tokens[0, node - 1])
        at = node


def same_as_fresh(lm, cache, row, text):
    fresh = lm.model.new_cache(1, max(1, len(text)))
    if text:
        lm.model(torch.tensor([text]), fresh)
    n = len(text)
    return torch.allclose(cache.keys[:, row, :, :n], fresh.keys[:, 0, :, :n], atol=1e-10) and torch.allclose(
        cache.values[:, row, :, :n], fresh.values[:, 0, :, :n], atol=1e-10
    )


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_k=3)])
@pytest.mark.parametrize("sampled", [False, True])
def test_random_trees_keep_the_law(sampled, sampling):
    assert exact.sampling_test(ms.toy(), RandomTree(4, sampled), sampling, 6_000).passed


def test_a_few_ids_to_draft_from_keep_the_law_and_the_text():
    """q has to stand at the ids that were drafted, and be 0 elsewhere."""
    ids = torch.tensor([0, 2, 3])
    drafter = ms.DraftModel(ms.toy(seed=1, num_hidden_layers=1), 3, vocabulary=ids)
    assert exact.sampling_test(ms.toy(), drafter, Sampling(1.0), 6_000).passed
    for temperature in (0.0, 1.0):
        g = ms.generate(ms.toy(), IDS, drafter, max_new_tokens=60, sampling=Sampling(temperature))
        drafted = [token for r in g.trace.rounds for token in r.drafted]
        assert set(drafted) <= {0, 2, 3} and drafted
    assert set(g.tokens.tolist()) == {0, 1, 2, 3, 4}
    plain = ms.generate(ms.toy(), IDS, max_new_tokens=40)
    assert ms.generate(ms.toy(), IDS, drafter, max_new_tokens=40).tokens.tolist() == plain.tokens.tolist()


def test_a_perfect_drafter_is_always_accepted_and_leaves_no_hole():
    g = ms.generate(ms.toy(), IDS, DRAFTERS["the target itself"](), max_new_tokens=41)
    assert g.trace.acceptance_by_position == [1.0] * 4 and g.trace.tokens_per_pass == 5
    assert g.trace.draft_passes == 8 * 4
    fed = [len(r.emitted) for r in g.trace.rounds]
    assert fed == [5] * 8, "five tokens a round: four accepted, and a bonus token"


def test_after_full_acceptance_the_drafter_reads_just_the_two_tokens_it_lacks():
    drafter, read = DRAFTERS["the target itself"](), []
    original = drafter.read
    drafter.read = lambda feed: read.append(len(feed[0])) or original(feed)
    ms.generate(ms.toy(), IDS, drafter, max_new_tokens=21)
    assert read == [len(IDS) + 1, 1, 1, 1] + [2, 1, 1, 1] * 3


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 6])
def test_the_budget_is_met_exactly(budget):
    g = ms.generate(ms.toy(), IDS, DRAFTERS["the target itself"](), max_new_tokens=budget)
    assert len(g.tokens) == budget and g.finish_reason == "length"


def test_eos_inside_an_accepted_block_ends_there():
    plain = ms.generate(
        ms.toy(vocab_size=30, seed=3), IDS, max_new_tokens=20, sampling=Sampling(1.0), seed=1
    ).tokens.tolist()
    end = plain[6]
    lm = ms.toy(vocab_size=30, seed=3, eos_id=end)
    for seed in range(30):
        g = ms.generate(
            lm, IDS, ms.DraftModel(ms.toy(vocab_size=30, seed=3), 5), max_new_tokens=60, sampling=Sampling(1.0), seed=seed
        )
        tokens = g.tokens.tolist()
        assert end not in tokens[:-1] and (tokens[-1] == end) == (g.finish_reason == "stop")
        last = g.trace.rounds[-1] if g.trace.rounds else None
        if last and last.was_cut and g.finish_reason == "stop":
            assert last.accepted[-1] == end == last.emitted[-1] and len(last.drafted) == len(last.emitted)
            break
    else:
        pytest.fail("no generation ended inside a block")


def test_stop_string_inside_an_accepted_block(target):
    prompt = "Repeat exactly: one two three four five six seven eight nine ten"
    plain = ms.generate(target, prompt, max_new_tokens=48)
    stop = plain.text[30:36]
    a = ms.generate(target, prompt, max_new_tokens=48, stop=stop)
    b = ms.generate(target, prompt, ms.NGram(), max_new_tokens=48, stop=stop)
    assert (a.text, a.tokens.tolist(), a.finish_reason) == (b.text, b.tokens.tolist(), b.finish_reason)
    assert a.finish_reason == "stop"


def test_a_drafter_with_fewer_positions_drafts_less_and_never_fails():
    small = ms.toy(seed=1, max_position_embeddings=12)
    a = ms.generate(ms.toy(), IDS, ms.DraftModel(small, 4), max_new_tokens=40)
    assert a.tokens.tolist() == ms.generate(ms.toy(), IDS, max_new_tokens=40).tokens.tolist()
    assert a.trace.rounds[0].drafted and not a.trace.rounds[-2].drafted


def test_the_context_may_reach_the_limit_of_the_target():
    prompt = torch.ones(250, dtype=torch.int64)
    g = ms.generate(ms.toy(), prompt, DRAFTERS["the target itself"](), max_new_tokens=6)
    assert len(g.tokens) == 6


def test_a_smaller_vocabulary_drafts_from_what_is_shared():
    small = ms.toy(vocab_size=4, seed=1)
    for temperature in (0.0, 1.0):
        g = ms.generate(ms.toy(), IDS, ms.DraftModel(small, 3), max_new_tokens=40, sampling=Sampling(temperature))
        assert max(token for r in g.trace.rounds for token in r.drafted) <= 3
        assert temperature == 0 or g.tokens.max() == 4, "what cannot be drafted can still be emitted"


def test_top_k_on_the_target_forbids_what_the_drafter_likes():
    g = ms.generate(ms.toy(), IDS, DRAFTERS["draft"](), max_new_tokens=40, sampling=Sampling(1.0, top_k=1))
    assert g.tokens.tolist() == ms.generate(ms.toy(), IDS, max_new_tokens=40).tokens.tolist()


def test_another_tokenizer_is_refused():
    big = ms.toy(vocab_size=9)
    with pytest.raises(ValueError, match=r"vocabulary \(9 ids\) does not fit the target's \(5\)"):
        ms.generate(ms.toy(), IDS, ms.DraftModel(big), max_new_tokens=4)


class Words:
    chat_template = None

    def __init__(self, *words):
        self.words = words

    def get_vocab(self):
        return {word: i for i, word in enumerate(self.words)}

    def decode(self, tokens, **options):
        return " ".join(self.words[token] for token in tokens)


def test_tokenizers_are_compared_and_the_difference_is_named():
    target, small = ms.toy(vocab_size=5), ms.toy(vocab_size=7, seed=1)  # widths differ: padding, in real pairs
    target.tokenizer = small.tokenizer = Words("a", "b", "c", "d", "e")
    assert len(ms.generate(target, IDS, ms.DraftModel(small), max_new_tokens=8).tokens) == 8
    small.tokenizer = Words("a", "b", "x", "d", "e")
    with pytest.raises(ValueError, match="another tokenizer .* the first difference at id 2"):
        ms.generate(target, IDS, ms.DraftModel(small), max_new_tokens=8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ms.NGram(num_tokens=0), "num_tokens must be 1 or more"),
        (lambda: ms.NGram(3, 2), "min_ngram <= max_ngram"),
        (lambda: ms.NGram(0, 2), "min_ngram <= max_ngram"),
        (lambda: ms.NGram(match="middle"), "match must be"),
        (lambda: ms.DraftModel(ms.toy(), 0), "num_tokens must be 1 or more"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_drafter_that_exceeds_its_budget_is_named():
    class Greedy(ms.NGram):
        def propose(self, budget):
            return ms.TokenTree.chain([[1] * (most + 1) for most in budget])

    with pytest.raises(ValueError, match=r"proposed \[8\] nodes a row, but its budget was \[7\]"):
        ms.generate(ms.toy(), IDS, Greedy(), max_new_tokens=9)


def test_an_adversarial_drafter_changes_nothing():
    class Wrong(ms.NGram):
        def propose(self, budget):
            return ms.TokenTree.chain([[(self.texts[0][-1] + 1) % 5] * min(3, most) for most in budget])

    g = ms.generate(ms.toy(), IDS, Wrong(), max_new_tokens=30)
    assert g.tokens.tolist() == ms.generate(ms.toy(), IDS, max_new_tokens=30).tokens.tolist()


def test_no_eos_id_is_no_obstacle():
    assert len(ms.generate(ms.toy(), IDS, ms.NGram(1, 2), max_new_tokens=5).tokens) == 5


def test_real_requests_keep_their_tokens(target):
    from minispec import audit

    makers = {"ngram": ms.NGram, "draft": lambda: ms.load_drafter("draft", target)}
    for check in audit.identity(target, makers, 8, 32, (1, 4), target):
        assert check.passed, check.measured
