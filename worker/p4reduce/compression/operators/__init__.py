# SPDX-License-Identifier: Apache-2.0
"""The named compressors, one module each. `registry` imports all modules of this folder.

docs/contributing/compressors.md says how to add one. Of the other folders only `compression`
imports it.
"""
