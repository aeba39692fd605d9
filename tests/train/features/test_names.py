import pytest

from emberline.train.features.names import name_problem, table_name_problem


@pytest.mark.parametrize("name", ["user_id", "a", "click_seq__item-id", "类目", "0", "A" * 200])
def test_plain_names_are_fine(name: str) -> None:
    assert name_problem(name) == ""
    assert table_name_problem(name) == ""


@pytest.mark.parametrize("name", ["a.b", "a@b", "a/b", "..", "a b", "a\n", "a:b", "a\x00", "a,b"])
def test_names_with_other_characters_are_refused(name: str) -> None:
    assert "may only have letters, digits" in name_problem(name)


def test_empty_and_long_names_are_refused() -> None:
    assert name_problem("") == "is missing"
    assert "longer than 200 bytes" in name_problem("a" * 201)
    assert "longer than 200 bytes" in name_problem("类" * 67)


@pytest.mark.parametrize("name", ["keys", "items", "training", "forward", "type", "_modules"])
def test_a_table_is_not_called_like_a_part_of_a_torch_module(name: str) -> None:
    assert "torch keeps for itself" in table_name_problem(name)
    assert name_problem(name) == ""
