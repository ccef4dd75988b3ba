# SPDX-License-Identifier: Apache-2.0
"""What the live page costs the controller, and the ranks."""
