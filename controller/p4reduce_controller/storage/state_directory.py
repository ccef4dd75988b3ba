# SPDX-License-Identifier: Apache-2.0
"""Where the controller keeps what outlives it, unless `--state-dir` says otherwise."""

from __future__ import annotations

import os
from pathlib import Path


def default_state_directory() -> Path:
    """Return `$XDG_STATE_HOME/p4reduce`, else ~/.local/state/p4reduce."""
    state = os.environ.get("XDG_STATE_HOME")
    return Path(state or Path.home() / ".local" / "state") / "p4reduce"
