# SPDX-License-Identifier: Apache-2.0
"""Loads p4c's BMv2 JSON into a checked `program`. Each kind of construct has a module.

Imports `program` only. Unsupported constructs are refused here, with their source line. There are
more than a dozen modules, because v1model has that many kinds of constructs.
"""
