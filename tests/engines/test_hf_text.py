"""Stop strings and text that grows token by token."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_areal_eval.engines.hf_server.generation import Finish, Generation, Sampling
from pytest_areal_eval.engines.hf_server.text import Found, TextStream, first_stop, held_back

LETTERS = "abcdefgh"


def letters(ids: list[int], skip: bool) -> str:
    """Token i is the letter i."""
    return "".join(LETTERS[i] for i in ids)


def bytewise(ids: list[int], skip: bool) -> str:
    """Token i is the byte i."""
    return bytes(ids).decode(errors="replace")


def generation(**settings: object) -> Generation:
    return Generation("r", [0], Sampling(max_new_tokens=8, **settings), TextStream(letters))  # type: ignore[arg-type]


def feed(g: Generation, tokens: str) -> str:
    """Accept letters until it finishes; the ones that it took."""
    for letter in tokens:
        if g.finish:
            break
        g.accept(LETTERS.index(letter), None)
    return letters(g.output, False)


def test_the_stop_string_that_begins_first_wins() -> None:
    assert first_stop("abcabd", ["bd", "ca", "zz"]) == Found(2, "ca")
    assert first_stop("abc", ["x"]) is None


def test_a_stop_string_over_several_tokens_ends_the_text_before_it() -> None:
    g = generation(stop=("de",))
    assert feed(g, "abcdefgh") == "abcde"
    assert g.finish == Finish("stop", "de")
    assert g.answer() == "abc"


def test_a_stop_token_is_kept_in_the_ids_and_left_out_of_the_text() -> None:
    g = generation(stop_ids=frozenset({3}))
    assert feed(g, "abcdefgh") == "abcd"
    assert (g.finish, g.answer()) == (Finish("stop", 3), "abc")


def test_a_stop_token_at_the_limit_is_a_stop() -> None:
    g = generation(stop_ids=frozenset({7}))
    feed(g, "abcdefgh")
    assert g.finish == Finish("stop", 7)


def test_the_limit_ends_with_length() -> None:
    g = generation()
    assert feed(g, "aaaaaaaaaaaa") == "aaaaaaaa"
    assert (g.finish, g.answer()) == (Finish("length"), "aaaaaaaa")


def test_no_stop_string_counts_before_the_least_number_of_tokens() -> None:
    g = generation(stop=("b",), min_new_tokens=3)
    assert feed(g, "abcdefgh") == "abc"


@pytest.mark.parametrize(("text", "held"), [("abc", 0), ("ab#", 1), ("ab##", 2), ("ab## ", 0), ("#a", 0)])
def test_a_possible_beginning_of_a_stop_string_is_held_back(text: str, held: int) -> None:
    assert held_back(text, ["###", "## no"]) == (3 if text == "ab## " else held)


@given(st.text(max_size=30))
def test_pieces_of_a_stream_add_up_to_the_text(text: str) -> None:
    stream = TextStream(bytewise)
    pieces = [stream.push(byte) for byte in text.encode()]
    # A replacement character in the text itself looks incomplete, and stays held back to the end.
    assert text.startswith("".join(pieces))
    if "�" not in text:
        assert "".join(pieces) == stream.text == text


def test_a_real_tokenizer_streams_what_it_decodes() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = Path(__file__).parents[2] / "models/tiny-math/tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    text = "12 * 7 = 84. Ünï→ 😀 done\n#### 12"
    stream = TextStream(lambda ids, skip: tokenizer.decode(ids, skip_special_tokens=skip))
    for token in tokenizer.encode(text, add_special_tokens=False).ids:
        stream.push(token)
    assert stream.text == text
