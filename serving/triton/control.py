"""What a running Triton is asked besides inference: which models are there, and to load one."""

import http.client
import json
from contextlib import closing
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TritonControl:
    """The HTTP port of a Triton.

    Args:
        host: where it listens.
        port: of HTTP.
        timeout_s: for each answer.
    """

    host: str
    port: int
    timeout_s: float

    def is_ready(self) -> bool:
        """Whether the server says that it and all its models are ready.

        Raises:
            OSError: it cannot be reached.
        """
        return self._ask("GET", "/v2/health/ready")[0] == http.HTTPStatus.OK

    def states(self) -> dict[tuple[str, str], tuple[str, str]]:
        """State and reason, by model and version; those that were never loaded have neither.

        Raises:
            OSError: it cannot be reached.
        """
        _, answer = self._ask("POST", "/v2/repository/index")
        return {(entry["name"], entry.get("version", "")): (entry.get("state", ""), entry.get("reason", "")) for entry in json.loads(answer)}

    def load(self, name: str) -> str:
        """Load a model, or what has changed of it. Empty where that went well, else what Triton says.

        Raises:
            OSError: it cannot be reached.
        """
        return self._change(name, "load")

    def unload(self, name: str) -> str:
        """Unload a model. Empty where that went well, else what Triton says.

        Raises:
            OSError: it cannot be reached.
        """
        return self._change(name, "unload")

    def _change(self, name: str, how: str) -> str:
        status, answer = self._ask("POST", f"/v2/repository/models/{name}/{how}")
        return "" if status == http.HTTPStatus.OK else json.loads(answer)["error"]

    def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)) as connection:
            try:
                connection.request(method, path)
                answer: Any = connection.getresponse()
                return answer.status, answer.read()
            except http.client.HTTPException as error:
                raise ConnectionError(str(error)) from error
