# SPDX-License-Identifier: Apache-2.0
"""What came of a run: summary.json, the verdict on it, and the lines that are printed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

ACCURACY_TOLERANCE = 0.005  # half a percentage point
ERROR_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Summary:
    """The keys of summary.json.

    Attributes:
        switch: "embedded" or "bmv2".
        network: "local": the switch's ports are Unix sockets, or veth pairs for BMv2.
        workers, steps, batch, parameters: The training.
        test_accuracy: Of the weights trained through the switch, 0 to 1.
        reference_accuracy: Of the same training with the gradients summed by numpy.
        final_loss: Mean training loss of the last global batch.
        weights_sha256: Of rank 0's final weights (float32, flat); does not depend on the switch.
        identical_on_all_ranks: Whether the final weights are the same on all ranks, bit for bit.
        identical_results_on_all_ranks: The same of every all-reduce's result.
        max_relative_error: The largest error of an aggregated element against the float64 sum
            of the contributions, relative to the largest magnitude among its block's sums.
        compared_elements: How many aggregated elements that was measured on.
        contributions: Contributions that the switch added up, each once.
        results: Rounds that it completed; each goes to all workers.
        retransmissions: Contributions that workers sent again.
        round_trip_us: The ranks' mean of the median round trip of a contribution, microseconds.
        contributions_per_second: While training.
        training_seconds: From the first step to the last.
        seconds: The whole command.
        outcomes: The switch's counters of what became of every frame, where not 0.
    """

    switch: str
    network: str
    workers: int
    steps: int
    batch: int
    parameters: int
    test_accuracy: float
    reference_accuracy: float
    final_loss: float
    weights_sha256: str
    identical_on_all_ranks: bool
    identical_results_on_all_ranks: bool
    max_relative_error: float
    compared_elements: int
    contributions: int
    results: int
    retransmissions: int
    round_trip_us: float
    contributions_per_second: float
    training_seconds: float
    seconds: float
    outcomes: dict[str, int]

    def problems(self) -> list[str]:
        """What is not as it must be, one line each; empty when all is well."""
        found = []
        # Written so that a NaN is a problem too.
        if not abs(self.test_accuracy - self.reference_accuracy) <= ACCURACY_TOLERANCE:
            found.append(
                f"test accuracy {self.test_accuracy:.4f} differs from the reference's "
                f"{self.reference_accuracy:.4f} by more than {ACCURACY_TOLERANCE}"
            )
        if not self.identical_on_all_ranks:
            found.append("the ranks ended with different weights")
        if not self.identical_results_on_all_ranks:
            found.append("the ranks got different results of an all-reduce")
        if not self.max_relative_error <= ERROR_TOLERANCE:
            found.append(
                f"an aggregated gradient is off by {self.max_relative_error:.2e} of its block's "
                f"maximum, more than {ERROR_TOLERANCE:.0e}"
            )
        if self.contributions != self.results * self.workers:
            found.append(
                f"the switch counted {self.contributions} contributions for {self.results} "
                f"rounds; with {self.workers} workers it should be {self.results * self.workers}"
            )
        return found

    def write(self, path: Path) -> None:
        """Writes summary.json."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    def lines(self) -> list[str]:
        """The summary for people, one fact a line."""
        ranks = "bit-identical" if self.identical_on_all_ranks else "DIFFERENT"
        return [
            f"test accuracy    {self.test_accuracy:.2%}"
            f"   (reference, summed by numpy: {self.reference_accuracy:.2%})",
            f"final weights    {ranks} on {_count(self.workers, 'rank')}",
            f"largest error    {self.max_relative_error:.1e} of the block's maximum"
            f"   ({self.compared_elements:,} sums compared with float64)",
            f"the switch       {self.contributions:,} contributions, {self.results:,} results"
            f"   ({self.contributions_per_second:,.0f} contributions/s,"
            f" median round trip {self.round_trip_us / 1000:.1f} ms)",
            f"retransmissions  {self.retransmissions:,}",
            f"time             {self.seconds:.1f} s, of which {self.training_seconds:.1f} s"
            f" training ({_count(self.steps, 'step')})",
        ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
