"""The training text: stored and resumed without loss, every kind in it, and none of the requests that we measure on."""

from pathlib import Path

import numpy as np
import pytest

import minispec as ms
from minispec.audit import read_requests
from minispec.train import data
from minispec.train.data import KINDS, LISTS, OWN, Corpus, Text, write_corpus

SHIPPED = Path(__file__).parent.parent / "training" / "text.npz"


def text(kind, prompt, answer, temperature):
    return Text(kind, np.array(prompt, np.uint16), np.array(answer, np.uint16), temperature)


def same(a, b):
    return [(t.kind, t.prompt.tolist(), t.answer.tolist(), round(t.temperature, 3)) for t in a.texts] == [
        (t.kind, t.prompt.tolist(), t.answer.tolist(), round(t.temperature, 3)) for t in b.texts
    ]


def test_a_corpus_is_stored_whole(tmp_path):
    corpus = Corpus(
        [text("chat", [1, 2], [3], 0.0), text("code edit", [9], [], 0.8), text("question", [49151], [5, 6], 0.8)]
    )
    corpus.save(tmp_path / "text.npz")
    assert same(Corpus.load(tmp_path / "text.npz"), corpus) and corpus.tokens == 3
    Corpus().save(tmp_path / "empty.npz")
    assert Corpus.load(tmp_path / "empty.npz").texts == []


def test_text_of_another_target_is_not_mixed_in(target, tmp_path):
    Corpus([text("chat", [1], [2], 0.0)], target="another").save(tmp_path / "text.npz")
    with pytest.raises(ValueError, match="holds answers of another, not of smollm2-135m"):
        write_corpus(target, tmp_path / "text.npz", tokens=2, batch=4, max_new_tokens=2, seed=0)
    with pytest.raises(ValueError, match="16 bits a token, and toy has 70000 ids"):
        write_corpus(ms.toy(vocab_size=70000), tmp_path / "new.npz", tokens=2, batch=4, max_new_tokens=2, seed=0)


def test_a_stop_while_saving_leaves_the_old_file(tmp_path, monkeypatch):
    old = Corpus([text("chat", [1], [2], 0.0)])
    old.save(tmp_path / "text.npz")

    def stop(file, **arrays):
        Path(file).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez_compressed", stop)
    with pytest.raises(KeyboardInterrupt):
        Corpus([text("chat", [7], [8], 0.0)]).save(tmp_path / "text.npz")
    monkeypatch.undo()
    assert same(Corpus.load(tmp_path / "text.npz"), old)


def test_another_file_is_refused(tmp_path):
    (tmp_path / "text.npz").write_bytes(b"not ours")
    with pytest.raises(ValueError, match="is not a file of training text"):
        Corpus.load(tmp_path / "text.npz")


def test_writing_goes_on_where_it_stopped(target, tmp_path):
    options = {"batch": 4, "max_new_tokens": 6, "seed": 0}
    short = write_corpus(target, tmp_path / "text.npz", tokens=20, **options)
    longer = write_corpus(target, tmp_path / "text.npz", tokens=60, **options)
    at_once = write_corpus(target, tmp_path / "again.npz", tokens=60, **options)
    assert len(short.texts) == 4 and same(longer, at_once)
    assert same(Corpus(longer.texts[:4]), short)


def test_later_prompts_are_mostly_the_targets_own(target, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "TEMPLATES", 0)
    options = {"tokens": 90, "batch": 4, "max_new_tokens": 4, "seed": 0}
    texts = write_corpus(target, tmp_path / "text.npz", **options).texts
    assert [text.kind == OWN for text in texts[:24]] == [False] * 16 + [True] * 8
    own = ["".join(target.tokenizer.decode(text.prompt)) for text in texts[16:24]]
    assert len(set(own)) == 8  # and they differ, also between the greedy batch and the other
    assert all(prompt.count("<|im_start|>user\n") == 1 and prompt.endswith("assistant\n") for prompt in own)
    assert data.own_prompts(target, 2, 7) == data.own_prompts(target, 2, 7) != data.own_prompts(target, 2, 8)


def test_the_shipped_text_holds_every_kind_and_none_of_the_requests(target):
    corpus = Corpus.load(SHIPPED)
    train, held = corpus.split()
    assert len(train) + len(held) == len(corpus.texts)
    for part in (train, held):
        assert {t.kind for t in part} == set(KINDS)
    assert SHIPPED.stat().st_size < 12e6
    prompts = "\n".join(target.tokenizer.batch_decode([t.prompt.tolist() for t in corpus.texts]))
    for request in read_requests():
        assert request["messages"][0]["content"] not in prompts, request["id"]


def test_templates_and_requests_share_no_task():
    asked = " ".join(request["messages"][0]["content"].lower() for request in read_requests())
    assert not [task for task in LISTS["tasks"] if task in asked]
