from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from emberline.train.config import protos
from emberline.train.config.protos import feature_pb2, pipeline_pb2
from emberline.train.config.protos.generate import generate

HERE = Path(protos.__file__).parent


def test_the_committed_python_is_what_protoc_makes(tmp_path: Path, said: list[str]) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed: the generated code can't be compared")
    made = generate(tmp_path)
    for path in made:
        assert path.read_text() == (HERE / path.name).read_text(), f"{path.name} is old: python -m emberline.train.config.protos.generate"
    assert {path.name for path in made} == {path.name for path in HERE.glob("*_pb2.py*")}
    said.append(f"protos: {len(made)} generated files are as protoc makes them")


def test_every_field_knows_whether_it_is_set() -> None:
    todo, seen = [pipeline_pb2.Pipeline.DESCRIPTOR], set()
    while todo:
        message = todo.pop()
        if message.full_name in seen or not message.full_name.startswith("emberline."):
            continue
        seen.add(message.full_name)
        for field in message.fields:
            assert field.is_repeated or field.has_presence, field.full_name
            assert not field.has_default_value, f"{field.full_name}: defaults belong to the dataclass"
            assert field.type != FieldDescriptor.TYPE_FLOAT, f"{field.full_name}: double keeps what was written"
            todo += [field.message_type] if field.message_type is not None else []
    assert len(seen) > 80


def test_every_family_is_there_alone_and_in_sequences() -> None:
    alone = {field.name for field in feature_pb2.SequenceSubFeature.DESCRIPTOR.fields}
    assert len(alone) == 12
    assert {field.name for field in feature_pb2.Feature.DESCRIPTOR.fields} == alone | {f"sequence_{name}" for name in alone} | {"sequence_feature"}
