# SPDX-License-Identifier: Apache-2.0
"""Print which tests failed last, a line each: those that `make test-again` runs."""

import json
from pathlib import Path

LAST_FAILED = Path(__file__).parents[1] / ".pytest_cache/v/cache/lastfailed"

if __name__ == "__main__" and LAST_FAILED.exists():
    for test in json.loads(LAST_FAILED.read_text()):
        print(test)
