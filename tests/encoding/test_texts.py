import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.encoding.texts import Texts, compact, concatenate_texts, find_last, ranges, split_texts

ALPHABET = st.text(alphabet="ab,;ä|", max_size=8)


def _strings(texts: Texts) -> list[str]:
    return [texts.text(position) for position in range(len(texts))]


@given(st.lists(ALPHABET, max_size=20), st.sampled_from([",", ";", "ä", ",,", "a,", ",;,", "aa", ""]))
def test_split_does_what_str_split_does(strings: list[str], separator: str) -> None:
    want = [text.split(separator) if separator else [text] for text in strings]
    pieces, counts = split_texts(Texts.from_strings(strings), separator)
    assert counts.tolist() == [len(parts) for parts in want]
    assert _strings(pieces) == [piece for parts in want for piece in parts]


@given(st.lists(ALPHABET, min_size=1, max_size=20), st.data())
def test_split_of_texts_in_any_order_and_of_some_only(strings: list[str], data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, len(strings) - 1), max_size=20))
    splittable = data.draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
    texts = Texts.from_strings(strings).take(np.array(order, dtype=np.int64))
    pieces, counts = split_texts(texts, ",", np.array(splittable, dtype=np.bool_))
    want = [strings[index].split(",") if split else [strings[index]] for index, split in zip(order, splittable, strict=True)]
    assert counts.tolist() == [len(parts) for parts in want]
    assert _strings(pieces) == [piece for parts in want for piece in parts]


@given(st.lists(st.text(alphabet="a:ä", max_size=6), max_size=12))
def test_the_last_mark_of_each_text(strings: list[str]) -> None:
    texts, at = find_last(Texts.from_strings(strings), ":")
    want = [text.encode().rfind(b":") for text in strings]
    assert [place - start if place >= 0 else -1 for place, start in zip(at.tolist(), texts.starts.tolist(), strict=True)] == want


def test_compact_and_concatenate_keep_the_texts() -> None:
    texts = Texts.from_strings(["one", "", "zwölf"]).take(np.array([2, 0, 1, 2]))
    assert _strings(compact(texts)) == ["zwölf", "one", "", "zwölf"]
    assert _strings(concatenate_texts([texts, Texts.from_strings(["x"]), texts])) == ["zwölf", "one", "", "zwölf", "x", "zwölf", "one", "", "zwölf"]


def test_ranges_are_laid_end_to_end() -> None:
    assert ranges(np.array([5, 0, 7]), np.array([2, 0, 3])).tolist() == [5, 6, 7, 8, 9]


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        Texts.from_strings(["\ud800"])
