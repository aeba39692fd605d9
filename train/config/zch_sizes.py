"""Another `zch_size` in a config's text."""

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import text_format

from emberline.train.config.protos import pipeline_pb2
from emberline.train.config.text import parse_text


def with_zch_sizes(text: str, sizes: Mapping[str, int]) -> str:
    """The config with other sizes of ZCH tables, without its comments.

    Args:
        text: of a config that can be read.
        sizes: by the feature that has the `zch`, as groups name it.
    """
    message, problems = parse_text(text, pipeline_pb2.Pipeline)
    assert not problems.messages, problems.messages
    for name, feature in _features(message):
        if name in sizes:
            feature.zch.zch_size = sizes[name]
    return text_format.MessageToString(message, as_utf8=True)


def _features(message: pipeline_pb2.Pipeline) -> Iterator[tuple[str, Any]]:
    for wrapper in message.feature_configs:
        found = getattr(wrapper, str(wrapper.WhichOneof("feature")))
        if wrapper.WhichOneof("feature") != "sequence_feature":
            yield found.feature_name, found
            continue
        for part in found.features:
            one = getattr(part, str(part.WhichOneof("feature")))
            yield f"{found.sequence_name}__{one.feature_name}", one
