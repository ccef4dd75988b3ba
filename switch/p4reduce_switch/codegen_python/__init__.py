# SPDX-License-Identifier: Apache-2.0
"""The Python generator: turns a `program` into the source that `pipeline` compiles and runs.

Imports `program`, and from `state` the constants that generated code needs, but not the loader.
"""
