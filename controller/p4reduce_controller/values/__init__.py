# SPDX-License-Identifier: Apache-2.0
"""The forms that single values take: addresses, hashes of tokens, dataclasses as JSON.

Imports none of the other folders, and all of them may import it.
"""
