# SPDX-License-Identifier: Apache-2.0
"""From p4c's BMv2 JSON to a checked `program`: a module for each kind of construct.

Imports `program` only. What a program may not have is refused here, with its source line. There are
more than a dozen modules because v1model has that many kinds of constructs.
"""
