# SPDX-License-Identifier: Apache-2.0
"""``python -m p4reduce_lab.deploy``: see `supervisor`."""

import sys

from p4reduce_lab.deploy.supervisor import main

if __name__ == "__main__":
    sys.exit(main())
