# SPDX-License-Identifier: Apache-2.0
"""Training by DistributedDataParallel over the switch: time to an accuracy, time of a step."""
