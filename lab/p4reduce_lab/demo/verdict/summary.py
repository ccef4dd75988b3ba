# SPDX-License-Identifier: Apache-2.0
"""The outcome of a run: summary.json, the verdict, and the printed lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from p4reduce_common.figures import three_digits

from p4reduce_lab.demo.config import RESTART_SWITCH

ACCURACY_TOLERANCE = 0.005  # half a percentage point
# So far below the uncompressed training a compressed one has failed; above the tolerance it is
# for its user to say whether it was worth it.
COMPRESSION_TOLERANCE = 0.05


@dataclass(frozen=True)
class CompressionSummary:
    """What compressing saved, under the key "compression" of summary.json.

    Bytes are those of whole Ethernet frames that a rank's communicator counted over the training's
    steps, retransmissions included, the mean of the ranks.

    Attributes:
        name: As given: "cat", "topk:0.1", …
        learning_rate, momentum: Of the compressed training.
        bandwidth: Of the link as measured before, which CAT weighs levels against; bits per second.
        round_trip: Of that link, seconds.
        frame_seconds: What a frame costs there, full or not.
        bytes: Sent and received with compression.
        uncompressed_bytes: The same of the same number of steps with whole gradients.
        level_minimum, level_median, level_maximum: Blocks that a rank chose in a step,
            the mean of the ranks.
        total_blocks: Blocks of the gradient.
        alpha_mean: Share of the gradient's energy in what was chosen, 0 to 1; None where the
            compressor does not estimate it.
        uncompressed_accuracy: Test accuracy of the training with whole gradients.
        uncompressed_weights_sha256: Of the weights it ended with.
        uncompressed_seconds: From its first step to its last.
    """

    name: str
    learning_rate: float
    momentum: float
    bandwidth: float
    round_trip: float
    frame_seconds: float
    bytes: int
    uncompressed_bytes: int
    level_minimum: float
    level_median: float
    level_maximum: float
    total_blocks: int
    alpha_mean: float | None
    uncompressed_accuracy: float
    uncompressed_weights_sha256: str
    uncompressed_seconds: float

    @property
    def saved(self) -> float:
        """The share of bytes that were not sent."""
        return 1 - self.bytes / self.uncompressed_bytes

    def lines(self) -> list[str]:
        """The facts for people, one per line."""
        momentum = f"momentum {self.momentum:g}" if self.momentum else "without momentum"
        alpha = "" if self.alpha_mean is None else f", alpha {self.alpha_mean:.2f} on average"
        return [
            f"compression      {self.name}, for a link measured as "
            f"{three_digits(self.bandwidth / 1e6)} Mbit/s with a round trip of "
            f"{three_digits(1e3 * self.round_trip)} ms and "
            f"{three_digits(1e6 * self.frame_seconds)} us per frame",
            f"its optimiser    SGD {momentum}, step {self.learning_rate:g}",
            f"blocks a step    {self.level_median:g} of {self.total_blocks} in the median,"
            f" {self.level_minimum:g} to {self.level_maximum:g}{alpha}",
            f"bytes saved      {self.saved:.1%}: {self.bytes / 1e6:.1f} MB a worker instead of"
            f" {self.uncompressed_bytes / 1e6:.1f} MB in as many steps, up and down",
        ]


@dataclass(frozen=True)
class FaultSummary:
    """The killed process and the effects, under the key "fault" of summary.json.

    Attributes:
        name: As given: "restart-switch", …
        text: What was killed, when, and how long it was away.
        step: Steps done by then, as the launcher knew it.
        away_seconds: From its end until the next one served; None for what did not come back.
        pause_seconds: The longest time that a rank took for the step that was under way, or for
            one of those until all were back.
        usual_seconds: The median of a step.
        notices: What the library warned the ranks of, and how many seconds after the kill.
        recoveries: How often a rank found its switch again, the largest number of a rank.
        undisturbed_weights_sha256: Of the same training without the fault.
        undisturbed_accuracy: Test accuracy of those.
        survivors: Workers that trained to the end.
        resumed: Steps done when fewer workers went on; None if all stayed.
    """

    name: str
    text: str
    step: int
    away_seconds: float | None
    pause_seconds: float
    usual_seconds: float
    notices: Mapping[str, float]
    recoveries: int
    undisturbed_weights_sha256: str
    undisturbed_accuracy: float
    survivors: int
    resumed: int | None

    def lines(self, weights: str) -> list[str]:
        """The facts for people, one per line, with the SHA-256 of the final weights."""
        whole = self.undisturbed_weights_sha256
        same = "the same, bit for bit" if weights == whole else "DIFFERENT"
        noticed = [
            f"after {at:5.2f} s    {text}"
            for text, at in self.notices.items()
            if text.startswith("rank 0 ")
        ]
        return [
            f"fault            {self.text}",
            *(noticed or ["noticed          nothing, by rank 0"]),
            f"pause            {self.pause_seconds:.2f} s for the step concerned"
            f" (usually {1000 * self.usual_seconds:.0f} ms)",
            f"undisturbed      accuracy {self.undisturbed_accuracy:.2%}; "
            + (
                f"final weights {same} (sha256 {weights[:12]}… against {whole[:12]}…)"
                if self.resumed is None
                else f"{self.survivors} workers went on after {self.resumed} steps"
            ),
        ]


@dataclass(frozen=True)
class Summary:
    """The keys of summary.json.

    Attributes:
        switch: "embedded" or "bmv2".
        network: "local": the switch's ports are Unix sockets, or veth pairs for BMv2; "udp": they
            are UDP sockets.
        workers, steps, batch, parameters: The training.
        test_accuracy: Of the weights trained through the switch, 0 to 1.
        reference_accuracy: Of the same training with the gradients summed by numpy.
        final_loss: Mean training loss of the last global batch.
        weights_sha256: Of rank 0's final weights (float32, flat); does not depend on the switch.
        identical_on_all_ranks: Whether the final weights are the same on all ranks, bit for bit.
        identical_results_on_all_ranks: The same of every all-reduce's result.
        max_relative_error: The largest error of an aggregated element against the float64 sum
            of the contributions, relative to the largest magnitude among its block's sums.
        error_of_bound: The largest error as a share of what :func:`p4reduce.error_bound` and the
            result's own rounding to float32 allow, at most 1.
        compared_elements: How many aggregated elements that was measured on.
        contributions: Contributions that the switch added up, each once.
        results: Rounds that it completed; each goes to all workers.
        retransmissions: Contributions that workers sent again.
        round_trip_us: The ranks' mean of the median round trip of a contribution, microseconds.
        contributions_per_second: While training.
        training_seconds: From the first step to the last.
        seconds: The whole command.
        outcomes: The switch's counters of what became of every frame, where not 0; of several
            switches, all of theirs together.
        switches: The number of switches that summed.
        topology: "star": one switch; "side-by-side": several, each with a part of the blocks;
            "tree": several, each with a part of the ranks, and those above them.
        contributions_by_switch: The counters of each switch; in a tree that is ranks'
        contributions,
            and the sums of the switches below.
        compression: None where gradients were sent whole. Otherwise test_accuracy, final_loss,
            weights_sha256 and training_seconds are of the compressed training, the switch's
            figures of both.
        fault: None where nothing was killed. The switch's counters then are those since it
            was started the last time.
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
    error_of_bound: float
    compared_elements: int
    contributions: int
    results: int
    retransmissions: int
    round_trip_us: float
    contributions_per_second: float
    training_seconds: float
    seconds: float
    outcomes: dict[str, int]
    switches: int = 1
    topology: str = "star"
    contributions_by_switch: Sequence[int] = ()
    compression: CompressionSummary | None = None
    fault: FaultSummary | None = None

    @property
    def whole_accuracy(self) -> float:
        """The test accuracy with whole gradients, which must equal the reference's."""
        compression = self.compression
        return self.test_accuracy if compression is None else compression.uncompressed_accuracy

    @property
    def _lost_accuracy(self) -> float:
        """How far the compressed training ended below the uncompressed one; 0 without one."""
        return 0.0 if self.compression is None else self.whole_accuracy - self.test_accuracy

    def _compression_verdict(self) -> str:
        compression = self.compression
        assert compression is not None
        return (
            f"compressed by {compression.name} the training ended at {self.test_accuracy:.2%}, "
            f"{100 * self._lost_accuracy:.1f} points below the uncompressed one"
        )

    def warnings(self) -> list[str]:
        """Return what a user should consider, one line each: correct, but perhaps unexpected."""
        lost = self._lost_accuracy
        if ACCURACY_TOLERANCE < lost <= COMPRESSION_TOLERANCE:
            return [self._compression_verdict()]
        return []

    def problems(self) -> list[str]:
        """Return what is wrong, one line each; empty if nothing is."""
        found = []
        # Written so that a NaN is a problem too.
        if not abs(self.whole_accuracy - self.reference_accuracy) <= ACCURACY_TOLERANCE:
            found.append(
                f"test accuracy {self.whole_accuracy:.4f} differs from the reference's "
                f"{self.reference_accuracy:.4f} by more than {ACCURACY_TOLERANCE}"
            )
        if not self._lost_accuracy <= COMPRESSION_TOLERANCE:
            found.append(self._compression_verdict())
        if not self.identical_on_all_ranks:
            found.append("the ranks ended with different weights")
        if not self.identical_results_on_all_ranks:
            found.append("the ranks got different results of an all-reduce")
        if not self.error_of_bound <= 1:
            found.append(
                f"an aggregated gradient is off by {self.max_relative_error:.2e} of its block's "
                f"maximum, {self.error_of_bound:.2f} times what its lanes' error bound allows"
            )
        fault = self.fault
        fewer = fault is not None and fault.resumed is not None
        if (
            fault is not None
            and not fewer
            and fault.undisturbed_weights_sha256 != self.weights_sha256
        ):
            found.append(
                f"with fault {fault.name} the training ended with other weights than undisturbed"
            )
        # The rounds that a lost rank leaves behind are never completed; and the counters of a root
        # that was killed are gone, while those of the switches below it are not.
        uneven = fault is not None and fault.name == RESTART_SWITCH and self.topology == "tree"
        if not (fewer or uneven) and self.contributions != self.results * self.workers:
            found.append(
                f"the switch counted {self.contributions} contributions for {self.results} "
                f"rounds; with {self.workers} workers it should be {self.results * self.workers}"
            )
        return found

    def write(self, path: Path) -> None:
        """Write summary.json: the keys above, and the verdict as "problems" and "warnings"."""
        verdict = {"problems": self.problems(), "warnings": self.warnings()}
        path.write_text(json.dumps({**asdict(self), **verdict}, indent=2) + "\n")

    def _who(self) -> str:
        return f"{'the switch' if self.switches == 1 else f'{self.switches} switches':16}"

    def _shares(self) -> list[str]:
        """Which part each switch had, where there are several."""
        if self.topology == "star":
            return []
        shares = ", ".join(f"{count:,}" for count in self.contributions_by_switch)
        return [f"of which each    {shares} contributions"]

    def lines(self) -> list[str]:
        """The summary for people, one fact per line."""
        ranks = "bit-identical" if self.identical_on_all_ranks else "DIFFERENT"
        survivors = self.workers if self.fault is None else self.fault.survivors
        reference = f"reference, summed by numpy: {self.reference_accuracy:.2%}"
        training = f"{self.training_seconds:.1f} s training ({_count(self.steps, 'step')})"
        if self.compression is not None:
            reference = f"uncompressed: {self.whole_accuracy:.2%}; {reference}"
            training += f" and {self.compression.uncompressed_seconds:.1f} s uncompressed"
        return [
            f"test accuracy    {self.test_accuracy:.2%}   ({reference})",
            *([] if self.compression is None else self.compression.lines()),
            *([] if self.fault is None else self.fault.lines(self.weights_sha256)),
            f"final weights    {ranks} on {_count(survivors, 'rank')}",
            f"largest error    {self.max_relative_error:.1e} of the block's maximum"
            f"   ({self.compared_elements:,} sums compared with float64,"
            f" {self.error_of_bound:.2f} of the bound)",
            f"{self._who()} {self.contributions:,} contributions, {self.results:,} results"
            f"   ({self.contributions_per_second:,.0f} contributions/s,"
            f" median round trip {self.round_trip_us / 1000:.1f} ms)",
            *self._shares(),
            f"retransmissions  {self.retransmissions:,}",
            f"time             {self.seconds:.1f} s, of which {training}",
        ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
