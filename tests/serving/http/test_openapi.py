"""What `/openapi.json` says of the server is so: Schemathesis asks every path as it is described there, and a little differently."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import openapi
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from emberline.serving.server import EmbeddedServer
from emberline.serving.settings import ServerSettings
from tests.serving.conftest import make_toy

CHECKS: list[Any] = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 6
"""Of each path, as described, and as many that are not."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    root: Path = make_toy().write(tmp_path_factory.mktemp("models"))
    with EmbeddedServer(root.parent.parent, settings=ServerSettings(num_threads=1, delta_poll_s=0, version_poll_s=0)) as server:
        yield server


def test_every_path_answers_as_it_is_described(server: EmbeddedServer) -> None:
    schema: Any = openapi.from_url(f"{server.http_url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 24
    asked: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    for operation in operations:
        for mode in GenerationMode:
            if mode is GenerationMode.NEGATIVE and not operation.body:
                continue

            @seed(1)
            @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:
                label = case.operation.label
                asked[label] += 1
                if asked[label] % 4 and "model" in case.path_parameters and not label.endswith("load"):  # mostly the model that is there
                    case.path_parameters |= {"model": "toy"} | ({"version": "1"} if "version" in case.path_parameters else {})
                statuses[case.call_and_validate(checks=CHECKS).status_code] += 1

            ask()
    assert len(asked) == len(operations)
    assert asked.total() > 120
    assert min(statuses[200], statuses[400], statuses[404]) > 10
