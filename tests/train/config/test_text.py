import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from emberline.train.config.protos import pipeline_pb2
from emberline.train.config.text import parse_text


def problems(text: str) -> list[str]:
    return parse_text(text, pipeline_pb2.Pipeline)[1].messages


GOOD = """
# a comment { that ends with the line
train_input_path: "a" 'b'  ; eval_input_path: "x # no comment",
feature_configs < id_feature { feature_name: "q\\"uote" vocab_list: ["a", 'b'], vocab_dict { key: "w" value: 0x10 } } >
feature_configs [{ raw_feature: { feature_name: "r" boundaries: [-1.5e3, -inf, 2f, .5] trainable: false pooling: "sum" } }, {}]
model_config { feature_groups { group_type: WIDE } feature_groups { group_type: DEEP } custom_model { kwargs { int_value: -9223372036854775808 } } }
"""


def test_right_text_is_what_protobuf_makes_of_it() -> None:
    message, found = parse_text(GOOD, pipeline_pb2.Pipeline)
    assert found.messages == []
    assert message == text_format.Parse(GOOD, pipeline_pb2.Pipeline())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('model_dur: "x"', "line 1 column 1: the config: unknown field 'model_dur'; did you mean 'model_dir'?"),
        ("data_config {\n  batch_sise: 3\n}", "line 2 column 3: data_config: unknown field 'batch_sise'; did you mean 'batch_size'?"),
        ("data_config { batch_size: 1.5 }", "line 1 column 27: batch_size must be a whole number from 0 to 4294967295, found 1.5"),
        ("data_config { batch_size: -1 }", "batch_size must be a whole number from 0 to 4294967295, found -1"),
        ("data_config { batch_size: 4294967296 }", "batch_size must be a whole number from 0 to 4294967295, found 4294967296"),
        ('data_config { batch_size: "3" }', 'batch_size must be a whole number from 0 to 4294967295, found "3"'),
        ("data_config { shuffle: maybe }", "shuffle must be true or false, found maybe"),
        ("data_config { delimiter: x }", "delimiter must be a text in quotes, found x"),
        ("data_config { fg_mode: FG_NON }", "fg_mode must be one of FG_NONE, FG_NORMAL, FG_DAG, FG_BUCKETIZE, found FG_NON"),
        ("train_config { dense_optimizer { sgd_optimizer { lr: fast } } }", "lr must be a number, found fast"),
        ("data_config { batch_size: 1 batch_size: 2 }", "batch_size is given twice"),
        ("data_config { } data_config { }", "data_config is given twice"),
        ("data_config { batch_size: [1] }", "batch_size takes one value, not a list"),
        ("feature_configs { id_feature {} raw_feature {} }", "raw_feature and id_feature exclude each other"),
        ("data_config { batch_size 3 }", "expected ':' after batch_size, found '3'"),
        ("data_config 3", "expected '{' after data_config, found '3'"),
        ("data_config {", "expected '}' that closes data_config, found the end of the text"),
        ("data_config { >", "expected '}' that closes data_config, found '>'"),
        ("data_config { label_fields: [1 }", "expected ',' or ']' in the list of label_fields, found '}'"),
        ("}", "expected a field, found '}'"),
        ('model_dir: "x', "line 1 column 12: this text has no end on its line"),
        ('model_dir: "x\ny"', "line 1 column 12: this text has no end on its line"),
        ("model_dir：x", "line 1 column 10: unexpected '：'"),
        ("[extension] { }", "expected a field of the config, found '['"),
        ("model_dir: ", "expected a value for model_dir, found the end of the text"),
        ('model_dir: "\\xff"', "line 1"),
        ("data_config: { whatever { a: [1, { b: 2 }] } }", "data_config: unknown field 'whatever'"),
        ("whatever { a: 1", "expected '}', found the end of the text"),
        ("whatever { a: 1 ]", "expected '}', found ']'"),
        ("whatever: ", "expected a value, found the end of the text"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, expected: str) -> None:
    assert any(expected in message for message in problems(text)), problems(text)


def test_all_mistakes_are_found_and_the_rest_is_read() -> None:
    text = 'model_dur: "x"\nmodel_dir: "m"\ndata_config { batch_size: x batch_siz { a: "}" } eval_batch_size: 7 }\ntrain_input_path: 5'
    message, found = parse_text(text, pipeline_pb2.Pipeline)
    assert [line.split(":")[0] for line in found.messages] == ["line 1 column 1", "line 3 column 27", "line 3 column 29", "line 4 column 19"]
    assert (message.model_dir, message.data_config.eval_batch_size) == ("m", 7)
    assert found.damaged == {(), ("data_config", 0)}
    assert found.covers(("data_config", 0))
    assert not found.covers(("train_config", 0))


def test_texts_that_lie_deep_in_each_other_are_refused() -> None:
    inner = "value { struct_value { fields { "
    text = 'feature_configs { custom_feature { operator_params { fields { key: "k" ' + inner * 2000
    assert any("too deep" in message for message in problems(text))


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    message, found = parse_text(text, pipeline_pb2.Pipeline)
    if not found.messages:
        assert message == text_format.Parse(text, pipeline_pb2.Pipeline())


PIECES = st.sampled_from(
    [
        "data_config",
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "batch_size",
        "3",
        "-",
        '"a"',
        "model_dir",
        "id_feature",
        "feature_configs",
        "DEEP",
        "\n",
        "<",
        ">",
        "1.5",
        "x",
    ]
)


@given(st.lists(PIECES, max_size=20))
def test_any_tokens_are_read_or_refused_as_protobuf_does(pieces: list[str]) -> None:
    text = " ".join(pieces)
    message, found = parse_text(text, pipeline_pb2.Pipeline)
    try:
        expected = text_format.Parse(text, pipeline_pb2.Pipeline())
    except text_format.ParseError:
        assert found.messages
    else:
        assert found.messages == []
        assert message == expected
