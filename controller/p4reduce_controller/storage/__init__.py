# SPDX-License-Identifier: Apache-2.0
"""What is kept on disk, so that a crash leaves one version or the other.

Imports `jobs`, whose table it writes, and `values`.
"""
