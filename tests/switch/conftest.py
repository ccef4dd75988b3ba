# SPDX-License-Identifier: Apache-2.0
"""For the tests of the embedded switch."""

from __future__ import annotations

import pytest

# Test files name these modules as plugins, and one of the two imports the other. Only if pytest
# knows of both before can it rewrite their asserts, whichever comes first.
pytest.register_assert_rewrite("p4rt_fixtures", "two_targets")
