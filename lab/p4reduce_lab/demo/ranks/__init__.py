# SPDX-License-Identifier: Apache-2.0
"""What a rank of the demo does, and what it leaves in files for the launcher.

Imports `demo.training`, `demo.config` and the worker's library.
"""
