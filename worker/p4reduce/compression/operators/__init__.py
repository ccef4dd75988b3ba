# SPDX-License-Identifier: Apache-2.0
"""The compressors that have names, a module for each; `registry` imports all that lie here.

To add one: docs/contributing/compressors.md. Of the other folders only `compression` imports it.
"""
