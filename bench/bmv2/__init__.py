# SPDX-License-Identifier: Apache-2.0
"""What does BMv2 cost per packet, beside the embedded switch and by the width of its words?"""
