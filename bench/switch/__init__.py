# SPDX-License-Identifier: Apache-2.0
"""How fast is the embedded switch?"""
