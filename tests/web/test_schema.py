"""Requests made from /openapi.json: whatever they hold, the answer is as described, never a 500."""

from __future__ import annotations

from contextlib import suppress

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error, content_type_conformance, response_schema_conformance,
    status_code_conformance,
]  # fmt: skip
BOUNDED = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


# A thread of the server may draw random numbers while a request is made up, which hypothesis sees.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@pytest.mark.parametrize("num_examples", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_no_request_from_the_schema_ends_in_a_server_error(
    label_client: TestClient, num_examples: int
) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", label_client.app)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 16
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(BOUNDED, max_examples=num_examples)
            @given(case=operation.as_strategy(mode))
            def check(case: Case) -> None:
                case.call_and_validate(checks=CHECKS)

            with suppress(Unsatisfiable):  # nothing can be wrong about a request without input
                check()
