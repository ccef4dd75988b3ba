# SPDX-License-Identifier: Apache-2.0
"""The scorecard of training methods: `make methods`, docs/methods.md."""
