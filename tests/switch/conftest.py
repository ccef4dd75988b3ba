# SPDX-License-Identifier: Apache-2.0
"""For the tests of the embedded switch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from p4reduce_native.compiler import find_compiler
from p4reduce_native.errors import NativeUnavailableError
from pipeline_programs import ENGINES, use_engine

# Test files name these modules as plugins, and one of the two imports the other. Only if pytest
# knows of both before can it rewrite their asserts, whichever comes first.
pytest.register_assert_rewrite("p4rt_fixtures", "two_targets")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs once with each engine: machine code, and Python."""
    if request.param == "native":
        try:
            find_compiler()
        except NativeUnavailableError as error:
            pytest.skip(f"no machine code: {error}")
    use_engine(request.param)
    yield request.param
    use_engine("native")
