import random

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from emberline.encoding import Texts, hash_strings, hash_texts, xxh64


def _oracle(texts: list[bytes]) -> list[int]:
    return [xxhash.xxh64_intdigest(text) for text in texts]


@pytest.mark.parametrize(
    ("text", "digest"),
    [("", 0xEF46DB3751D8E999), ("a", 0xD24EC4F1A98C6E5B), ("abc", 0x44BC2CF5AD770999), ("ä", xxhash.xxh64_intdigest("ä".encode()))],
)
def test_known_digests(text: str, digest: int) -> None:
    assert hash_strings([text]).tolist() == [digest]
    assert hash_strings([text] * 50).tolist() == [digest] * 50


@given(st.lists(st.binary(max_size=100), max_size=60))
def test_any_bytes(texts: list[bytes]) -> None:
    assert hash_texts(Texts.from_bytes(texts)).tolist() == _oracle(texts)


@given(st.lists(st.text(max_size=40), max_size=60))
def test_any_text(texts: list[str]) -> None:
    assert hash_strings(texts).tolist() == _oracle([text.encode() for text in texts])


@pytest.mark.parametrize("size", [*range(70), 95, 96, 97, 127, 128, 129, 255, 256, 1000])
def test_each_size_alone_and_among_others(size: int) -> None:
    text = bytes(index * 37 % 256 for index in range(size))
    assert hash_texts(Texts.from_bytes([text])).tolist() == _oracle([text])
    many = [text] * 40 + [b"", b"x" * 31, b"y" * 64]
    assert hash_texts(Texts.from_bytes(many)).tolist() == _oracle(many)


def test_a_hundred_thousand_texts_of_all_sizes() -> None:
    source = random.Random(7)
    texts = [source.randbytes(source.choice((0, 1, 5, 8, 12, 20, 31, 32, 33, 64, 70))) for _ in range(100_000)]
    texts[500], texts[70_000] = source.randbytes(10_000), source.randbytes(333_333)
    assert hash_texts(Texts.from_bytes(texts)).tolist() == _oracle(texts)


def test_spans_may_overlap_and_lie_in_any_order() -> None:
    data = bytes(range(256)) * 2
    starts = np.array([300, 0, 5, 5, 100, 511, 512, 8] * 8, dtype=np.int64)
    ends = np.array([400, 3, 60, 5, 108, 512, 512, 12] * 8, dtype=np.int64)
    want = _oracle([data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
    assert xxh64(np.frombuffer(data, dtype=np.uint8), starts, ends).tolist() == want


def test_nothing_to_hash() -> None:
    assert hash_strings([]).shape == (0,)


def test_a_buffer_shorter_than_a_word() -> None:
    texts = [b"ab", b"", b"c", b"ab"] * 1
    tiny = Texts(np.frombuffer(b"abc", dtype=np.uint8), np.array([0, 0, 2] * 20), np.array([2, 0, 3] * 20))
    assert hash_texts(tiny).tolist() == _oracle(texts[:3]) * 20
