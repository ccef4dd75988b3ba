# SPDX-License-Identifier: Apache-2.0
"""What DistributedDataParallel costs over the switch."""
