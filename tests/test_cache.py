import pytest
import torch

import minispec as ms


def logits_after(lm, tokens, cache, **kwargs):
    return lm.model(torch.tensor([tokens]), cache, **kwargs)[0]


def test_rewinding_is_setting_a_length():
    lm = ms.toy()
    cache = lm.model.new_cache(1, 10)
    logits_after(lm, [1, 2, 3, 4, 4, 4], cache)
    cache.lengths = [3]
    again = logits_after(lm, [0, 1], cache)
    fresh = logits_after(lm, [1, 2, 3, 0, 1], lm.model.new_cache(1, 10))
    assert torch.allclose(again, fresh[3:], atol=1e-12)


def test_keeping_a_path_equals_having_read_only_that_path():
    lm = ms.toy()
    cache = lm.model.new_cache(2, 12)
    lm.model(torch.tensor([[1, 2, 3], [3, 2, -1]]), cache)
    starts = cache.lengths
    tree = ms.TokenTree([[0, 4, 2, 3], [1, 1, -1, -1]], [[0, 0, 2, 3], [0, 1, -1, -1]])
    block = torch.cat((torch.tensor([[4], [0]]), tree.tokens), 1)
    lm.model(block, cache, torch.tensor(starts)[:, None] + tree.depths, tree.ancestors)
    cache.keep(starts, torch.tensor([[0, 2, 3], [0, 1, -1]]))
    assert cache.lengths == [6, 4]
    got = lm.model(torch.tensor([[2], [2]]), cache)
    for row, text in enumerate(([1, 2, 3, 4, 4, 2, 2], [3, 2, 0, 1, 2])):
        fresh = logits_after(lm, text, lm.model.new_cache(1, 12))[-1]
        assert torch.allclose(got[row, 0], fresh, atol=1e-12)


def test_rows_that_go_on_are_untouched_by_those_that_leave():
    lm = ms.toy()
    cache = lm.model.new_cache(3, 8)
    lm.model(torch.tensor([[1, 2, 3], [4, -1, -1], [3, 3, -1]]), cache)
    cache.keep_rows([1, 2])
    got = lm.model(torch.tensor([[2], [0]]), cache)
    assert torch.allclose(got[1, 0], logits_after(lm, [3, 3, 0], lm.model.new_cache(1, 8))[-1], atol=1e-12)


def test_a_row_that_does_not_fit_is_refused():
    lm = ms.toy()
    cache = lm.model.new_cache(1, 2)
    with pytest.raises(ValueError, match="room for 2 tokens a row, and a row needs 3"):
        logits_after(lm, [1, 2, 3], cache)
    assert cache.lengths == [0], "and nothing was changed"


def test_what_padding_wrote_is_never_read():
    lm = ms.toy()
    cache = lm.model.new_cache(1, 4)
    cache.keys[:, :, 2:], cache.values[:, :, 2:] = float("nan"), float("nan")
    logits_after(lm, [1, 2], cache)
    assert torch.isfinite(logits_after(lm, [3], cache)).all()


def test_size_in_bytes():
    lm = ms.toy()  # 2 layers, 2 key heads, head_dim 4, float64
    assert lm.model.new_cache(rows=3, capacity=9).nbytes == 2 * (2 * 3 * 2 * (9 + 1) * 4) * 8


def test_a_mask_may_speak_of_slots_that_were_filled_before():
    """Two branches read in two passes see the text and their own past alone, as if each had been read by itself."""
    lm = ms.toy(vocab_size=30, num_hidden_layers=2)
    text, branches = [1, 2, 3], ([4, 5], [6, 7])
    cache = lm.model.new_cache(2, 9)  # a row whose text is shorter by one, too
    lm.model(torch.tensor([text, [2, 3, -1]]), cache)
    starts = torch.tensor(cache.lengths)[:, None]
    one = torch.eye(2, dtype=torch.bool).expand(2, -1, -1)
    lm.model(torch.tensor([[4, 6]] * 2), cache, starts.expand(-1, 2), one)
    second = torch.tensor([[True, False, True, False], [False, True, False, True]]).expand(2, -1, -1)
    got = lm.model(torch.tensor([[5, 7]] * 2), cache, (starts + 1).expand(-1, 2), second)
    for row, before in enumerate((text, [2, 3])):
        for i, branch in enumerate(branches):
            alone = lm.model(torch.tensor([before + branch]), lm.model.new_cache(1, 9))
            torch.testing.assert_close(got[row, i], alone[0, -1])
