"""The forward pass against transformers', family by family, and against itself in chunks, batches and trees."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

import minispec as ms
from minispec.model import Transformer

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES = {
    "llama2": LlamaConfig(**SMALL),
    "llama3.1": LlamaConfig(**SMALL, rope_parameters=LLAMA3),
    "llama-biased": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama-linear": LlamaConfig(**SMALL, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
    "smollm2": LlamaConfig(
        **{**SMALL, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72}, tie_word_embeddings=True
    ),
    "mistral": MistralConfig(**SMALL, sliding_window=None),
    "qwen2": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen2-yarn": Qwen2Config(**SMALL, rope_parameters=YARN),
    "qwen3": Qwen3Config(**SMALL, head_dim=16),
}


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    """A tiny random model of a family: transformers' instance, and ours loaded from its saved folder."""
    torch.manual_seed(0)
    peer = AutoModelForCausalLM.from_config(FAMILIES[request.param]).eval().requires_grad_(False)
    for weight in peer.parameters():  # biases and norms start at 0 and 1: make them count
        if weight.dim() == 1:
            weight += 0.1 * torch.randn(weight.shape)
        else:
            weight *= 6
    folder = tmp_path_factory.mktemp(request.param)
    peer.save_pretrained(folder, max_shard_size="60KB" if request.param == "llama2" else "5GB")
    assert (len(list(folder.glob("*.safetensors"))) > 1) == (request.param == "llama2"), "one family comes in shards"
    return peer, ms.load(str(folder), device="cpu", dtype="float32")


def tokens_for(lm, rows, time, seed=0):
    return torch.randint(lm.model.config.vocab_size, (rows, time), generator=torch.Generator().manual_seed(seed))


def test_logits_equal_transformers(pair):
    peer, lm = pair
    tokens = tokens_for(lm, 2, 50)
    ours = lm.model(tokens, lm.model.new_cache(2, 50))
    assert (ours - peer(tokens).logits).abs().max() < 1e-4
    assert ours.std() > 0.5, "logits this flat would pass any comparison"


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_through_the_cache_equal_one_pass(pair, chunk):
    peer, lm = pair
    tokens, cache = tokens_for(lm, 2, 21), lm.model.new_cache(2, 21)
    pieces = [lm.model(piece, cache) for piece in tokens.split(chunk, dim=1)]
    assert (torch.cat(pieces, 1) - peer(tokens).logits).abs().max() < 1e-4


def test_rows_of_different_lengths(pair):
    peer, lm = pair
    cache, tokens = lm.model.new_cache(3, 40), tokens_for(lm, 3, 30)
    lengths = [30, 4, 17]
    padded = tokens.clone()
    for row, n in enumerate(lengths):
        padded[row, n:] = -1
    first = lm.model(padded, cache)
    assert cache.lengths == lengths
    more = tokens_for(lm, 3, 5, seed=1)
    more[2, 2:] = -1  # the rows grow by different amounts, too
    second = lm.model(more, cache)
    assert cache.lengths == [35, 9, 19]
    for row, n in enumerate(lengths):
        grown = 2 if row == 2 else 5
        want = peer(torch.cat((tokens[row, :n], more[row, :grown]))[None]).logits[0]
        assert (first[row, :n] - want[:n]).abs().max() < 1e-4
        assert (second[row, :grown] - want[n:]).abs().max() < 1e-4


def test_hidden_states_are_numbered_as_in_transformers(pair):
    peer, lm = pair
    tokens = tokens_for(lm, 1, 9)
    want = peer(tokens, output_hidden_states=True).hidden_states
    layers = range(lm.model.config.num_hidden_layers)
    got = lm.model.states(tokens, lm.model.new_cache(1, 9), layers=layers)
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert (ours - theirs).abs().max() < 1e-4


def test_a_node_of_a_tree_equals_its_path_alone(pair):
    _, lm = pair
    prompt = tokens_for(lm, 1, 6)
    tree = ms.TokenTree([[5, 9, 7, 7, 3, 9]], [[0, 0, 1, 2, 3, 3]])
    cache = lm.model.new_cache(1, 20)
    lm.model(prompt, cache)
    block = torch.cat((torch.tensor([[11]]), tree.tokens), 1)
    logits = lm.model(block, cache, positions=6 + tree.depths, mask=tree.ancestors)[0]
    for node in range(block.shape[1]):
        path = block[0, tree.ancestors[0, node]]
        alone = lm.model(torch.cat((prompt[0], path))[None], lm.model.new_cache(1, 20))[0, -1]
        assert (logits[node] - alone).abs().max() < 1e-4


@pytest.mark.parametrize(
    "prompt", ["Why is the sky blue?", "def fibonacci(n):\n    ", "Translate 'good morning' into French. " * 8]
)
def test_default_target_equals_transformers(target, peer, prompt):
    ids = target.encode(prompt)[None]
    ours = target.model(ids, target.model.new_cache(1, ids.shape[1]))
    assert (ours - peer(ids).logits).abs().max() < 1e-4


def test_default_target_with_its_cache_and_in_a_batch():
    """In float64, where pieces of seven tokens do not round otherwise than one pass, on however many threads."""
    from transformers import AutoModelForCausalLM

    target = ms.load(dtype="float64", device="cpu")
    peer = AutoModelForCausalLM.from_pretrained(target.folder, dtype=torch.float64).eval()
    a, b = target.encode("Why is the sky blue?"), target.encode("Hi")
    cache = target.model.new_cache(2, len(a))
    padded = torch.nn.utils.rnn.pad_sequence([a, b], batch_first=True, padding_value=-1)
    pieces = torch.cat([target.model(piece, cache) for piece in padded.split(7, dim=1)], 1)
    for row, ids in enumerate((a, b)):
        assert (pieces[row, : len(ids)] - peer(ids[None]).logits[0]).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (MistralConfig(**SMALL, sliding_window=8), "sliding-window"),
        (Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=8, max_window_layers=1), "sliding-window"),
        (LlamaConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "'dynamic'"),
        (LlamaConfig(**SMALL, hidden_act="gelu"), "'gelu'"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(config, named):
    config.architectures = [type(config).__name__.replace("Config", "ForCausalLM")]
    with pytest.raises(ValueError, match=named):
        Transformer(config)


def test_another_architecture_is_refused_by_name(tmp_path):
    from transformers import GPT2Config

    GPT2Config(n_layer=1, n_embd=8, n_head=2, architectures=["GPT2LMHeadModel"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="GPT2LMHeadModel is not supported"):
        ms.load(str(tmp_path))
