# SPDX-License-Identifier: Apache-2.0
"""What does Spark gain by sums of the switch, beside treeAggregate?"""
