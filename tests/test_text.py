import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minispec.text import TextStream, find_stop, tokens_until_stop


class Bytes:
    """A tokenizer whose tokens are single bytes, so that characters and stop strings always lie across tokens."""

    def decode(self, tokens, **options):
        return bytes(tokens).decode(errors="replace")


@settings(max_examples=200, deadline=None)
@given(st.text("abé😀", max_size=20), st.lists(st.text("abé😀", min_size=1, max_size=3), max_size=2), st.data())
def test_pieces_add_up_to_the_text_before_the_stop(text, stop, data):
    ids = list(text.encode())
    stream, out, start = TextStream(Bytes(), stop), "", 0
    while start < len(ids):
        size = data.draw(st.integers(1, 4))
        out += stream.push(ids[start : start + size])
        assert text.startswith(out), "what was shown can never be taken back"
        start += size
    out += stream.push([], last=True)
    at = find_stop(text, stop)
    assert out == (text if at < 0 else text[:at])


@pytest.mark.parametrize("pieces", [["b", "a", "a"], ["ba", "a"], ["baa"]])
def test_the_stop_string_completed_first_decides_however_the_text_arrives(pieces):
    stream = TextStream(Bytes(), ["a", "baa"])
    assert "".join(stream.push(piece.encode()) for piece in pieces) == "b"
    assert find_stop("xba", ["a", "ba"]) == 1, "two that end together: the longer one"


def test_half_a_character_is_held_back():
    stream, ids = TextStream(Bytes()), "é".encode()
    assert stream.push(ids[:1]) == "" and stream.push(ids[1:]) == "é"


def test_what_may_become_a_stop_string_is_held_back():
    stream = TextStream(Bytes(), ["END"])
    assert stream.push(b"the EN") == "the "
    assert stream.push(b"T") == "ENT"


@pytest.mark.parametrize(("new", "count"), [(b"ENDING", 3), (b"xxEND", 5), (b"xxEN", None)])
def test_tokens_end_with_the_one_that_completes_the_stop(new, count):
    assert tokens_until_stop(Bytes(), b"abc", new, ["END"]) == count


def test_a_stop_string_may_begin_in_an_earlier_block():
    assert tokens_until_stop(Bytes(), b"abE", b"NDx", ["END"]) == 2


def test_real_tokens_of_an_emoji(target):
    ids = target.tokenizer.encode("so 🦙 it goes", add_special_tokens=False)
    stream = TextStream(target.tokenizer)
    pieces = [stream.push([i]) for i in ids]
    assert "".join(pieces) + stream.push([], last=True) == "so 🦙 it goes"
    assert not any("\ufffd" in piece for piece in pieces)
