"""The loop with an empty draft: against transformers' `generate`, and at every edge where a text can end."""

import pytest
import torch

import minispec as ms

PROMPTS = [
    "Why is the sky blue?",
    "Write a haiku about rain.",
    "What is 17 times 23?",
    "Explain recursion to a child.",
    "List three uses of copper.",
    "Write a Python function that reverses a list.",
    "Hi",
    "Who wrote Hamlet, and when?",
    "Translate 'where is the station' into Spanish.",
    "Summarise: The cat sat on the mat. The dog barked. The cat left.",
    "Give me a recipe for pancakes.",
    "What is the difference between TCP and UDP?",
    "Name the planets in order.",
    "How do vaccines work?",
    "Rewrite more politely: Send me the file now.",
    "Complete the sequence: 2, 4, 8, 16,",
    "Describe a sunset in one sentence.",
    "Fix the bug: for i in range(10) print(i)",
    "What are the primary colours?",
    "Tell me a short story about a lighthouse keeper who finds a message in a bottle and decides to answer it.",
]
IDS = torch.tensor([1, 2, 3])


@pytest.fixture(scope="module")
def reference(target, peer):
    """transformers' own greedy tokens for each prompt, 64 at most."""
    texts = []
    for prompt in PROMPTS:
        ids = target.encode(prompt)[None]
        out = peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False, pad_token_id=2)
        texts.append(out[0, ids.shape[1] :].tolist())
    return texts


def test_greedy_equals_transformers_alone(target, reference):
    for prompt, want in zip(PROMPTS, reference, strict=True):
        assert ms.generate(target, prompt, max_new_tokens=64).tokens.tolist() == want


def test_greedy_equals_transformers_in_a_batch(target, reference):
    got = ms.generate_batch(target, PROMPTS, max_new_tokens=64)
    assert [g.tokens.tolist() for g in got] == reference
    assert {g.finish_reason for g in got} == {"stop", "length"}, "the prompts should show both ways to end"


def test_a_row_of_a_batch_equals_the_same_request_alone():
    lm = ms.toy(eos_id=0)
    prompts = [torch.tensor(ids) for ids in ([1], [2, 3, 4, 1], [3, 3])] * 3
    options = {"sampling": ms.Sampling(1.0, 4, 0.95), "max_new_tokens": 12}
    batch = ms.generate_batch(lm, prompts, seed=5, **options)
    for i, (prompt, got) in enumerate(zip(prompts, batch, strict=True)):
        alone = ms.generate(lm, prompt, seed=5 + i, **options)
        assert (alone.tokens.tolist(), alone.finish_reason) == (got.tokens.tolist(), got.finish_reason)
    assert len({len(g.tokens) for g in batch}) > 2, "rows should end at different times"


def test_the_seed_decides():
    lm, sampling = ms.toy(vocab_size=50), ms.Sampling(1.0)
    a, b, c = (ms.generate(lm, IDS, sampling=sampling, seed=seed).tokens.tolist() for seed in (1, 1, 2))
    assert a == b != c


def test_passes_are_rounds_and_prefill():
    g = ms.generate(ms.toy(), IDS, max_new_tokens=6)
    assert len(g.tokens) == 6 and len(g.trace.rounds) == 5 and g.finish_reason == "length"
    assert g.trace.tokens_per_pass == 1 and g.trace.acceptance_by_position == []
    assert all(r.drafted == r.accepted == r.path == [] and len(r.emitted) == 1 for r in g.trace.rounds)
    assert g.trace.ttft_s > 0 and g.trace.tpot_s > 0 and g.text is None


def test_one_token_needs_no_round():
    g = ms.generate(ms.toy(), IDS, max_new_tokens=1)
    assert len(g.tokens) == 1 and g.trace.rounds == [] and g.trace.tpot_s == 0


def test_eos_ends_and_is_included():
    free = ms.generate(ms.toy(vocab_size=30, seed=3), IDS, max_new_tokens=20, sampling=ms.Sampling(1.0)).tokens.tolist()
    end = free[7]
    at = free.index(end)
    g = ms.generate(ms.toy(vocab_size=30, seed=3, eos_id=end), IDS, max_new_tokens=20, sampling=ms.Sampling(1.0))
    assert g.tokens.tolist() == free[: at + 1] and g.finish_reason == "stop"


def test_every_eos_id_of_the_model_ends(tmp_path, target):
    import json

    from minispec.hub import end_ids

    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert end_ids(target.model.config, tmp_path) == {2, 7, 9}


def test_eos_as_the_first_token_ends_at_once():
    first = ms.generate(ms.toy(), IDS, max_new_tokens=1).tokens.item()
    g = ms.generate(ms.toy(eos_id=first), IDS, max_new_tokens=9)
    assert g.tokens.tolist() == [first] and g.finish_reason == "stop" and g.trace.rounds == []


def test_stream_yields_the_first_token_then_the_rounds():
    lm = ms.toy()
    first, *rounds = ms.stream(lm, IDS, max_new_tokens=7)
    want = ms.generate(lm, IDS, max_new_tokens=7).tokens.tolist()
    assert [first, *(token for r in rounds for token in r.emitted)] == want


def test_time_spent_by_the_reader_of_a_stream_is_not_counted():
    import time

    rounds = []
    for event in ms.stream(ms.toy(), IDS, max_new_tokens=4):
        time.sleep(0.2)
        rounds += [event] if isinstance(event, ms.Round) else []
    assert sum(r.seconds for r in rounds) < 0.2


def test_stop_string_cuts_the_text_exactly(target):
    whole = ms.generate(target, "List three uses of copper.", max_new_tokens=40).text
    stop = whole[25:31]  # lies across tokens
    g = ms.generate(target, "List three uses of copper.", max_new_tokens=40, stop=["never", stop])
    assert g.text == whole[: whole.index(stop)] and g.finish_reason == "stop"
    kept = target.tokenizer.decode(g.tokens)
    assert stop in kept and stop not in target.tokenizer.decode(g.tokens[:-1]), "tokens end with the one that completes it"


def test_a_prompt_may_be_text_messages_or_ids(target):
    text = "Name the planets in order."
    messages = [{"role": "user", "content": text}]
    assert torch.equal(target.encode(text), target.encode(messages))
    assert torch.equal(target.encode(text), target.encode(target.encode_chat(messages)))
    assert "<|im_start|>user\nName the planets" in target.tokenizer.decode(target.encode(text))


def test_the_context_may_be_filled_to_the_last_position():
    lm = ms.toy()
    g = ms.generate(lm, torch.ones(228, dtype=torch.int64), max_new_tokens=28)
    assert len(g.tokens) == 28


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (torch.tensor([], dtype=torch.int64), {}, "the prompt is empty"),
        (torch.tensor([[1, 2]]), {}, "must be a 1-D tensor"),
        (torch.tensor([1, 5]), {}, "outside the model's vocabulary of 5"),
        (torch.tensor([-1]), {}, "outside the model's vocabulary of 5"),
        ("hello", {}, "no tokenizer"),
        (
            torch.ones(228, dtype=torch.int64),
            {"max_new_tokens": 29},
            r"\(228 tokens\) plus max_new_tokens \(29\) exceeds",
        ),
        (IDS, {"max_new_tokens": 0}, "max_new_tokens must be a whole number, 1 or more"),
        (IDS, {"max_new_tokens": 2.5}, "max_new_tokens must be a whole number, 1 or more"),
        (IDS, {"sampling": 0.8}, "sampling must be a Sampling"),
        (IDS, {"seed": 2**70}, "a seed must be a whole number between"),
        (IDS, {"seed": 1.5}, "a seed must be a whole number between"),
        (IDS, {"drafter": "ngram"}, r"drafter must be one, such as NGram\(\) .* but is 'ngram'"),
        (IDS.float(), {}, "must hold whole numbers"),
        (torch.tensor(1.5), {}, "must hold whole numbers"),
        (torch.tensor(1), {}, "must be a 1-D tensor"),
        (7, {}, "a prompt must be a string, a list of chat messages .* but is a int"),
        (IDS, {"stop": "x"}, "they need a tokenizer"),
    ],
)
def test_bad_input(prompt, options, message):
    with pytest.raises(ValueError, match=message):
        ms.generate(ms.toy(), prompt, **options)


def test_more_bad_input(target):
    for prompt in (["one", "two"], [{"role": "user"}], [{"role": "user", "content": None}]):
        with pytest.raises(ValueError, match="for several prompts at once, call generate_batch"):
            ms.generate(target, prompt)
    for prompt in ("", "  \n", []):
        with pytest.raises(ValueError, match="the prompt is empty"):
            ms.generate(target, prompt)
    for prompts in ([], "Hi"):
        with pytest.raises(ValueError, match="needs a list of prompts"):
            ms.generate_batch(target, prompts)
    with pytest.raises(ValueError, match="not valid Unicode"):
        ms.generate(target, "a\udc80b")
    for stop in (["x", ""], [1]):
        with pytest.raises(ValueError, match="stop must be a string or several; .* none may be empty"):
            ms.generate(target, "Hi", stop=stop)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_name_the_step_and_the_dtype(bad):
    lm = ms.toy()
    lm.model.embed_tokens.weight[4] = bad  # spoils a pass only once token 4 has been emitted
    lm.model.lm_head.weight[4] = 0
    sampling = ms.Sampling(1.0)
    clean = ms.generate(ms.toy(), IDS, sampling=sampling, max_new_tokens=1)
    assert clean.tokens.item() != 4
    with pytest.raises(ValueError, match=r"not finite at new token \d+ in torch.float64"):
        ms.generate(lm, IDS, sampling=sampling, max_new_tokens=60)
