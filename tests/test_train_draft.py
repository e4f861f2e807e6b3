"""Distillation: the right state predicts the right token, nothing is lost by a stop, and what is written is read back."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import minispec as ms
from minispec.checkpoints import export_draft, save_draft
from minispec.checkpoints.draft import load_own_draft
from minispec.train import fit as fitting
from minispec.train import teacher
from minispec.train.data import Text
from minispec.train.draft import (
    Distiller,
    NoCache,
    evaluate,
    frequent_ids,
    from_layers,
    from_scratch,
    train_draft,
)
from minispec.train.fit import begin_or_resume
from minispec.train.teacher import TOP, Labels

VOCAB = 40
RECIPE = {"width": 64, "depth": 1, "drafted": 30, "batch": 4, "lr": 1e-3, "seed": 5}


def toy():
    return ms.toy(vocab_size=VOCAB, dtype="float32", hidden_size=64, num_attention_heads=2, num_hidden_layers=3)


@pytest.fixture
def texts():
    chance = np.random.default_rng(0)
    lengths = [(5, 9), (1, 1), (3, 20), (8, 2), (2, 30), (4, 12), (6, 6), (2, 8)]
    return [Text("chat", *(chance.integers(0, VOCAB, n).astype(np.uint16) for n in pair), 0.0) for pair in lengths]


def test_labels_are_the_targets_next_token_probabilities(texts, tmp_path):
    lm = toy()
    labels = Labels(lm, texts, tmp_path)
    for i, text in enumerate(texts):
        ids, p = list(labels)[i]
        whole = torch.from_numpy(np.concatenate((text.prompt, text.answer)).astype(np.int64))
        for n in range(len(text.answer)):
            before = whole[: len(text.prompt) + n][None]
            fresh = lm.model(before, lm.model.new_cache(1, before.shape[1]))[0, -1].softmax(-1).topk(TOP)
            assert torch.allclose(p[n], fresh.values, atol=1e-3)
            assert ids[n, 0] == fresh.indices[0]


def test_labels_are_computed_once_and_a_stop_costs_only_the_rest(texts, tmp_path, monkeypatch):
    done, lm, many = [], toy(), texts * 10
    original = teacher.compute
    monkeypatch.setattr(teacher, "compute", lambda lm, group: done.append(len(group)) or original(lm, group))
    Labels(lm, many[:64], tmp_path)
    first, again = Labels(lm, many, tmp_path), Labels(lm, many, tmp_path)
    assert done == [64, 16] and len(list(tmp_path.iterdir())) == 2
    assert [[x.tolist() for x in pair] for pair in first] == [[x.tolist() for x in pair] for pair in again]


def test_without_a_cache_the_states_are_the_same():
    lm, ids = toy(), torch.tensor([[3, 1, 4, 1, 5, 9, 2, -1]])
    a = lm.model.states(ids, lm.model.new_cache(1, 8))[-1]
    b = lm.model.states(ids, NoCache())[-1]
    assert torch.allclose(a[:, :-1], b[:, :-1], atol=1e-5)


def test_a_copy_of_the_target_agrees_with_it_everywhere(texts, tmp_path):
    """Off by one position anywhere (state, label, answer's start) and this cannot hold."""
    lm = toy()
    copy = Distiller(from_layers(lm.model, [0, 1, 2]), torch.arange(VOCAB))
    labels = Labels(lm, texts, tmp_path)
    measured = evaluate(copy, list(zip(texts, labels, strict=True)))
    assert measured["held_out_agreement"] == 1.0
    p = torch.from_numpy(np.concatenate(labels.p).astype(np.float32))
    assert measured["held_out_loss"] == pytest.approx(-(p * p.log()).sum().item() / len(p), abs=1e-3)


def test_the_loss_does_not_depend_on_padding(texts, tmp_path):
    lm = toy()
    examples = list(zip(texts, Labels(lm, texts, tmp_path), strict=True))
    distiller = Distiller(from_layers(lm.model, [0, 2]), frequent_ids(texts, 30, VOCAB))
    short, long = examples[1], examples[4]
    apart = distiller([short]) * 1 + distiller([long]) * 30
    assert distiller([short, long]).item() == pytest.approx(apart.item() / 31, rel=1e-5)


def test_frequent_ids_are_the_frequent_ones(texts):
    counts = np.bincount(np.concatenate([np.concatenate((t.prompt, t.answer)) for t in texts]), minlength=VOCAB)
    kept = frequent_ids(texts, 10, VOCAB)
    assert kept.tolist() == sorted(kept.tolist()) and len(set(kept.tolist())) == 10
    assert counts[kept].min() >= np.delete(counts, kept).max()


def test_embeddings_from_scratch_are_a_projection_that_keeps_most():
    lm = toy()
    wide = ms.toy(vocab_size=200, dtype="float32", hidden_size=128, num_attention_heads=2)
    weight = wide.model.embed_tokens.weight
    weight[:, 64:] *= 0.1  # half of the axes hold nearly nothing
    weight.copy_(weight @ torch.linalg.qr(torch.randn(128, 128, generator=torch.Generator().manual_seed(0)))[0])
    half = from_scratch(wide.model, 64, 1, seed=0).embed_tokens.weight
    assert half.square().sum() > 0.98 * weight.square().sum()
    assert torch.allclose(half @ half.T, weight @ weight.T, atol=0.2 * float((weight @ weight.T).abs().max()))
    with pytest.raises(ValueError, match="--width must be a multiple of 64"):
        from_scratch(lm.model, 100, 1, seed=0)


@pytest.mark.parametrize("layers", [[0, 2], None])
def test_training_learns_and_what_is_written_is_read_back(layers, texts, tmp_path):
    lm = toy()
    before = lm.model.embed_tokens.weight.clone()
    recipe = {"layers": layers, "width": 64, "depth": 2, "drafted": 30, "batch": 4, "lr": 3e-3, "seed": 0}
    first = train_draft(lm, texts, texts, tmp_path / "draft", tmp_path / "labels", steps=1, **recipe)
    last = train_draft(lm, texts, texts, tmp_path / "draft", tmp_path / "labels", steps=60, **recipe)
    assert last["held_out_loss"] < first["held_out_loss"] - 0.1
    assert torch.equal(lm.model.embed_tokens.weight, before), "the target must not be trained"
    assert not list(tmp_path.glob(".draft*")), "nothing half done is left"
    drafter = load_own_draft(tmp_path / "draft", lm, {"num_tokens": 3})
    for part in ("embed_tokens", "lm_head"):
        mine, theirs = (getattr(model, part).weight for model in (drafter.small.model, lm.model))
        assert (mine is theirs) == bool(layers)
    kept = frequent_ids(texts, 30, VOCAB)
    assert torch.equal(drafter.vocabulary, kept)
    g = ms.generate(lm, torch.tensor([1, 2, 3]), drafter, max_new_tokens=30)
    assert torch.equal(g.tokens, ms.generate(lm, torch.tensor([1, 2, 3]), max_new_tokens=30).tokens)
    assert {token for r in g.trace.rounds for token in r.drafted} <= set(kept.tolist())
    own = sum(w.nbytes for n, w in drafter.small.model.named_parameters() if not (layers and n.startswith(("embed", "lm_"))))
    assert g.trace.extra_bytes == own + drafter.head.nbytes + drafter.cache.nbytes, "shared weights are not counted"
    batch = ms.generate_batch(
        lm, [torch.tensor([1, 2, 3]), torch.tensor([4, 2]), torch.tensor([5])], drafter, max_new_tokens=30
    )
    assert len({len(g.trace.rounds) for g in batch}) > 1, "rows leave one after another"
    caches = {g.trace.extra_bytes - own - drafter.head.nbytes for g in batch}
    assert len(caches) == 1 and caches.pop() > drafter.cache.nbytes, "of the whole batch, not of the rows left at its end"


def test_a_stopped_training_goes_on_to_the_same_weights(texts, tmp_path, monkeypatch):
    lm = toy()
    recipe = {"layers": [0], "width": 64, "depth": 1, "drafted": 30, "batch": 4, "lr": 1e-3, "seed": 5, "steps": 12}
    train_draft(lm, texts, texts, tmp_path / "whole", tmp_path / "labels", **recipe)
    monkeypatch.setattr(fitting, "SAVE_S", 0)
    forward, calls = Distiller.forward, []

    def stop(self, examples):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return forward(self, examples)

    monkeypatch.setattr(Distiller, "forward", stop)
    with pytest.raises(KeyboardInterrupt):
        train_draft(lm, texts, texts, tmp_path / "halves", tmp_path / "labels", **recipe)
    assert not (tmp_path / "halves").exists()
    with pytest.raises(ValueError, match="unfinished training with other settings"):
        train_draft(lm, texts, texts, tmp_path / "halves", tmp_path / "labels", **recipe | {"lr": 2e-3})
    train_draft(lm, texts, texts, tmp_path / "halves", tmp_path / "labels", **recipe)
    file = "model.safetensors"
    assert (tmp_path / "halves" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_an_exported_draft_model_is_opened_by_transformers(target, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = from_layers(target.model, [0, 29])
    save_draft(tmp_path / "own", model, torch.arange(100), target, shared=True)
    drafter = load_own_draft(tmp_path / "own", target, {})
    export_draft(drafter, target, tmp_path / "whole")
    peer = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.float32)
    ids = target.encode("Why is the sky blue?")[None]
    with torch.inference_mode():
        mine = drafter.small.model(ids, drafter.small.model.new_cache(1, 64))
        assert (mine - peer(ids).logits).abs().max() < 1e-4
    assert AutoTokenizer.from_pretrained(tmp_path / "whole").get_vocab() == target.tokenizer.get_vocab()
    assert (tmp_path / "whole" / "generation_config.json").exists()  # which ids end a text
    with pytest.raises(ValueError, match="is there already"):
        export_draft(drafter, target, tmp_path / "whole")
    again = ms.load_drafter("draft", target, tmp_path / "whole", num_tokens=2)  # any model with the same tokenizer
    assert again.num_tokens == 2 and again.vocabulary is None


def test_what_does_not_fit_is_refused(texts, tmp_path):
    lm, other, more = toy(), ms.toy(vocab_size=VOCAB, hidden_size=32), ms.toy(vocab_size=VOCAB + 1, hidden_size=64)
    save_draft(tmp_path / "own", from_layers(lm.model, [1]), torch.arange(5), lm, shared=True)
    with pytest.raises(ValueError, match="was trained for toy, not for toy"):
        ms.load_drafter("draft", other, tmp_path / "own")
    save_draft(tmp_path / "scratch", from_scratch(lm.model, 64, 1, 0), torch.arange(5), lm, shared=False)
    with pytest.raises(ValueError, match="was trained for toy, not for toy"):
        ms.load_drafter("draft", more, tmp_path / "scratch")
    (tmp_path / "notes").mkdir()
    with pytest.raises(ValueError, match="is there already and is not a trained drafter"):
        train_draft(lm, texts, [], tmp_path / "notes", tmp_path, layers=[0], **RECIPE | {"steps": 1})
    with pytest.raises(ValueError, match="was trained for smollm2-135m; name one for toy"):
        ms.load_drafter("draft", lm)
    with pytest.raises(ValueError, match="no drafter is loaded for the method 'medousa'"):
        ms.load_drafter("medousa", lm)
    with pytest.raises(ValueError, match="--layers must name layers of the target, 0 to 2"):
        from_layers(lm.model, [0, 3])
    with pytest.raises(ValueError, match="a batch takes 8 texts, but there are only 3"):
        fitting.Batches([1, 2, 3], 8, 1, 0)
    begin_or_resume(tmp_path / "work", {"seed": 1})
    assert json.loads((tmp_path / "work" / "recipe.json").read_text()) == {"seed": 1}


def test_batches_hold_similar_lengths_and_every_text_once_an_epoch():
    lengths = torch.randint(1, 300, (640,), generator=torch.Generator().manual_seed(0)).tolist()
    groups = list(fitting.Batches(lengths, 8, 80, seed=1))
    assert sorted(i for group in groups for i in group) == list(range(640))
    spread = [max(lengths[i] for i in group) - min(lengths[i] for i in group) for group in groups]
    assert sum(spread) / len(spread) < 15
    assert groups == list(fitting.Batches(lengths, 8, 80, seed=1)) != list(fitting.Batches(lengths, 8, 80, seed=2))


def test_a_loss_that_is_not_finite_is_named(tmp_path):
    class Bad(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(1))

        def forward(self, examples):
            return (self.w * float("nan")).sum()

    with pytest.raises(ValueError, match="not finite at step 1"):
        fitting.fit(Bad(), [0, 1], [1, 1], tmp_path, steps=3, batch=1, lr=1e-3)


def train_in_a_process(folder):
    from accelerate import PartialState

    texts = pickle.loads((folder / "texts.pkl").read_bytes())
    rank, seen, losses = PartialState(cpu=True).process_index, [], []
    forward, fit = Distiller.forward, fitting.fit
    note = lambda examples: seen.append([len(text.prompt) * 100 + len(text.answer) for text, _ in examples])
    Distiller.forward = lambda self, examples: note(examples) or forward(self, examples)
    fitting.fit = lambda *args, **options: losses.extend(done := fit(*args, **options)) or done
    train_draft(toy(), texts, texts, folder / "draft", folder / "labels", layers=[0], **RECIPE | {"batch": 2, "steps": 6})
    (folder / f"seen-{rank}.json").write_text(json.dumps(seen))
    (folder / f"losses-{rank}.json").write_text(json.dumps(losses))


def test_two_processes_share_the_work_and_write_one_draft_model(texts, tmp_path):
    # In a fresh interpreter: this one has already told Accelerate that it is alone.
    (tmp_path / "texts.pkl").write_bytes(pickle.dumps(texts))
    command = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_train_draft as t; from accelerate import debug_launcher; "
        "debug_launcher(t.train_in_a_process, (t.Path(sys.argv[2]),), num_processes=2)"
    )
    argv = [sys.executable, "-c", command, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [json.loads((tmp_path / f"losses-{rank}.json").read_text()) for rank in (0, 1)]
    seen = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in (0, 1)]
    assert losses[0] == losses[1] and len(losses[0]) == 6, "the mean over both"
    assert len(seen[0]) == 6 and all(a != b for a, b in zip(*seen, strict=True)), "each its own texts"
    assert load_own_draft(tmp_path / "draft", toy(), {}).num_tokens == 6
    assert {file.name for file in (tmp_path / "draft").iterdir()} == {"config.json", "model.safetensors", "recipe.json"}
