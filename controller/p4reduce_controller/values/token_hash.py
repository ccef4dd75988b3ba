# SPDX-License-Identifier: Apache-2.0
"""Salted hashes of tokens. Tokens are too long to guess, so the hash need not be slow."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

_SALT_BYTES = 16


@dataclass(frozen=True)
class TokenHash:
    """The salted hash of a token."""

    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, token: str) -> TokenHash:
        """Return the hash of a new token."""
        salt = secrets.token_bytes(_SALT_BYTES)
        return cls(salt, _digest(salt, token))

    def matches(self, token: str) -> bool:
        """Whether this is the hash of `token`. Takes the same time for any token."""
        return hmac.compare_digest(self.digest, _digest(self.salt, token))


def _digest(salt: bytes, token: str) -> bytes:
    return hashlib.sha256(salt + token.encode()).digest()
