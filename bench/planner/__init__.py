# SPDX-License-Identifier: Apache-2.0
"""Whether what `p4reduce-lab plan` says beforehand comes true (docs/planner.md)."""
