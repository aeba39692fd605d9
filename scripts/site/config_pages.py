"""The reference of the config, from the `.proto` files, the dataclasses that hold the defaults, and the list of refusals."""

import dataclasses
import importlib
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from emberline.train.config.data_config import DataConfig
from emberline.train.config.model_config import ModelConfig
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.config.read import CLASSES
from emberline.train.config.refusals import NO_EFFECT, REFUSED, REFUSED_VALUES, lookup, no_effect
from scripts.site.docstrings import entries, plain
from scripts.site.repository import ROOT

FILES: Mapping[str, str] = {
    "pipeline": "The whole config",
    "data": "Data",
    "feature": "Features",
    "embedding": "Tables",
    "group": "Groups",
    "encoder": "Sequence encoders",
    "model": "Models, losses, metrics",
    "module": "Layers",
    "optimizer": "Optimisers and schedules",
    "train": "Training, evaluation, export",
}
"""Each `.proto` file, and how its page is called."""

NAVIGATION: list[Any] = [{"Config": ["reference/config/index.md", *({title: f"reference/config/{name}.md"} for name, title in FILES.items())]}]

PROTOS = ROOT / "train" / "config" / "protos"
"""The folder of the `.proto` files."""
_TYPES: Mapping[int, str] = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_STRING: "text",
    FieldDescriptor.TYPE_DOUBLE: "number",
    FieldDescriptor.TYPE_FLOAT: "number",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}
_PACKAGE = "emberline.config"
_READ_BY_HAND: Mapping[str, type[Any]] = {"Data": DataConfig, "Model": ModelConfig, "Pipeline": PipelineConfig}
_SCALAR = r"-?\d[\d.]*(?:e-?\d+)?|true|false|[A-Z][A-Za-z0-9]+|sum|newest"


def pages() -> dict[str, str]:
    """Path of each page -> its text."""
    return {"reference/config/index.md": _index(), **{f"reference/config/{name}.md": _page(name) for name in FILES}}


def messages() -> Iterator[Descriptor]:
    """Every message, file by file, in the files' order."""
    for name in FILES:
        yield from _file(name).message_types_by_name.values()


def comments(path: Path) -> dict[str, str]:
    """`Message`, `Message.field`, `Enum` or `Enum.VALUE` -> the comment above it."""
    found, words, owner = {}, list[str](), ""
    for line in path.read_text(encoding="utf-8").split("\n"):
        text = line.strip()
        if text.startswith("//"):
            words.append(text.removeprefix("//").strip())
            continue
        opened = re.match(r"(message|enum) (\w+) \{", text)
        member = re.match(r"(?:optional|repeated|required)?\s*(?:map<.*>|[\w.]+)? ?(\w+) = \d+;|oneof (\w+) \{", text)
        if opened:
            owner = opened[2]
        key = owner if opened else f"{owner}.{member[1] or member[2]}" if member else ""
        if key and words:
            found[key] = " ".join(words)
        words = []
    return found


def default_of(message: Descriptor, field: FieldDescriptor) -> object:
    """What the dataclass takes where a config doesn't say: `dataclasses.MISSING` where it must, or where there is no such dataclass."""
    holder = CLASSES.get(message.name, _READ_BY_HAND.get(message.name))
    if holder is None or field.containing_oneof is not None:
        return dataclasses.MISSING
    return next((each.default for each in dataclasses.fields(holder) if each.name == field.name), dataclasses.MISSING)


def _file(name: str) -> FileDescriptor:
    module = importlib.import_module(f"emberline.train.config.protos.{name}_pb2")
    descriptor: FileDescriptor = module.DESCRIPTOR
    return descriptor


def _index() -> str:
    rows = [f"| [{title}]({name}.md) | {_head(name)} |" for name, title in FILES.items()]
    return (
        "# Config\n\nA config is protobuf text. Begin at [the whole config](pipeline.md). These pages are made from the `.proto` files in "
        "`train/config/protos/`, the dataclasses that a config is read into, which have the defaults, and the list of what is refused.\n\n"
        "*Refused* fields and values are errors that name them. Fields *without effect* may stand in a config; the log has a note for each.\n\n"
        "| page | what |\n|---|---|\n" + "\n".join(rows) + f"\n\n{_counted()}\n"
    )


def _counted() -> str:
    fields = sum(len(message.fields) for message in messages())
    values = sum(map(len, REFUSED_VALUES.values()))
    told = f"{fields} fields of {len(list(messages()))} messages; {len(REFUSED)} entries and {values} values are refused"
    return f"{told}, {len(NO_EFFECT)} have no effect."


def _head(name: str) -> str:
    return (PROTOS / f"{name}.proto").read_text(encoding="utf-8").partition("\n")[0].removeprefix("// ")


def _page(name: str) -> str:
    said = comments(PROTOS / f"{name}.proto")
    descriptor = _file(name)
    parts = [f"# {FILES[name]}\n\n{_head(name)}\n"]
    parts += [_message(message, said) for message in descriptor.message_types_by_name.values()]
    parts += [_enum(enum, said) for enum in descriptor.enum_types_by_name.values()]
    return "\n".join(parts)


def _message(message: Descriptor, said: Mapping[str, str]) -> str:
    rows = [_row(message, field, said) for field in message.fields]
    table = "| field | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) if rows else "It has no fields."
    refused = "*Every field that takes it is refused.*\n\n" if _is_refused(message) else ""
    return f"## {message.name}\n\n{plain(said.get(message.name, ''))}\n\n{refused}{table}\n"


def _is_refused(message: Descriptor) -> bool:
    """Whether nothing of a message can be said: each field that holds one is refused."""
    holders = [(parent.name, field.name) for parent in messages() for field in parent.fields if field.message_type == message]
    return bool(holders) and all(lookup(parent, name) is not None and not REFUSED[f"{parent}.{name}"].unless for parent, name in holders)


def _row(message: Descriptor, field: FieldDescriptor, said: Mapping[str, str]) -> str:
    holder = CLASSES.get(message.name, _READ_BY_HAND.get(message.name))
    comment = said.get(f"{message.name}.{field.name}") or _capital(entries(holder.__doc__ if holder else "").get(field.name, ""))
    told = split_default(comment)
    meaning = [plain(told.meaning), *_limits(message.name, field.name)]
    if field.containing_oneof is not None:
        meaning.append(f"One of `{field.containing_oneof.name}`.")
    default = told.default or ("required" if _is_required(message, field) else _shown(default_of(message, field)))
    cells = (f"`{field.name}`", _type(field), default, " ".join(filter(None, meaning)))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _is_required(message: Descriptor, field: FieldDescriptor) -> bool:
    fields = dataclasses.fields(CLASSES[message.name]) if message.name in CLASSES and field.containing_oneof is None else ()
    return any(each.name == field.name and each.default is each.default_factory is dataclasses.MISSING for each in fields)


@dataclasses.dataclass(frozen=True)
class Told:
    """A comment's text without the default that it ends with, and that default as the table shows it; empty where it tells none."""

    meaning: str
    default: str
    value: str


def split_default(comment: str) -> Told:
    """What a comment says a field is where a config doesn't set it: `Required`, `Default: 3.`, or a value behind a last colon."""
    if comment.startswith("Required"):
        return Told(_capital(comment.removeprefix("Required").lstrip(":. ")), "required", "")
    for pattern in (r"^(.*?) ?\bDefault: ([^.,;]+(?:\.\d+)?)\.$", rf"^(.*): ({_SCALAR})\.$"):
        found = re.match(pattern, comment)
        if found:
            meaning, value = found[1].strip(), found[2]
            shown = f"`{value}`" if re.fullmatch(_SCALAR, value) else plain(value)
            return Told(meaning if not meaning or meaning.endswith(".") else f"{meaning}.", shown, value)
    return Told(comment, "", "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _limits(message: str, name: str) -> Iterator[str]:
    """What is refused of a field, or why it has no effect."""
    refusal, reason = lookup(message, name), no_effect(message, name)
    if refusal is not None:
        kept = " or ".join(_shown(value) or "nothing" for value in refusal.unless)
        kept = f" but for {kept}" if kept else ""
        yield f"*Refused{kept}{plain(refusal.instead)}.*"
    if reason:
        yield f"*Without effect: {plain(reason)}.*"
    for value, instead in REFUSED_VALUES.get(f"{message}.{name}", {}).items():
        yield f"*`{value}` is refused{plain(instead)}.*"


def _type(field: FieldDescriptor) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return f"map of {_type(key)} to {_type(value)}"
    other = field.message_type or field.enum_type
    if other is None:
        kind = _TYPES[field.type]
    elif other.file.package == _PACKAGE:
        kind = f"[{other.name}]({_page_name(other.file)}.md#{other.name.lower()})"
    else:
        kind = other.full_name
    return f"list of {kind}" if field.is_repeated else kind


def _page_name(file: FileDescriptor) -> str:
    return Path(file.name).stem


def _shown(value: object) -> str:
    """A default as a config would say it; empty where it is none that a config can say."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Enum):
        return f"`{value.value}`" if value.value else ""
    if isinstance(value, int | float):
        return f"`{value}`"
    return f"`{ascii(value)[1:-1]}`" if isinstance(value, str) and value else ""


def _enum(enum: EnumDescriptor, said: Mapping[str, str]) -> str:
    rows = [f"| `{value.name}` | {plain(said.get(f'{enum.name}.{value.name}', ''))} |" for value in enum.values]
    return f"## {enum.name}\n\n{plain(said.get(enum.name, ''))}\n\n| value | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"
