"""Training Medusa and EAGLE: which place predicts which token from which target, nothing from padding, and files."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import minispec as ms
from minispec.checkpoints import load_drafter, save_eagle, save_medusa
from minispec.drafters.dynamic_tree import DynamicTree
from minispec.hub import LanguageModel
from minispec.model import Transformer
from minispec.train import teacher
from minispec.train.ahead import Ahead, Examples, kept_layers
from minispec.train.data import Corpus, Text
from minispec.train.draft import frequent_ids
from minispec.train.eagle import EagleTrainer, new_net, train_eagle, unrolled
from minispec.train.fit import fit
from minispec.train.medusa import MedusaTrainer, new_heads, train_medusa
from minispec.train.teacher import States

VOCAB = 40
MEDUSA = {"heads": 3, "depth": 1, "drafted": 30, "steps": 30, "batch": 4, "lr": 1e-3, "seed": 0}
EAGLE = {"layers": None, "eagle": 3, "unroll": 3, "train_head": False, "drafted": 30, "steps": 30, "batch": 4, "lr": 1e-3}
EAGLE["seed"] = 0
OWN = {"rates": [[0.5]], "cost": [1.0, 1.0], "tree": "chain", "num_tokens": 2, "dynamic": {"nodes": 1}}


@pytest.fixture(scope="module")
def lm():
    return ms.toy(VOCAB, dtype="float32", hidden_size=64, num_attention_heads=2, num_hidden_layers=7)


@pytest.fixture(scope="module")
def corpus(lm):
    """Forty texts that the toy wrote itself."""
    chance = np.random.default_rng(0)
    texts = []
    for i in range(43):
        prompt = chance.integers(0, VOCAB, int(chance.integers(1, 9)))
        answer = ms.generate(lm, torch.from_numpy(prompt), max_new_tokens=int(chance.integers(2, 24))).tokens
        texts.append(Text("chat", prompt.astype(np.uint16), answer.numpy().astype(np.uint16), 0.0 if i % 2 == 0 else 0.8))
    return Corpus(texts, "toy")


def example(lm, prompt, answer, kept):
    text = Text("chat", np.array(prompt, np.uint16), np.array(answer, np.uint16), 0.0)
    return text, teacher.read_text(lm, text, kept)


class Spy(Ahead):
    """Notes what is asked of it: which places, with what inputs."""

    def outputs(self, tokens, hidden):
        for step in range(self.steps):
            # A state that names its own place and step.
            place = torch.arange(tokens.shape[1]).expand_as(tokens)
            yield torch.stack((place, torch.full_like(place, step)), -1)

    def logits(self, step, state):
        self.asked.setdefault(step, []).extend(state[:, 0].tolist())
        return torch.zeros(len(state), len(self.vocabulary), requires_grad=True)


def test_four_tokens_place_by_place(lm):
    """Text a b | c d, answer c d. Head 0 at a guesses c, at b guesses d; head 1 at a guesses d; nothing else counts."""
    kept = kept_layers(lm)
    one = example(lm, [1, 2], [3, 4], kept)
    spy = Spy(lm, torch.arange(VOCAB), 3)
    tokens, hidden, answer = spy.read([one])
    assert tokens.tolist() == [[1, 2, 3, 4]] and answer.tolist() == [[False, True, True, False]]
    counted = [spy.counted(step, tokens, answer)[0].tolist() for step in range(3)]
    assert counted == [
        [True, True, False, False],  # c and d
        [True, False, False, False],  # d
        [False, False, False, False],
    ]
    # The distribution to learn at place j, step i, is the target's at place j + 1 + i.
    for step, place in ((0, 0), (0, 1), (1, 0)):
        seen = torch.tensor([[1, 2, 3, 4]])[:, : place + 2 + step]
        wanted = lm.model(seen, lm.model.new_cache(1, 4))[0, -1].softmax(-1)
        from minispec.train.ahead import ahead

        got = torch.nn.functional.linear(ahead(hidden[:, :, -1], step + 1)[0, place], spy.teacher).softmax(-1)
        torch.testing.assert_close(got, wanted, atol=2e-2, rtol=0.05)  # states are kept in bfloat16
    # What an EAGLE step reads at a place: the target's feature there, and the token after it.
    net = new_net(lm, kept[:-1], torch.arange(VOCAB))
    read = []
    net.block = lambda feature, embedding, attend: read.append((feature, embedding)) or feature
    list(EagleTrainer(net, lm, 2, kept).outputs(tokens, hidden))
    torch.testing.assert_close(read[0][0], hidden[:, :, 2])  # at the start fc hands the last of the three through
    torch.testing.assert_close(read[0][1][0, :3], lm.model.embed_tokens(torch.tensor([2, 3, 4])))
    torch.testing.assert_close(read[1][1][0, :2], lm.model.embed_tokens(torch.tensor([3, 4])))


def test_every_place_is_counted_in_every_step_that_has_an_answer(lm):
    kept = kept_layers(lm)
    spy = Spy(lm, torch.arange(VOCAB), 3)
    spy.asked = {}
    one = example(lm, [1, 2], list(range(3, 30)), kept)
    loss = spy([one])
    # Every logit of the spy is 0, so its loss is the same at every place: that of a uniform guess.
    torch.testing.assert_close(loss.item(), torch.tensor(VOCAB).log().item(), rtol=1e-5, atol=0)
    assert [spy.asked[step] for step in range(3)] == [list(range(27)), list(range(26)), list(range(25))]


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_the_loss_does_not_depend_on_padding_or_on_what_pads(lm, kind):
    kept = kept_layers(lm)
    make = {
        "medusa": lambda: MedusaTrainer(new_heads(lm, 2, torch.arange(30)), lm),
        "eagle": lambda: EagleTrainer(new_net(lm, kept[:-1], torch.arange(30)), lm, 2, kept),
    }
    trainer = make[kind]()
    short, long = example(lm, [1, 2], [3, 4, 5, 6, 9], kept), example(lm, [7, 8, 9], list(range(10, 29)), kept)
    turns = [trainer.acceptance([short, long], batch=size) for size in (1, 2)]
    assert turns[0] == turns[1]
    hits = [trainer.ranks([short, long], batch=size) for size in (1, 2)]
    torch.testing.assert_close(hits[0], hits[1])
    # One step: the loss of a batch is the mean over the places of both texts, however much one of them is padded.
    one = {
        "medusa": lambda: MedusaTrainer(new_heads(lm, 1, torch.arange(VOCAB)), lm),
        "eagle": lambda: EagleTrainer(new_net(lm, kept[:-1], torch.arange(VOCAB)), lm, 1, kept),
    }[kind]()
    with torch.inference_mode():
        alone = one([short]) * 5 + one([long]) * 19
        torch.testing.assert_close(one([short, long]) * 24, alone)
    with torch.inference_mode():
        states = [list(trainer.outputs(*trainer.read(group)[:2])) for group in ([short], [short, long])]
    for alone, beside in zip(*states, strict=True):
        torch.testing.assert_close(alone[0], beside[0, : alone.shape[1]], rtol=1e-4, atol=1e-4)


def test_states_are_the_targets_and_are_computed_once(lm, corpus, tmp_path, monkeypatch):
    kept = kept_layers(lm)
    first = States(lm, corpus.texts, kept, tmp_path)
    monkeypatch.setattr(teacher, "read_text", lambda *args: pytest.fail("computed again"))
    again = States(lm, corpus.texts, kept, tmp_path)
    for i in (0, 7, 42):
        text = corpus.texts[i]
        ids = torch.from_numpy(np.concatenate((text.prompt, text.answer)).astype(np.int64))[None]
        *named, _ = lm.model.states(ids, lm.model.new_cache(1, ids.shape[1]), layers=kept)
        assert again[i].shape == (ids.shape[1], 4, 64)
        torch.testing.assert_close(again[i].float(), torch.stack(named, 2)[0], rtol=0.01, atol=0.01)
        assert torch.equal(first[i], again[i])
    assert not list(tmp_path.glob("*.part"))


def test_layers_that_would_fall_together_are_refused():
    """On a model of four layers the usual three are 2, 2 and 1."""
    small = ms.toy(VOCAB, num_hidden_layers=4)
    with pytest.raises(ValueError, match="4 layers, too few"):
        kept_layers(small)
    assert kept_layers(small, (0, 2, 3)) == (0, 2, 3, 4)
    assert kept_layers(small, (4,)) == (4,)
    for wrong in ((0, 2, 5), (1, 1, 2)):
        with pytest.raises(ValueError, match="different hidden states"):
            kept_layers(small, wrong)
    assert kept_layers(ms.toy(VOCAB, num_hidden_layers=30)) == (2, 15, 27, 30)


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle 1", "eagle, own output matrix"])
def test_training_learns_and_what_is_written_is_read_back(kind, lm, corpus, tmp_path, monkeypatch):
    """A minute of training makes it better than its start; the folder opens, drafts, and keeps the target's text."""
    monkeypatch.setattr("minispec.train.eagle.measured_cost", lambda lm: [1.0] * 33)
    monkeypatch.setattr("minispec.train.medusa.measured_cost", lambda lm: [1.0] * 33)
    out = tmp_path / "out"
    if kind == "medusa":
        measured = train_medusa(lm, corpus, tmp_path / "states", out, MEDUSA | {"steps": 150, "lr": 1e-2})
    else:
        changes = {"eagle": 1 if "1" in kind else 3, "train_head": "own" in kind, "steps": 150, "lr": 1e-2}
        measured = train_eagle(lm, corpus, tmp_path / "states", out, EAGLE | changes)
    notes = json.loads((out / "recipe.json").read_text())
    assert notes["loss"]["last"] < notes["loss"]["first"] - 0.1
    assert len(notes["evaluations"]) >= 8 and len(notes["evaluations"][0]["held_out"]) == 3
    assert measured["held_out_acceptance"] == notes["held_out_acceptance"]
    assert not list(tmp_path.glob(".out*"))
    method = "medusa" if kind == "medusa" else "eagle"
    prompt = torch.from_numpy(corpus.texts[3].prompt.astype(np.int64))
    wanted = ms.generate(lm, prompt, max_new_tokens=24).tokens.tolist()
    for tree in ("chain", "static") if kind == "medusa" else ("chain", "static", "dynamic"):
        drafter = load_drafter(method, lm, out, tree=tree)
        got = ms.generate(lm, prompt, drafter, max_new_tokens=24)
        assert got.tokens.tolist() == wanted and got.trace.extra_bytes > 0
        most = load_drafter(method, lm, out, tree=tree, num_tokens=2)
        rounds = ms.generate(lm, prompt, most, max_new_tokens=24).trace.rounds
        assert max(r.tree.counts[0] for r in rounds) <= 2
        many = load_drafter(method, lm, out, tree=tree, num_tokens=500)  # more than the cost curve reaches
        assert ms.generate(lm, prompt, many, max_new_tokens=24).tokens.tolist() == wanted
    with pytest.raises(ValueError, match="num_tokens must be 1 or more, but is 0"):
        load_drafter(method, lm, out, num_tokens=0)
    with pytest.raises(ValueError, match="there is no tree 'bush'"):
        load_drafter(method, lm, out, tree="bush")
    other = ms.toy(VOCAB, dtype="float32", hidden_size=32, num_attention_heads=2, num_hidden_layers=7)
    with pytest.raises(ValueError, match="for toy, not for"):
        load_drafter(method, other, out)


@pytest.mark.parametrize("eagle", [1, 3])
def test_what_is_written_and_read_back_computes_the_same(lm, tmp_path, eagle):
    ids = torch.arange(0, VOCAB, 3)
    net = new_net(lm, (7,) if eagle == 1 else (2, 3, 4), ids, eagle)
    for name, weight in net.named_parameters():
        if not name.startswith(("embed", "lm_head")):
            weight.data = (weight.data + torch.randn_like(weight) * 0.3).bfloat16().float()
    net.lm_head.weight.data = net.lm_head.weight.data if eagle == 1 else net.lm_head.weight.data.bfloat16().float()
    save_eagle(tmp_path / "eagle", net, lm, OWN)
    read = load_drafter("eagle", lm, tmp_path / "eagle").net
    assert read.vocabulary.tolist() == ids.tolist() and read.layers_read == net.layers_read
    hidden, tokens = torch.randn(1, 4, len(net.layers_read), 64), torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        outs = [m.logits(m.step(m.fuse(hidden), tokens, m.new_cache(1, 4))) for m in (net, read)]
    torch.testing.assert_close(*outs)
    heads = new_heads(lm, 2, ids, depth=2)
    for weight in heads.parameters():
        weight.data = torch.randn_like(weight).bfloat16().float()
    save_medusa(tmp_path / "medusa", heads, lm, OWN)
    again = load_drafter("medusa", lm, tmp_path / "medusa").net
    torch.testing.assert_close(heads(hidden[0, 0]), again(hidden[0, 0]))


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3"])
def test_a_target_of_another_family_gets_a_llama_head_that_trains_as_it_drafts(family, tmp_path):
    """Biases, and norms of queries and keys, are the target's alone: training, drafting and the file agree on that."""
    import transformers

    sizes = {"vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 7}
    sizes |= {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256}
    config = getattr(transformers, f"{family}Config")(**sizes)
    config.architectures = [f"{family}ForCausalLM"]
    torch.manual_seed(0)
    target = LanguageModel(Transformer(config).requires_grad_(False), None, frozenset(), None, "tiny")
    net = new_net(target, (2, 3, 4), torch.arange(VOCAB))
    for name, weight in net.named_parameters():
        if not name.startswith("embed"):
            weight.data = (weight.data + torch.randn_like(weight) * 0.1).bfloat16().float()
    save_eagle(tmp_path / "eagle", net, target, OWN)
    read = load_drafter("eagle", target, tmp_path / "eagle").net
    hidden, tokens = torch.randn(1, 6, 3, 48), torch.tensor([[1, 2, 3, 4, 5, 6]])
    with torch.no_grad():
        *_, state = unrolled(net, net.fuse(hidden), tokens, 1)
        drafted = read.step(read.fuse(hidden[:, :-1]), tokens[:, 1:], read.new_cache(1, 6))
    torch.testing.assert_close(state[:, :-1], drafted, rtol=1e-4, atol=1e-4)


def test_eagle_weights_have_their_published_names_and_shapes(lm, corpus, tmp_path, monkeypatch):
    from safetensors import safe_open

    monkeypatch.setattr("minispec.train.eagle.measured_cost", lambda lm: [1.0] * 33)
    train_eagle(lm, corpus, tmp_path / "states", tmp_path / "out", EAGLE | {"steps": 1})
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        d2t, t2d = file.get_tensor("d2t"), file.get_tensor("t2d")
    kv = lm.model.config.num_key_value_heads * 32
    wide = lm.model.config.intermediate_size
    assert shapes == {
        "fc.weight": [64, 192],
        "midlayer.input_layernorm.weight": [64],
        "midlayer.hidden_norm.weight": [64],
        "midlayer.self_attn.q_proj.weight": [64, 128],
        "midlayer.self_attn.k_proj.weight": [kv, 128],
        "midlayer.self_attn.v_proj.weight": [kv, 128],
        "midlayer.self_attn.o_proj.weight": [64, 64],
        "midlayer.post_attention_layernorm.weight": [64],
        "midlayer.mlp.gate_proj.weight": [wide, 64],
        "midlayer.mlp.up_proj.weight": [wide, 64],
        "midlayer.mlp.down_proj.weight": [64, wide],
        "norm.weight": [64],
        "lm_head.weight": [30, 64],
        "d2t": [30],
        "t2d": [VOCAB],
    }
    ids = torch.arange(30) + d2t
    assert d2t.dtype == torch.int64 and t2d.dtype == torch.bool
    assert t2d.nonzero()[:, 0].tolist() == ids.tolist()
    plan = load_drafter("eagle", lm, tmp_path / "out").tree
    assert isinstance(plan, DynamicTree) and len(plan.cost) == 33


def test_a_stopped_training_goes_on_to_the_same_weights(lm, corpus, tmp_path, monkeypatch):
    from safetensors.torch import load_file

    from minispec.train import fit

    monkeypatch.setattr("minispec.train.medusa.measured_cost", lambda lm: [1.0] * 33)
    monkeypatch.setattr(fit, "SAVE_S", -1)
    train_medusa(lm, corpus, tmp_path / "states", tmp_path / "whole", MEDUSA)
    original, calls = MedusaTrainer.forward, []

    def stop(self, examples):
        calls.append(1)
        if len(calls) == 17:
            raise KeyboardInterrupt
        return original(self, examples)

    monkeypatch.setattr(MedusaTrainer, "forward", stop)
    with pytest.raises(KeyboardInterrupt):
        train_medusa(lm, corpus, tmp_path / "states", tmp_path / "out", MEDUSA)
    assert not (tmp_path / "out").exists()
    log = next(tmp_path.glob(".out*/evaluations.jsonl"))
    log.write_text(2 * log.read_text())  # as if the state were older than the log
    train_medusa(lm, corpus, tmp_path / "states", tmp_path / "out", MEDUSA)
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "out"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    notes = [json.loads((tmp_path / name / "recipe.json").read_text())["evaluations"] for name in ("whole", "out")]
    assert [line["step"] for line in notes[0]] == [line["step"] for line in notes[1]]


def test_what_cannot_be_trained_is_named(lm, corpus, tmp_path):
    for change, message in (
        ({"unroll": 0}, "--unroll"),
        ({"drafted": 99}, "--vocabulary"),
        ({"layers": [1, 99]}, "--layers"),
        ({"eagle": 1, "train_head": True}, "EAGLE-1 .* leave --layers and --train-head out"),
        ({"eagle": 1, "layers": [1, 2, 3]}, "EAGLE-1 .* leave --layers and --train-head out"),
    ):
        with pytest.raises(ValueError, match=message):
            train_eagle(lm, corpus, tmp_path / "states", tmp_path / "out", EAGLE | change)
    with pytest.raises(ValueError, match="--heads and --depth"):
        train_medusa(lm, corpus, tmp_path / "states", tmp_path / "out", MEDUSA | {"heads": 0})
    with pytest.raises(ValueError, match="no held-out text"):
        hot = Corpus([Text(t.kind, t.prompt, t.answer, 0.8) for t in corpus.texts], "toy")
        train_medusa(lm, hot, tmp_path / "states", tmp_path / "out", MEDUSA)
    with pytest.raises(ValueError, match="holds no EAGLE head"):
        load_drafter("eagle", lm, tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_a_minute_on_the_shipped_text_is_visibly_better_than_the_start(target, kind, tmp_path):
    """The real target, forty of its texts, a few dozen updates: held-out acceptance must have moved."""
    corpus = Corpus.load(Path(__file__).parents[1] / "training" / "text.npz")
    texts = [text for text in corpus.texts if text.temperature == 0 and 40 < len(text.answer) < 120][:56]
    kept = kept_layers(target)
    states = States(target, texts, kept, tmp_path)
    learn, held = Examples(texts, states, range(44)), Examples(texts, states, range(44, 56))
    ids = frequent_ids(texts[:44], 1024, target.model.config.vocab_size)
    if kind == "medusa":
        trainer = MedusaTrainer(new_heads(target, 2, ids), target)
    else:
        net = new_net(target, kept[:-1], ids).requires_grad_(True)
        net.embed_tokens.requires_grad_(False)
        net.lm_head.requires_grad_(False)
        trainer = EagleTrainer(net, target, 2, kept)
    before = trainer.acceptance(held)[0]
    lengths = [len(text.prompt) + len(text.answer) for text in learn.texts[:44]]
    losses = fit(trainer, learn, lengths, tmp_path, steps=44, batch=2, lr=2e-3)
    assert sum(losses[-8:]) < 0.85 * sum(losses[:8])
    assert trainer.acceptance(held)[0] > before + 0.04
