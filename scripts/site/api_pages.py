"""The reference of what is stable in Python, from docstrings and signatures."""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import emberline.errors
from scripts.site.docstrings import as_markdown

STABLE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Training": (
        "emberline.train",
        ("load_config", "create_features", "EmbeddingGroup", "Batch", "create_planner", "load_torcheasyrec_state"),
    ),
    "Export": ("emberline.export.export", ("export_model",)),
    "Deltas": ("emberline.export.delta", ("export_delta",)),
    "Export to URLs": ("emberline.export.remote", ("export_anywhere",)),
    "Serving": ("emberline.serving", ("Engine", "Artifact", "PackedRequest", "Client")),
    "Client in an event loop": ("emberline.serving.client", ("AsyncClient",)),
    "Embedded server": ("emberline.serving.server", ("EmbeddedServer",)),
    "Its settings": ("emberline.serving.settings", ("ServerSettings",)),
    "Settings of security": ("emberline.serving.security.settings", ("SecuritySettings",)),
    "Settings of logs": ("emberline.serving.observe.settings", ("ObserveSettings",)),
    "Triton": ("emberline.serving.triton.launcher", ("TritonServer",)),
    "Settings of Triton": ("emberline.serving.triton.settings", ("TritonSettings",)),
    "Probe": ("emberline.serving.probe", ("probe",)),
    "Schema": ("emberline.schema", ("ModelSchema",)),
}
"""Heading -> a module, and the names in it that users may rely on."""

NAVIGATION: list[Any] = [{"Python": "reference/python.md"}]


def pages() -> dict[str, str]:
    """Path of the page -> its text."""
    parts = ["# Python\n\nWhat is stable, made from the code's docstrings. Everything else may change from release to release.\n"]
    for heading, (module, names) in STABLE.items():
        parts.append(f"## {heading}\n")
        parts += [_named(module, name) for name in names]
    parts.append(f"## Errors\n\n```text\n{_tree(emberline.errors.__doc__)}\n```\n")
    return {"reference/python.md": "\n".join(parts)}


def _tree(docstring: str | None) -> str:
    return inspect.cleandoc(docstring or "").partition("\n\n")[2]


def _named(module: str, name: str) -> str:
    found = getattr(importlib.import_module(module), name)
    text = f"### {name}\n\nIn `{module}`.\n\n{_signature(name, found)}\n{as_markdown(found.__doc__)}"
    return text + "".join(_members(name, found)) if inspect.isclass(found) else text


def _signature(name: str, found: Any) -> str:
    if inspect.isclass(found) and "__init__" not in vars(found) and not dataclasses.is_dataclass(found):
        return ""
    parameters = inspect.signature(found)
    shown = [_parameter(parameter) for parameter in parameters.parameters.values() if parameter.name not in ("self", "cls")]
    if any(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.parameters.values()):
        first = next(place for place, parameter in enumerate(_without_self(parameters)) if parameter.kind is parameter.KEYWORD_ONLY)
        shown.insert(first, "*")
    returned = (
        "" if inspect.isclass(found) or parameters.return_annotation is inspect.Signature.empty else f" -> {_type(parameters.return_annotation)}"
    )
    one_line = f"{name}({', '.join(shown)}){returned}"
    text = one_line if len(one_line) < 100 else f"{name}(\n" + "".join(f"    {part},\n" for part in shown) + f"){returned}"
    return f"```python\n{text}\n```\n"


def _without_self(signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    return (parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "cls"))


def _parameter(parameter: inspect.Parameter) -> str:
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    kind = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{star}{parameter.name}{kind}{default if '<' not in default else ' = ...'}"


def _type(annotation: Any) -> str:
    """An annotation as it stands in code, without the modules of its names."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text)


def _members(name: str, found: type[Any]) -> Iterator[str]:
    """Public methods and properties that the class itself describes, in the order of the code."""
    for member, value in vars(found).items():
        inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if member.startswith("_") or not getattr(inner, "__doc__", None):
            continue
        if isinstance(inner, property):
            yield f"\n#### {name}.{member}\n\n{as_markdown(inner.__doc__)}"
        elif inspect.isfunction(inner):
            yield f"\n#### {name}.{member}()\n\n{_signature(f'{name}.{member}', inner)}\n{as_markdown(inner.__doc__)}"
