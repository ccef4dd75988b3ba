# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from p4reduce_lab.cli import main

if __name__ == "__main__":
    main()
