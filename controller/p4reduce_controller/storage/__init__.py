# SPDX-License-Identifier: Apache-2.0
"""Files that a crash leaves in the old or the new version.

Imports `jobs`, whose table it writes, and `values`.
"""
