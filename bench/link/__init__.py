# SPDX-License-Identifier: Apache-2.0
"""What a frame costs between two processes."""
