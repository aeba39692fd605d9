"""The `config.pbtxt` of an artifact: what Triton must know of its inputs, outputs and batching."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from emberline.manifest import ArtifactManifest
from emberline.schema import ModelSchema
from emberline.serving.protocol.by_feature import feature_inputs
from emberline.serving.protocol.wire import WireTensor, wire_inputs, wire_outputs
from emberline.serving.tables import PRIVATE
from emberline.serving.triton.settings import DEFAULTS, TritonSettings
from emberline.storage import Place

ARTIFACT_PARAMETER = "emberline_artifact"
"""The model's folder or its URL, whose sub-folder of the version's number is the artifact."""
SCHEMA_PARAMETER = "emberline_schema"
"""JSON of the model's schema: clients encode rows with it."""
VERSION_PARAMETER = "emberline_version"
THREADS_PARAMETER = "emberline_threads"
DELTAS_PARAMETER = "emberline_deltas"
"""How many deltas a model opens that never looks for more, as a copy of its programs lies elsewhere."""
FORMAT_PARAMETER = "emberline_format"
"""The format of the programs to run."""
TABLES_PARAMETER = "emberline_tables"
"""Where tables are: private, mapped or disk."""
ROW_GROWTH_PARAMETER = "emberline_row_growth"
"""By what share private tables may be larger than their files."""
LOOKUP_PARAMETER = "emberline_lookup"
"""What looks rows up."""
LIMITS_PARAMETER = "emberline_limits"
"""JSON of `RequestLimits`; the usual ones where it is not there."""
MERGED_PARAMETER = "emberline_max_merged"
"""Most requests of one batch. Where it is there, a process that is given `max_batch_size` requests at once refuses half of them as overload."""
CACHE_PARAMETER = "emberline_cache"
"""Where what comes from a URL is kept."""
DELTA_POLL_PARAMETER = "emberline_delta_poll_s"
"""Seconds between two looks for new deltas, in each of the model's processes."""
_INPUTS_WHERE_THEY_ARE = "FORCE_CPU_ONLY_INPUT_TENSORS"
"""Triton's own: `no` leaves inputs that are on a GPU there."""


def config_text(manifest: ArtifactManifest, model_dir: Place, settings: TritonSettings = DEFAULTS) -> str:
    """The text of a `config.pbtxt`.

    A request is one batch item, whatever its number of rows, so that Triton groups requests of unequal lengths; it never joins their tensors.

    Args:
        manifest: of the version to serve.
        model_dir: the folder that holds the artifact's version folder, or its URL.
        settings: of the repository.
    """
    parameters = {
        ARTIFACT_PARAMETER: str(model_dir),
        SCHEMA_PARAMETER: json.dumps(manifest.schema.to_dict(), separators=(",", ":")),
        VERSION_PARAMETER: str(manifest.version),
        DELTA_POLL_PARAMETER: f"{settings.delta_poll_s:g}",
    }
    if settings.refuses_overload:
        parameters[MERGED_PARAMETER] = str(settings.max_merged_requests)
    parameters |= settings_parameters(settings)
    sections = [
        f"name: {quote(manifest.name)}",
        'backend: "python"',
        f"max_batch_size: {settings.max_handed_over}",
        _tensors("input", _inputs(manifest.schema, settings)),
        _tensors("output", wire_outputs(manifest.schema)),
        settings.dynamic_batching,
        settings.instance_group,
        f"version_policy {{ specific {{ versions: [ {manifest.version} ] }} }}",
        parameters_text(parameters),
    ]
    return "\n".join(sections) + "\n"


def settings_parameters(settings: TritonSettings) -> dict[str, str]:
    """The parameters that tell a process how to open an artifact and what to refuse; none for what is usual."""
    found = {}
    if settings.num_threads is not None:
        found[THREADS_PARAMETER] = str(settings.num_threads)
    if settings.format is not None:
        found[FORMAT_PARAMETER] = settings.format
    if settings.tables != PRIVATE:
        found[TABLES_PARAMETER] = settings.tables
    if settings.row_growth is not None:
        found[ROW_GROWTH_PARAMETER] = f"{settings.row_growth:g}"
    if settings.lookup is not None:
        found[LOOKUP_PARAMETER] = settings.lookup
    if settings.limits != DEFAULTS.limits:
        found[LIMITS_PARAMETER] = json.dumps(asdict(settings.limits))
    if settings.on_gpu:
        found[_INPUTS_WHERE_THEY_ARE] = "no"
    if settings.cache is not None:
        found[CACHE_PARAMETER] = str(settings.cache.resolve())
    return found


def _inputs(schema: ModelSchema, settings: TritonSettings) -> Sequence[WireTensor]:
    """The packed inputs; with those by feature none must be there for Triton, and the model itself tells what is missing."""
    packed = wire_inputs(schema)
    return packed if not settings.by_feature else [replace(tensor, optional=True) for tensor in packed] + list(feature_inputs(schema))


def quote(text: str) -> str:
    """A protobuf text string: quotes and backslashes escaped, everything outside printable ASCII as octal bytes."""
    pieces = []
    for byte in text.encode():
        if byte in b'\\"':
            pieces.append("\\" + chr(byte))
        elif 32 <= byte < 127:
            pieces.append(chr(byte))
        else:
            pieces.append(f"\\{byte:03o}")
    return '"' + "".join(pieces) + '"'


def _tensors(section: str, tensors: Sequence[WireTensor]) -> str:
    lines = []
    for tensor in tensors:
        dims = ", ".join(str(dim) for dim in tensor.dims)
        ragged = " allow_ragged_batch: true" if section == "input" else ""
        optional = " optional: true" if tensor.optional else ""
        lines.append(f"  {{ name: {quote(tensor.name)} data_type: TYPE_{tensor.datatypes[0]} dims: [ {dims} ]{ragged}{optional} }}")
    return f"{section} [\n" + ",\n".join(lines) + "\n]"


def parameters_text(parameters: Mapping[str, str]) -> str:
    """The section of a config that holds texts by name."""
    lines = [f"parameters {{ key: {quote(key)} value {{ string_value: {quote(value)} }} }}" for key, value in parameters.items()]
    return "\n".join(lines)
