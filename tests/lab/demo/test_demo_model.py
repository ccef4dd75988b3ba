# SPDX-License-Identifier: Apache-2.0
"""The demo's data, model, and what is measured on its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from p4reduce_lab.demo.config import CONFIG_FILE, DATA_FILE, REFERENCE_FILE, TrainingConfig
from p4reduce_lab.demo.ranks.record import (
    TensorRecorder,
    contributions_path,
    measure,
    recorded_every,
)
from p4reduce_lab.demo.training.curve import Curve
from p4reduce_lab.demo.training.data import (
    PIXEL_MAXIMUM,
    Digits,
    global_batches,
    load_digits,
    shard,
)
from p4reduce_lab.demo.training.model import Floats, Momentum, Perceptron, tensor_sizes
from p4reduce_lab.demo.training.reference import NumpyAggregator, run_reference
from p4reduce_lab.demo.training.sgd import FewerRanksError, SgdStep, train


@pytest.fixture(scope="module")
def digits() -> Digits:
    return load_digits(seed=1)


def test_the_split_is_the_whole_data_set_and_disjoint(digits: Digits) -> None:
    assert digits.train_images.shape == (1438, 64)
    assert digits.test_images.shape == (359, 64)
    assert digits.train_images.dtype == np.float32
    assert digits.train_images.min() == 0
    assert digits.train_images.max() == 1
    train = {row.tobytes() for row in digits.train_images}
    # The data set has no two equal images, so equal rows would be a leak.
    assert not any(row.tobytes() in train for row in digits.test_images)


@pytest.mark.parametrize("file_is_there", [True, False])
def test_the_images_are_those_of_scikit_learn(
    monkeypatch: pytest.MonkeyPatch, file_is_there: bool
) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    bunch = datasets.load_digits()
    rows = {row.tobytes() for row in np.column_stack((bunch.data, bunch.target))}
    if not file_is_there:
        monkeypatch.setattr(Path, "exists", lambda path: False)
    digits = load_digits(seed=5)
    images = np.concatenate((digits.train_images, digits.test_images)) * PIXEL_MAXIMUM
    labels = np.concatenate((digits.train_labels, digits.test_labels))
    assert {row.tobytes() for row in np.column_stack((images.astype(float), labels))} == rows


def test_saved_data_come_back_unchanged(digits: Digits, tmp_path: Path) -> None:
    digits.save(tmp_path / "d.npz")
    again = Digits.load(tmp_path / "d.npz")
    np.testing.assert_array_equal(again.train_images, digits.train_images)
    np.testing.assert_array_equal(again.test_labels, digits.test_labels)


def test_an_epoch_shows_each_sample_once_and_the_next_in_another_order() -> None:
    batches = list(islice(global_batches(samples=100, batch=10, seed=3), 20))
    first, second = np.concatenate(batches[:10]), np.concatenate(batches[10:])
    assert sorted(first) == list(range(100))
    assert sorted(second) == list(range(100))
    assert first.tolist() != second.tolist()


def test_batches_depend_on_the_seed_alone() -> None:
    def take(seed: int) -> list[list[int]]:
        return [batch.tolist() for batch in islice(global_batches(50, 16, seed), 7)]

    assert take(5) == take(5)
    assert take(5) != take(6)


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 16])
def test_shards_are_disjoint_complete_and_even(workers: int) -> None:
    batch = np.random.default_rng(0).permutation(128)
    shards = [shard(batch, rank, workers) for rank in range(workers)]
    assert sorted(np.concatenate(shards)) == sorted(batch)
    sizes = [len(part) for part in shards]
    assert max(sizes) - min(sizes) <= 1


def _loss(model: Perceptron, images: np.ndarray, labels: np.ndarray) -> float:
    scores = model.logits(images).astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(scores).sum(axis=1))
    return float(np.mean(log_sum - scores[np.arange(len(labels)), labels]))


def test_the_gradient_is_that_of_the_loss(digits: Digits) -> None:
    """Against central differences of an independently written loss."""
    model = Perceptron(64, 16, seed=2)
    model.parameters = model.parameters.astype(np.float64)  # type: ignore[assignment]
    images, labels = digits.train_images[:40].astype(np.float64), digits.train_labels[:40]
    gradient = np.zeros(model.parameters.shape, np.float64)
    tensors = dict(model.backward(images, labels, len(images), gradient))  # type: ignore[arg-type]
    assert tensors["loss"][0] == pytest.approx(_loss(model, images, labels), rel=1e-6)
    width = 1e-5
    chosen = np.random.default_rng(4).choice(len(gradient), 60, replace=False)
    for index in (*chosen, len(gradient) - 1):
        kept = model.parameters[index]
        model.parameters[index] = kept + width
        above = _loss(model, images, labels)
        model.parameters[index] = kept - width
        below = _loss(model, images, labels)
        model.parameters[index] = kept
        assert gradient[index] == pytest.approx((above - below) / (2 * width), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_the_shards_gradients_add_up_to_the_batchs(digits: Digits, workers: int) -> None:
    model = Perceptron(64, 32, seed=2)
    batch = np.arange(100)

    def part(indices: np.ndarray) -> tuple[np.ndarray, float]:
        gradient = np.zeros_like(model.parameters)
        images, labels = digits.train_images[indices], digits.train_labels[indices]
        tensors = dict(model.backward(images, labels, len(batch), gradient))
        return gradient, float(tensors["loss"][0])

    whole, loss = part(batch)
    parts = [part(shard(batch, rank, workers)) for rank in range(workers)]
    np.testing.assert_allclose(sum(gradient for gradient, _ in parts), whole, atol=1e-6)
    assert sum(loss for _, loss in parts) == pytest.approx(loss, rel=1e-5)


def test_backward_yields_the_tensors_that_tensor_sizes_names(digits: Digits) -> None:
    model = Perceptron(64, 32, seed=1)
    gradient = np.full_like(model.parameters, np.nan)
    tensors = model.backward(digits.train_images[:9], digits.train_labels[:9], 9, gradient)
    assert [(name, tensor.size) for name, tensor in tensors] == list(tensor_sizes(64, 32).items())
    assert np.isfinite(gradient).all(), "a part of the gradient was not written"


def test_momentum_is_heavy_ball() -> None:
    parameters = np.array([1.0], np.float32)
    optimiser = Momentum(parameters, learning_rate=0.5, momentum=0.5)
    optimiser.step(np.array([2.0], np.float32))  # v = 2
    optimiser.step(np.array([1.0], np.float32))  # v = 2
    assert parameters[0] == 1 - 0.5 * 2 - 0.5 * 2


@pytest.mark.long
def test_the_reference_learns_and_does_not_depend_on_the_number_of_workers(
    digits: Digits,
) -> None:
    _, one = train(TrainingConfig(workers=1), digits, NumpyAggregator(1))
    _, five = train(TrainingConfig(workers=5), digits, NumpyAggregator(5))
    assert one.accuracies[-1] > 0.95
    assert abs(one.accuracies[-1] - five.accuracies[-1]) <= 0.005
    assert one.losses[-1] < 0.1 < 2 < one.losses[0]
    assert one.accuracy_steps[-1] == 330


def test_ranks_that_lose_one_go_on_from_rank_0s_state(digits: Digits) -> None:
    """The loss comes in step 3; rank 0 had finished it, so this rank takes over its state and goes
    on with step 4: no step is done twice, none is left out."""
    config = TrainingConfig(workers=1, steps=6)
    expected, _ = train(config, digits, NumpyAggregator(1))
    ahead, _ = train(replace(config, steps=3), digits, NumpyAggregator(1))
    seen = []

    class Losing(NumpyAggregator):
        def aggregate(self, step: SgdStep, gradient: Floats) -> float:
            seen.append(step.number)
            if step.number == 2 and seen.count(2) == 1:
                gradient[:] = np.nan  # what an all-reduce that was cut off may leave
                raise FewerRanksError(self._adopt)
            return super().aggregate(step, gradient)

        def _adopt(self, done: int, state: Sequence[Floats]) -> int:
            parameters, velocity = state
            before = parameters.copy()
            parameters[:] = ahead.parameters
            # Momentum's velocity follows from one step: p3 = p2 - rate * v3.
            velocity[:] = (before - ahead.parameters) / np.float32(config.learning_rate)
            return done + 1

    model, curve = train(config, digits, Losing(1))
    assert seen == [0, 1, 2, 3, 4, 5]
    assert len(curve.losses) == 5
    np.testing.assert_allclose(model.parameters, expected.parameters, rtol=1e-3, atol=1e-5)


def test_the_reference_leaves_its_curve(digits: Digits, tmp_path: Path) -> None:
    TrainingConfig(steps=7).save(tmp_path / CONFIG_FILE)
    digits.save(tmp_path / DATA_FILE)
    run_reference(tmp_path)
    curve = Curve.load(tmp_path / REFERENCE_FILE)
    assert len(curve.losses) == 7
    assert curve.accuracy_steps == [5, 7], "the last step is always looked at"


def test_configurations_come_back_unchanged(tmp_path: Path) -> None:
    config = TrainingConfig(workers=3, steps=7, learning_rate=0.25)
    config.save(tmp_path / "c.json")
    assert TrainingConfig.load(tmp_path / "c.json") == config


# -- Records ------------------------------------------------------------------------------------


def _record(directory: Path, results_error: float, zero_block_error: float = 0.0) -> list[int]:
    """Two ranks, three steps, tensors of 1, 300 and 256 elements; one block of zeros. The result
    of one element is off by ``results_error`` times its block's largest sum."""
    sizes = [1, 300, 256]
    generator = np.random.default_rng(8)
    contributions = generator.standard_normal((2, 3, sum(sizes))).astype(np.float32)
    contributions[:, :, 301:] = 0
    exact = contributions.sum(axis=0, dtype=np.float64)
    results = exact.copy()
    block = slice(1 + 256, 1 + 300)  # the second, shorter block of the second tensor
    results[2, 1 + 260] += results_error * np.abs(exact[2, block]).max()
    results[1, 301] = zero_block_error
    for rank in range(2):
        recorder = TensorRecorder(directory, rank, steps=3, size=sum(sizes))
        for step in range(3):
            start = 0
            for size in sizes:
                part = slice(start, start + size)
                recorder.contribution(step, start, contributions[rank, step, part])
                recorder.result(step, start, results[step, part].astype(np.float32))
                start += size
    return sizes


def test_exact_results_measure_as_float32_rounding(tmp_path: Path) -> None:
    sizes = _record(tmp_path, results_error=0)
    accuracy = measure(tmp_path, workers=2, sizes=sizes)
    assert accuracy.maximum <= 2**-24
    assert accuracy.of_bound < 1
    assert accuracy.elements == 3 * sum(sizes)


def test_the_error_is_relative_to_its_own_blocks_maximum(tmp_path: Path) -> None:
    sizes = _record(tmp_path, results_error=1e-3)
    accuracy = measure(tmp_path, 2, sizes)
    assert accuracy.maximum == pytest.approx(1e-3, rel=1e-3)
    assert accuracy.of_bound > 1e3
    # With int8 lanes a sum may be off by a tenth of the largest number.
    assert measure(tmp_path, 2, sizes, {0: "int8", 1: "int8", 2: "int8"}).of_bound < 1


def test_anything_but_zero_in_a_block_of_zeros_is_an_infinite_error(tmp_path: Path) -> None:
    sizes = _record(tmp_path, results_error=0, zero_block_error=1e-30)
    assert measure(tmp_path, 2, sizes).maximum == np.inf


def test_a_nan_is_not_overlooked(tmp_path: Path) -> None:
    sizes = _record(tmp_path, results_error=np.nan)
    accuracy = measure(tmp_path, 2, sizes)
    assert np.isnan(accuracy.maximum)
    assert np.isnan(accuracy.of_bound)


def test_a_nan_that_was_sent_is_not_overlooked_either(tmp_path: Path) -> None:
    sizes = _record(tmp_path, results_error=0)
    rows = np.load(contributions_path(tmp_path, 1), mmap_mode="r+")
    rows[1, 5] = np.nan
    rows.flush()
    accuracy = measure(tmp_path, 2, sizes)
    assert np.isnan(accuracy.maximum)
    assert np.isnan(accuracy.of_bound)


def test_the_digest_tells_results_apart(tmp_path: Path) -> None:
    digests = set()
    for last in (1.0, 2.0):
        recorder = TensorRecorder(tmp_path, rank=1, steps=2, size=2)
        recorder.result(0, 0, np.array([0, 1], np.float32))
        recorder.result(1, 0, np.array([0, last], np.float32))
        digests.add(recorder.digest())
    assert len(digests) == 2


def test_a_long_training_is_sampled() -> None:
    assert recorded_every(330) == 1
    assert recorded_every(401) == 2
    assert recorded_every(4000) == 10
