"""Everything that can be wrong with features, groups and tables: each refused by name, and all of it at once from one bad config."""

from dataclasses import dataclass

import pytest

from emberline.errors import ConfigError
from emberline.train.config import parse_config

NEGATIVES = 'data_config { label_fields: "y" fg_mode: FG_NORMAL negative_columns { num_negatives: 2 columns { key: "item" value: "others" } } }'
CHARACTERS = "may only have letters, digits, '_' and '-'; dots, '@', slashes and blanks have meanings of their own"
POOL = "sequence_encoders { pooling_encoder {} }"


@dataclass(frozen=True)
class Case:
    """Config text and the sentences that it must lead to; `$` stands for the case's own prefix, so that cases can be put together."""

    text: str
    messages: tuple[str, ...]


def ids(name: str, more: str = "num_buckets: 10", dim: int = 4) -> str:
    return f'feature_configs {{ id_feature {{ feature_name: "${name}" expression: "user:{name}" embedding_dim: {dim} {more} }} }} '


def item(name: str, more: str = "num_buckets: 10") -> str:
    return f'feature_configs {{ id_feature {{ feature_name: "${name}" expression: "item:item" embedding_dim: 4 {more} }} }} '


def number(name: str, more: str = "") -> str:
    return f'feature_configs {{ raw_feature {{ feature_name: "${name}" expression: "user:{name}" {more} }} }} '


def steps(name: str, more: str = "num_buckets: 10", dim: int = 4) -> str:
    return f'feature_configs {{ sequence_id_feature {{ feature_name: "${name}" expression: "user:{name}" embedding_dim: {dim} {more} }} }} '


def numbers(name: str) -> str:
    return f'feature_configs {{ sequence_raw_feature {{ feature_name: "${name}" expression: "user:{name}" }} }} '


def group(name: str, *features: str, kind: str = "DEEP", more: str = "") -> str:
    names = "".join(f' feature_names: "${feature}"' for feature in features)
    return f'feature_groups {{ group_name: "${name}" group_type: {kind}{names} {more} }} '


def nested(name: str, *features: str, more: str = "") -> str:
    names = "".join(f' feature_names: "${feature}"' for feature in features)
    return f'sequence_groups {{ group_name: "{name}"{names} {more} }} '.replace('group_name: ""', "")


def pool(name: str) -> str:
    return f'sequence_encoders {{ pooling_encoder {{ input: "{name}" }} }} '


def shared(first: str, second: str, words: str, *, dims: tuple[int, int] = (4, 4)) -> Case:
    """Two features of one table, read in two groups."""
    text = ids("a", f"embedding_name: '$t' {first}", dims[0]) + ids("b", f"embedding_name: '$t' {second}", dims[1])
    told = f"feature_groups '$two': feature '$b' and feature '$a' of feature_groups '$one' can't share the table '$t': they differ in {words}"
    return Case(text + group("one", "a") + group("two", "b"), (told,))


def shared_steps(first: str, second: str, words: str, *, dims: tuple[int, int] = (4, 4)) -> Case:
    """The same, where each step keeps its vector: in a SEQUENCE group and in one nested in a DEEP group."""
    text = steps("a", f"embedding_name: '$t' {first}", dims[0]) + steps("b", f"embedding_name: '$t' {second}", dims[1])
    told = (
        "feature_groups '$two': sequence_groups '$two': feature '$b' and feature '$a' of feature_groups '$one' can't share the table '$t': "
        f"they differ in {words}"
    )
    return Case(text + group("one", "a", kind="SEQUENCE") + group("two", more=nested("", "b") + POOL), (told,))


def wrong_feature(text: str, *messages: str) -> Case:
    return Case(text + group("g", "a"), tuple(f"feature '$a': {message}" for message in messages))


def wrong_group(text: str, *messages: str) -> Case:
    return Case(text, tuple(f"feature_groups '$g': {message}" for message in messages))


ROWS = "num_buckets: 10"
ZCH = "zch {{ zch_size: {} eviction_interval: {} {} }}".format
DIN = 'din_encoder { attn_mlp { hidden_units: 4 } input: "$g" }'
CASES = {
    # groups and encoders
    "sequence groups without encoders": wrong_group(
        steps("s") + group("g", more=nested("", "s")), "has sequence_groups, but no sequence_encoders; add one for each"
    ),
    "encoders without sequence groups": wrong_group(
        ids("a") + group("g", "a", more=POOL), "has sequence_encoders, but no sequence_groups; add the group that they read"
    ),
    "a nameless one of several sequence groups": wrong_group(
        steps("s") + group("g", more=nested("$i", "s") + nested("", "s") + pool("$i")),
        "sequence_groups[1]: group_name is missing: with several sequence groups, each needs one",
    ),
    "sequence groups of one name": wrong_group(
        steps("s") + group("g", more=nested("$i", "s") + POOL) + group("h", more=nested("$i", "s") + POOL),
        "sequence_groups '$i': 2 sequence groups have this name; give each a name of its own",
    ),
    "the name of another group": wrong_group(
        steps("s") + group("g", more=nested("$h", "s") + POOL) + group("h", "s", kind="SEQUENCE"),
        "sequence_groups '$h': a feature group has this name; choose another",
    ),
    "groups of one name": wrong_group(ids("a") + group("g", "a") + group("g", "a"), "2 groups have this name; give each a name of its own"),
    "an encoder without input": wrong_group(
        steps("s") + group("g", more=nested("$i", "s") + nested("$j", "s") + pool("$i") + pool("$j") + POOL),
        "sequence_encoders[2]: pooling_encoder: input is missing: with several sequence groups, it must name one: $i, $j",
    ),
    "an unknown input": wrong_group(
        steps("s") + group("g", more=nested("$click", "s") + pool("$click") + pool("$clik")),
        "sequence_encoders[1]: pooling_encoder: input: unknown sequence group '$clik'; did you mean '$click'?",
    ),
    "a sequence group that is nobody's input": wrong_group(
        steps("s") + group("g", more=nested("$i", "s") + nested("$j", "s") + pool("$i")),
        "sequence_groups '$j' is the input of no encoder; add one, or take the group out",
    ),
    **{
        f"encoders in a {kind} group": wrong_group(
            ids("a") + steps("s") + group("g", "a", kind=kind, more=nested("", "s") + POOL),
            f"sequence_groups need a DEEP group, and this one is {kind}",
            f"sequence_encoders need a DEEP group, and this one is {kind}",
        )
        for kind in ("WIDE", "SEQUENCE", "JAGGED_SEQUENCE")
    },
    "an empty encoder": wrong_group(
        steps("s") + group("g", more=nested("", "s") + POOL + " sequence_encoders {}"),
        "sequence_encoders: it is empty; set one of din_encoder, simple_attention, pooling_encoder, self_attention_encoder, "
        "multi_window_din_encoder, lstm, gru, transformer, pooling, attention",
    ),
    "a query that is too wide": wrong_group(
        ids("a", dim=8) + steps("s") + group("g", more=nested("", "a", "s") + f"sequence_encoders {{ {DIN} }}"),
        "sequence_encoders[0]: din_encoder on '$g': the query is wider (8) than a step of the sequence (4); give them the same features",
    ),
    "no query to attend with": wrong_group(
        steps("s") + group("g", more=nested("", "s") + "sequence_encoders { simple_attention {} }"),
        "sequence_encoders[0]: simple_attention on '$g': needs a query, and its input has sequence features only; "
        "add the features to compare the sequence with",
    ),
    "heads that do not divide": wrong_group(
        steps("s") + group("g", more=nested("", "s") + "sequence_encoders { self_attention_encoder { multihead_attn_dim: 6 num_heads: 4 } }"),
        "sequence_encoders[0]: self_attention_encoder on '$g': multihead_attn_dim 6 is no multiple of num_heads 4",
    ),
    "a pooling of steps that there is not": wrong_group(
        steps("s") + group("g", more=nested("", "s") + "sequence_encoders { pooling_encoder { pooling_type: 'max' } }"),
        "sequence_encoders[0]: pooling_encoder on '$g': pooling_type must be one of mean, sum, found 'max'",
    ),
    # members
    "no features": wrong_group(group("g"), "has no features; list them in feature_names"),
    "no features in a sequence group": wrong_group(
        group("g", more=nested("") + POOL), "sequence_groups '$g': has no features; list them in feature_names"
    ),
    "an unknown feature": wrong_group(ids("abcdef") + group("g", "abcdeg"), "unknown feature '$abcdeg'; did you mean '$abcdef'?"),
    "a feature twice in a group": wrong_group(ids("a") + group("g", "a", "a"), "feature '$a' is listed 2 times; list it once"),
    "a feature twice in a sequence group": wrong_group(
        steps("s") + group("g", more=nested("", "s", "s") + POOL), "sequence_groups '$g': feature '$s' is listed 2 times; list it once"
    ),
    "numbers in a wide group": wrong_group(
        number("x") + group("g", "x", kind="WIDE"),
        "feature '$x' is a number, and a WIDE group has only ids; give it boundaries, or take it out",
    ),
    "numbers of steps in a deep group": wrong_group(
        numbers("n") + group("g", "n"),
        "feature '$n' is a sequence of numbers, and a DEEP group has one vector a row; put it into a SEQUENCE group, or into sequence_groups "
        "of a DEEP group, with an encoder such as pooling_encoder {}",
    ),
    "data groups in one group": wrong_group(
        ids("a") + item("b") + group("g", "a", "b"),
        "has features of several data groups, which have different numbers of rows: $a (__BASE__) and $b (__NEG__); put them into groups of "
        "their own",
    ),
    "data groups inside and outside": wrong_group(
        item("b") + steps("s") + group("g", "b", more=nested("", "s") + POOL),
        "has features of several data groups, which have different numbers of rows: $b (__NEG__) and $s (__BASE__); put them into groups of "
        "their own",
    ),
    # names
    "a dot in a group's name": Case(ids("a") + group("g.query", "a"), (f"feature_groups '$g.query': group_name '$g.query' {CHARACTERS}",)),
    "a dot in a sequence group's name": wrong_group(
        steps("s") + group("g", more=nested("$i.j", "s") + POOL), f"sequence_groups '$i.j': group_name '$i.j' {CHARACTERS}"
    ),
    "a dot in a suffix": wrong_group(ids("a") + group("g", "a", more='embedding_name_suffix: "$p.q"'), f"embedding_name_suffix '$p.q' {CHARACTERS}"),
    "an at sign in a feature's name": Case(ids("a@b") + group("g", "a@b"), (f"feature '$a@b': feature_name '$a@b' {CHARACTERS}",)),
    "a dot in a table's name": wrong_feature(ids("a", f"{ROWS} embedding_name: '$t.u'"), f"embedding_name '$t.u' {CHARACTERS}"),
    "a dot in a sequence's name": Case(
        'feature_configs { sequence_feature { sequence_name: "$s.t" features { id_feature { feature_name: "i" expression: "item:i" '
        "embedding_dim: 4 num_buckets: 3 } } } }",
        (f"sequence '$s.t': sequence_name '$s.t' {CHARACTERS}", f"feature '$s.t__i': feature_name '$s.t__i' {CHARACTERS}"),
    ),
    "features of one name": wrong_feature(ids("a") + number("a"), "2 features have this name; give each a name of its own"),
    "tables that a suffix mixes up": Case(
        ids("a") + ids("b", f"{ROWS} embedding_name: '$a_emb_x'") + group("one", "a", more='embedding_name_suffix: "x"') + group("two", "b"),
        (
            "feature_groups '$two': feature '$b' and feature '$a' of feature_groups '$one' come to one table '$a_emb_x' by different "
            "embedding_name_suffix values or names; change embedding_name or embedding_name_suffix",
        ),
    ),
    # tables that are shared
    "rows": shared(ROWS, "num_buckets: 11", "rows (11 and 10)"),
    "dims": shared(ROWS, ROWS, "embedding_dim (8 and 4)", dims=(4, 8)),
    "poolings": shared(ROWS, f"{ROWS} pooling: 'mean'", "pooling (mean and sum)"),
    "inits": shared(ROWS, f"{ROWS} init_fn: 'nn.init.zeros_'", "init_fn (nn.init.zeros_ and unset)"),
    "types": shared(ROWS, f"{ROWS} data_type: 'FP16'", "data_type (fp16 and fp32)"),
    "trainable": shared(ROWS, f"{ROWS} trainable: false", "trainable (False and True)"),
    "zch beside none": shared(
        ROWS,
        ZCH(10, 5, "lfu {}"),
        "zch (True and False), zch kind (mch and None), zch policy (lfu and None), zch eviction_interval (5 and None), zch routing (mixed and None)",
    ),
    "zch sizes": shared(ZCH(10, 5, "lfu {}"), ZCH(11, 5, "lfu {}"), "rows (11 and 10)"),
    "zch policies": shared(ZCH(10, 5, "lfu {}"), ZCH(10, 5, "lru {}"), "zch policy (lru decay_exponent 1 and lfu)"),
    "zch intervals": shared(ZCH(10, 5, "lfu {}"), ZCH(10, 6, "lfu {}"), "zch eviction_interval (6 and 5)"),
    "zch filters": shared(
        ZCH(10, 5, "lfu {}"),
        ZCH(10, 5, "lfu {} threshold_filtering_func: 'average_threshold_filter'"),
        "zch threshold_filtering_func (average_threshold_filter and None)",
    ),
    "two dims under one name in sequences": shared_steps(ROWS, ROWS, "embedding_dim (8 and 4)", dims=(4, 8)),
    "types in sequences": shared_steps(ROWS, f"{ROWS} data_type: 'FP16'", "data_type (fp16 and fp32)"),
    "trainable in sequences": shared_steps(f"{ROWS} trainable: false", ROWS, "trainable (True and False)"),
    # features
    "no rows": wrong_feature(
        ids("a", ""), "has no source of rows; set one of zch, dynamicemb, hash_bucket_size, num_buckets, vocab_list, vocab_dict, vocab_file"
    ),
    "num_buckets beside vocab_list": wrong_feature(
        ids("a", f"{ROWS} vocab_list: ['x', 'y']"), "has 2 sources of rows, num_buckets and vocab_list; keep one"
    ),
    "zch beside num_buckets": wrong_feature(ids("a", f"{ROWS} {ZCH(10, 5, 'lfu {}')}"), "has 2 sources of rows, zch and num_buckets; keep one"),
    "zch without a policy": wrong_feature(ids("a", ZCH(10, 5, "")), "zch: no eviction policy is set; add lfu {}, lru {} or distance_lfu {}"),
    "no width": wrong_feature(ids("a", dim=0), "embedding_dim must be set, to 1 or more: the width of its table"),
    "a pooling that there is not": wrong_feature(ids("a", f"{ROWS} pooling: 'max'"), "pooling: must be sum or mean, found 'max'"),
    "a type that there is not": wrong_feature(ids("a", f"{ROWS} data_type: 'FP8'"), "unknown data_type 'FP8'; known: FP32, FP16, BF16"),
    "boundaries beside mlp": wrong_feature(
        number("a", "boundaries: [1, 2] embedding_dim: 4 mlp {}"), "boundaries and mlp exclude each other: buckets of numbers have a table already"
    ),
    "autodis of two numbers": wrong_feature(
        number("a", "value_dim: 2 embedding_dim: 4 autodis { num_channels: 3 }"), "autodis: value_dim must be 1, found 2; use mlp for vectors"
    ),
}


def problems(text: str) -> list[str]:
    try:
        parse_config(NEGATIVES + "\n" + text)
    except ConfigError as error:
        return list(error.problems)
    return []


@pytest.mark.parametrize("what", CASES)
def test_each_mistake_is_told_by_name_and_nothing_else(what: str) -> None:
    case = CASES[what]
    assert problems(case.text.replace("$", "p_")) == [message.replace("$", "p_") for message in case.messages]


def test_all_mistakes_are_told_at_once() -> None:
    text = "\n".join(case.text.replace("$", f"p{number}_") for number, case in enumerate(CASES.values()))
    expected = [message.replace("$", f"p{number}_") for number, case in enumerate(CASES.values()) for message in case.messages]
    assert sorted(problems(text)) == sorted(expected)
