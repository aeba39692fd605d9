"""What a request to load or unload a model may ask besides."""

from collections.abc import Mapping

from emberline.errors import RequestError
from emberline.serving.protocol.strict_json import quote


def check_load_parameters(parameters: Mapping[str, object]) -> None:
    """Refuse a config or files that are not the artifact's own.

    Raises:
        RequestError: there is any parameter.
    """
    for name in parameters:
        raise RequestError(f"the parameter {quote(name)} is not supported: a model is loaded as it was exported")


def check_unload_parameters(parameters: Mapping[str, object]) -> None:
    """No model depends on another one, so `unload_dependents` may say either.

    Raises:
        RequestError: there is another parameter.
    """
    for name, value in parameters.items():
        if name != "unload_dependents" or not isinstance(value, bool):
            raise RequestError(f"the parameter {quote(name)} is not supported; there is unload_dependents, true or false")
