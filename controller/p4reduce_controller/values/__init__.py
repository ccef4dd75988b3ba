# SPDX-License-Identifier: Apache-2.0
"""Value types: addresses, hashes of tokens, and dataclasses as JSON.

Imports none of the other folders, and all of them may import it.
"""
