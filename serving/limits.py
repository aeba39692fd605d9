"""How large one request may be: rows, ids, and steps once its rows are padded, each refused with the limit and the size."""

from dataclasses import dataclass

import numpy as np

from emberline.errors import ConfigError, TooLargeError
from emberline.schema import FeatureKind, ModelSchema
from emberline.serving.device_request import DeviceRequest
from emberline.serving.packed_request import PackedRequest
from emberline.serving.protocol.strict_json import quote


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The most that one request may hold.

    Args:
        rows: of any kind.
        ids: of all sparse features together.
        padded_steps: of a padded sequence: rows times the steps of the longest. One long row has all others filled up to it, so a small
            request could take any amount of memory.

    Raises:
        ConfigError: one is no whole number above 0.
    """

    rows: int = 1 << 16
    ids: int = 1 << 21
    padded_steps: int = 1 << 20

    def __post_init__(self) -> None:
        """See `Raises`."""
        for name in ("rows", "ids", "padded_steps"):
            require_whole(f"RequestLimits: {name}", getattr(self, name), 1)


def require_whole(name: str, value: object, least: int, *, optional: bool = False) -> None:
    """Refuse a setting that is no whole number, or too small.

    Args:
        name: for the message.
        value: as it was given.
        least: the smallest that may be.
        optional: None may be, too.

    Raises:
        ConfigError: the message gives name and value.
    """
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} must be a whole number from {least} on; found {value!r}")


DEFAULT_LIMITS = RequestLimits()
"""Those of both servers, unless told otherwise."""


class LimitChecker:
    """Compares requests for one model with limits, by the sizes of their arrays alone: before anything is computed.

    Args:
        schema: the model's description.
        limits: what is allowed.
    """

    def __init__(self, schema: ModelSchema, limits: RequestLimits) -> None:
        self._limits = limits
        names = [feature.name for feature in schema.sequences]
        sparse = [feature.name for feature in schema.sparse_features]
        kinds = {feature.name: feature.kind for feature in schema.sequences}
        self._num_features, self._num_sequences = len(sparse), len(names)
        padded = [stream.name for stream in schema.streams if stream.padded]
        self._in_steps = [(name, names.index(name)) for name in padded]
        self._in_lengths = [(name, sparse.index(name)) for name in padded if kinds[name] is FeatureKind.SPARSE]

    def check(self, request: PackedRequest, num_rows: int) -> None:
        """Refuse a request that is too large; one that is malformed is left to the validator.

        Args:
            request: as it came.
            num_rows: its rows.

        Raises:
            TooLargeError: the message gives limit and size.
        """
        self.check_rows(num_rows)
        if request.ids is not None:
            self._check_ids(request.ids.size)
        if self._in_steps:
            self._check_padding(request, num_rows)

    def check_on_device(self, request: DeviceRequest) -> None:
        """Refuse a request for a model without sequences that is too large.

        Raises:
            TooLargeError: the message gives limit and size.
        """
        self.check_rows(request.lengths.numel() // max(1, self._num_features))
        self._check_ids(request.ids.numel())

    def check_rows(self, num_rows: int) -> None:
        """Refuse a request of too many rows.

        Raises:
            TooLargeError: the message gives limit and size.
        """
        if num_rows > self._limits.rows:
            raise TooLargeError(f"the request has {num_rows} rows; this server takes at most {self._limits.rows}: send it in parts")

    def _check_ids(self, num_ids: int) -> None:
        if num_ids > self._limits.ids:
            raise TooLargeError(f"the request has {num_ids} ids; this server takes at most {self._limits.ids}: send it in parts")

    def _check_padding(self, request: PackedRequest, num_rows: int) -> None:
        counts, num_parts, places = request.steps, self._num_sequences, self._in_steps
        if counts is None:  # each id is a step
            counts, num_parts, places = request.lengths, self._num_features, self._in_lengths
        if counts is None or counts.dtype.kind not in "iu" or counts.size == 0:
            return
        if request.rows_per_user is not None:  # users and rows have counts of their own: the longest of all may be any sequence's
            self._refuse_long(" or ".join(name for name, _ in places), int(counts.max()), num_rows)
        elif counts.size % num_parts == 0:
            table = np.reshape(counts, (num_parts, -1))
            for name, place in places:
                self._refuse_long(name, int(table[place].max()), num_rows)

    def _refuse_long(self, name: str, longest: int, num_rows: int) -> None:
        padded = longest * num_rows
        if padded > self._limits.padded_steps:
            raise TooLargeError(
                f"{num_rows} rows padded to the {longest} steps of the longest are {padded} steps of {quote(name)}; "
                f"this server takes at most {self._limits.padded_steps}: send long rows apart from short ones"
            )
