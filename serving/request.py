"""The one validator that every path into the engine goes through."""

from emberline.schema import ModelSchema
from emberline.serving.packed_request import CheckedRequest, PackedRequest, Tile
from emberline.serving.request_rows import RowsValidator
from emberline.serving.request_tile import TileValidator

__all__ = ["CheckedRequest", "PackedRequest", "RequestValidator", "Tile"]


class RequestValidator:
    """Checks requests for one model. Holds no state of a request, so any number of threads may use it.

    Args:
        schema: the model's description.
    """

    def __init__(self, schema: ModelSchema) -> None:
        self.schema = schema
        self._rows, self._tile = RowsValidator(schema), TileValidator(schema)

    def check(self, request: PackedRequest) -> CheckedRequest:
        """The request with exact types and shapes, out-of-vocabulary ids replaced where the feature has a row for them.

        Raises:
            RequestError: it is malformed; the message names the tensor, and the feature and row or user where one is at fault.
        """
        if isinstance(request, CheckedRequest) and request.checked_for is self.schema:
            return request
        if request.rows_per_user is None and request.user_dense is None:
            return self._rows.check(request)
        return self._tile.check(request)
