# SPDX-License-Identifier: Apache-2.0
"""The generator: from a `program` to the Python source that `pipeline` compiles and runs.

Imports `program`, and from `state` the constants that generated code needs; never the loader.
"""
