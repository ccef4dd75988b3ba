# SPDX-License-Identifier: Apache-2.0
"""FedBCD: features are split among parties, one of which has the labels; Q steps per exchange.

Liu, Kang, Zhang, Li, Cheng, Chen, Hong and Yang, "A Communication Efficient Collaborative Learning
Framework for Distributed Features", arXiv 1912.11187. Party k has features X_k and the block θ_k of
the model. With H_k = X_k θ_k and H = Σ H_k, they minimise

    F(θ) = 1/N Σ_i loss(H_i; y_i) + λ/2 ‖θ‖²

by blocks: ∇_k F = X_kᵀ d + λ θ_k with d_i = loss'(H_i; y_i)/N, which the party with the labels
computes.

- FedBCD-p, in parallel: H is summed, d is returned, and all parties take Q steps. The label party
  computes d again at each of its steps, from the others' stale part H − H_k. The others have no
  labels and keep the stale d.
- FedBCD-s, in sequence: party after party takes its Q steps, each with a d that knows of the
  earlier ones. A round is one turn of every party.

FedBCD-p and FedBCD-s are the names of the paper's two algorithms. Steps here are on all samples, or
on batches that all parties draw alike.

What is seen, with logistic loss:

- Every party receives H, as a sum goes to all ranks, and d, whose sign is the label. So parties
  without labels learn them. With two parties H − H_k is the other's H, and N of its equations in
  its X_k and θ_k follow per round.
- The switch sees every H_k, and d. With `hidden` it sees uniform bytes (`masks.py`): H and d are
  then summed as integers, with a unit that follows from `largest`, not from the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from p4reduce.methods._begin import begin
from p4reduce.methods._checks import at_least, first_of, positive, real
from p4reduce.methods._communicator import Array, Comm, Watch, nobody
from p4reduce.methods._finite import held
from p4reduce.methods.masks import Masks
from p4reduce.methods.result import CountedComm, Result, SolverProgress

LARGEST = 64.0
"""A logit that is never left: beyond, σ is 0 or 1 in float64 to all digits."""

Rows = slice | npt.NDArray[np.int64]


class Party:
    """A `RankData`: some features of all samples, and maybe their labels.

    Args:
        features: X_k, shape (samples, own features).
        labels: y, shape (samples,): −1 or 1 for logistic loss, numbers for squares. None at all
            parties but one.
        squares: whether the loss is (h − y)²/2, not log(1 + exp(−y·h)).
    """

    def __init__(
        self, features: Array, labels: Array | None = None, *, squares: bool = False
    ) -> None:
        self._trouble = ""
        try:
            self.features = real(features)
            self.labels = None if labels is None else real(labels)
        except (TypeError, ValueError) as error:
            self.features, self.labels = np.zeros((0, 0)), None
            self._trouble = f"features or labels are not arrays of numbers: {error}"
        self.squares = squares
        self.size = len(self.features) if self.features.ndim else 0

    def trouble(self) -> str:
        """Return what is wrong with it; empty if nothing is."""
        features, labels = self.features, self.labels
        if self._trouble:
            return self._trouble
        if features.ndim != 2:
            return f"features have shape {features.shape}: (samples, features) is needed"
        if not features.size:
            return f"features have shape {features.shape}: there is nothing among them"
        if not np.isfinite(features).all():
            return "NaN or infinity is among the features"
        if labels is None:
            return ""
        if labels.shape != (len(features),):
            return f"labels have shape {labels.shape}: {(len(features),)} is needed"
        if not np.isfinite(labels).all():
            return "NaN or infinity is among the labels"
        if not self.squares and not np.isin(labels, (-1.0, 1.0)).all():
            return "labels are not all -1 or 1"
        return ""

    def slope(self, logits: Array, rows: Rows) -> Array:
        """Return d of some samples, with the shape of the logits H: loss'(H; y)/N for N samples."""
        assert self.labels is not None
        labels = self.labels[rows]
        if self.squares:
            return np.asarray((logits - labels) / len(labels))  # of (h − y)²/2
        return np.asarray(-labels * 0.5 * (1 - np.tanh(0.5 * labels * logits)) / len(labels))


@dataclass(frozen=True)
class FedBCDSettings:
    """Settings of FedBCD, equal on all ranks.

    Attributes:
        rate: of a step; below 1/L for L the smoothness of F.
        rounds: exchanges.
        local_steps: Q.
        penalty: λ.
        batch: samples per round, drawn by `seed`; 0: all.
        seed: of batches.
        hidden: whether sums are masked.
        largest: with `hidden`, a bound of every party's |H_i|, and for squares of |d_i|.
    """

    rate: float
    rounds: int
    local_steps: int = 1
    penalty: float = 0.0
    batch: int = 0
    seed: int = 0
    hidden: bool = False
    largest: float = LARGEST

    def trouble(self, samples: int) -> str:
        """Return what is wrong with them; empty if nothing is."""
        return first_of(
            positive("rate", self.rate),
            at_least("rounds", self.rounds, 1),
            at_least("local_steps", self.local_steps, 1),
            "" if self.penalty == 0 else positive("penalty", self.penalty),
            positive("largest", self.largest),
            at_least("seed", self.seed, 0),
            ""
            if 0 <= self.batch <= samples
            else f"batch={self.batch}: 0 to {samples} samples are needed",
        )

    def batches(self, samples: int) -> Iterator[Rows]:
        """Return the samples of each round, equal on all ranks."""
        random = np.random.default_rng(self.seed)
        for _ in range(self.rounds):
            yield random.choice(samples, self.batch, replace=False) if self.batch else slice(None)


def fedbcd_p(
    comm: Comm, party: Party, settings: FedBCDSettings, *, watch: Watch = nobody
) -> Result:
    """Minimise F, all parties at once.

    Args:
        comm: the parties; rank k is party k.
        party: this rank's features, and the labels at one rank.
        settings: the same on all ranks.
        watch: called at each round, with θ_k.

    Returns:
        The model is this party's block θ_k, shape (own features,).

    Raises:
        ValueError: on all ranks, if one has bad data or settings, or if not exactly one has labels.
    """
    return _run(comm, "fedbcd-p", party, _parallel, settings, watch)


def fedbcd_s(
    comm: Comm, party: Party, settings: FedBCDSettings, *, watch: Watch = nobody
) -> Result:
    """Minimise F, party after party. Arguments, result and errors are those of `fedbcd_p`."""
    return _run(comm, "fedbcd-s", party, _sequential, settings, watch)


Sum = Callable[[Array, float, str], Array]  # of arrays within a bound
Round = Callable[["_FedBCDState", Rows], None]


@dataclass
class _FedBCDState:
    comm: Comm
    party: Party
    settings: FedBCDSettings
    sum: Sum
    block: Array  # θ_k

    def logits(self, rows: Rows) -> tuple[Array, Array]:
        """This party's H_k, and all parties' H."""
        own = np.asarray(self.party.features[rows] @ self.block)
        total = self.sum(own, self.settings.largest, "fedbcd/H")
        if not np.isfinite(total).all():
            raise ValueError(
                f"fedbcd: the models diverge: a smaller rate than {self.settings.rate:g} or fewer "
                f"local steps than {self.settings.local_steps} are needed"
            )
        return own, total

    def steps(self, rows: Rows, slope: Array, others: Array) -> None:
        """Take Q steps: with labels on a d that follows this party's own H_k, else on a stale d."""
        features, settings = self.party.features[rows], self.settings
        for _ in range(settings.local_steps):
            if self.party.labels is not None:
                slope = self.party.slope(others + features @ self.block, rows)
            gradient = features.T @ slope + settings.penalty * self.block  # ∇_k F
            self.block = self.block - settings.rate * gradient

    def returned(self, logits: Array, rows: Rows) -> Array:
        """d, from the party with the labels to all: a sum in which the others have zeros."""
        own = np.zeros_like(logits)
        if self.party.labels is not None:
            own = self.party.slope(logits, rows)
        bound = self.settings.largest if self.party.squares else 1 / len(logits)
        return self.sum(own, bound, "fedbcd/d")


def _parallel(state: _FedBCDState, rows: Rows) -> None:
    own, logits = state.logits(rows)
    state.steps(rows, state.returned(logits, rows), logits - own)


def _sequential(state: _FedBCDState, rows: Rows) -> None:
    features = state.party.features[rows]
    _, logits = state.logits(rows)
    for turn in range(state.comm.size):
        slope = state.returned(logits, rows)
        before = features @ state.block
        if turn == state.comm.rank:
            state.steps(rows, slope, logits - before)
        if turn < state.comm.size - 1:  # what the last one moves is in the next round's sum
            moved = features @ state.block - before
            logits = logits + state.sum(moved, state.settings.largest, "fedbcd/change of H")


def _run(
    comm: Comm, method: str, party: Party, round_: Round, settings: FedBCDSettings, watch: Watch
) -> Result:
    comm = CountedComm(comm)
    gathered = begin(
        comm,
        method,
        party,
        asdict(settings),
        settings.trouble(party.size),
        facts={"labels": party.labels is not None, "squares": party.squares},
        counted="samples",
    )
    having = np.flatnonzero(gathered["labels"]).tolist()
    if len(having) != 1:
        who = f"ranks {having} have" if having else "no rank has"
        raise ValueError(f"{method}: {who} labels; exactly one needs them")
    if (gathered["squares"] != gathered["squares"][0]).any():
        raise ValueError(f"{method}: the ranks have different losses")
    state = _FedBCDState(
        comm, party, settings, _sums(comm, settings), np.zeros(party.features.shape[1])
    )
    progress = SolverProgress(comm, state.block, watch)
    for number, rows in enumerate(settings.batches(party.size), 1):
        round_(state, rows)
        if progress.ends(number, state.block):
            break
    return progress.result()


def _sums(comm: Comm, settings: FedBCDSettings) -> Sum:
    """How arrays are summed: as they are, or hidden by masks."""
    if not settings.hidden:
        return lambda mine, _bound, name: np.asarray(comm.allreduce(held(mine), name=name))
    return Masks(comm).sum
