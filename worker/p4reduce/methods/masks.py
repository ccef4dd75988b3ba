# SPDX-License-Identifier: Apache-2.0
"""Masks that cancel in the sum: an observer of one rank's frames sees uniform bytes.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017:
the masking with one-time pads. Each pair of ranks u < v has a common secret s_uv, and rank u sends

    y_u = x_u + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_vu)   modulo 2^32

so that Σ y_u = Σ x_u. The switch adds modulo 2^32 in lanes that wrap (docs/lanes.md). The secrets
are agreed by Diffie and Hellman's method in group 14 of RFC 3526; PRG is SHAKE-256 (FIPS 202).

What it hides, and what it does not:

- Every rank receives the sum. Two ranks therefore know each other's numbers, and of n ranks n − 1
  that conspire know the last one's.
- The switch forwards the public keys. It learns nothing if it only listens. One that replaces keys
  could sit in the middle: keys are not signed.
- Sizes, times and the number of sums are visible.
- A rank that leaves takes its masks with it, and the sum is lost. (The paper's later rounds, which
  recover it, are not here: an all-reduce whose rank is lost ends with an error anyway.)
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.methods._communicator import Array, Comm
from p4reduce.methods.gathering import gather

Words = npt.NDArray[np.int32]

_BLOCK = 256  # lanes; what is left of the last one would travel as zeros that nothing hides
_KEY_BYTES = 256
_GENERATOR = 2
GROUP_14 = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DD"
    "EF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED"
    "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F"
    "83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B"
    "E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510"
    "15728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)
"""RFC 3526, section 3: 2^2048 − 2^1984 − 1 + 2^64·(⌊2^1918 π⌋ + 124476), a safe prime."""


class Masks:
    """A rank's secrets with each other rank, and sums hidden by them.

    Args:
        comm: the ranks, two or more; all create this at the same place in their calls.

    Raises:
        ValueError: on all ranks, if there is only one rank, or a key that no honest rank sends.
    """

    def __init__(self, comm: Comm) -> None:
        if comm.size < 2:
            raise ValueError(f"masks: world size {comm.size}: at least two ranks are needed")
        self._comm = comm
        own = secrets.randbits(8 * _KEY_BYTES)
        public = pow(_GENERATOR, own, GROUP_14).to_bytes(_KEY_BYTES, "big")
        keys = gather(comm, np.frombuffer(public, np.int32)[None], "masks/public keys")
        self._shared: dict[int, bytes] = {}
        for rank, row in enumerate(keys):
            key = int.from_bytes(row.tobytes(), "big")
            if not 1 < key < GROUP_14 - 1:
                raise ValueError(f"masks: rank {rank} sent a public key outside of 2 to p - 2")
            if rank != comm.rank:
                common = pow(key, own, GROUP_14).to_bytes(_KEY_BYTES, "big")
                self._shared[rank] = hashlib.sha256(common).digest()
        self._sums = 0

    def sum_integers(self, mine: npt.NDArray[Any], name: str) -> Words:
        """Return the sum over all ranks, exact if it fits into 32 bits.

        Args:
            mine: integers of 32 bits, of any shape, the same on all ranks.
            name: of the collective.

        Returns:
            int32, of the same shape.
        """
        flat = np.asarray(mine, np.int32).reshape(-1)
        padded = np.zeros(-(-flat.size // _BLOCK) * _BLOCK, np.int32)
        padded[: flat.size] = flat
        hidden = padded + self._mask(padded.size)
        total = np.asarray(self._comm.allreduce(hidden, name=name, precision="wrap32"))
        return np.asarray(total[: flat.size].reshape(mine.shape), np.int32)

    def sum(self, mine: Array, largest: float, name: str) -> Array:
        """Return the sum over all ranks of floats, rounded to a common unit first.

        Args:
            mine: float64 of any shape; larger magnitudes are clipped to `largest`.
            largest: equal on all ranks and independent of the data: an exponent that follows the
                data would reveal them.
            name: of the collective.

        Returns:
            float64; off by at most n/2 units of n·largest/2^31.
        """
        unit = largest * self._comm.size / (2**31 - self._comm.size)
        whole = np.rint(np.clip(mine, -largest, largest) / unit).astype(np.int32)
        return np.asarray(self.sum_integers(whole, name) * unit)

    def _mask(self, lanes: int) -> Words:
        """Return this rank's mask for the next sum; those of all ranks add up to 0."""
        self._sums += 1
        mask = np.zeros(lanes, np.int32)
        for rank, secret in self._shared.items():
            stream = hashlib.shake_256(secret + self._sums.to_bytes(8, "big")).digest(4 * lanes)
            words = np.frombuffer(stream, "<i4").astype(np.int32)
            mask += words if rank > self._comm.rank else -words  # + for v > u, − for v < u
        return mask
