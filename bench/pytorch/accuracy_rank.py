# SPDX-License-Identifier: Apache-2.0
"""One rank of `bench.pytorch.accuracy`: trains with one method after the other, and reports.

An ordinary training with DistributedDataParallel. What a method is made of is in `METHODS`; the
rest is the same for all. All ranks have the same weights, so all stop after the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from p4reduce_lab.compare.rank import interface_bytes
from p4reduce_lab.demo.training.data import load_digits
from p4reduce_lab.networks.mininet_net import HOST_INTERFACE
from p4reduce_lab.networks.shaped import BRIDGE_INTERFACE
from p4reduce_lab.torch_demo.train import network
from torch import nn

from bench.pytorch.over_links import in_one_bucket, join

EVERY = 5  # steps between two looks at the test data
ALONE = 40  # steps of ranks that sum nothing

WORDS, WIDTH, TOKENS, CLASSES = 20_000, 64, 12, 4
POPULARITY = 1.2  # Zipf's exponent of the words


def _plain(model: Any, seed: int) -> None:
    """No hook: the backend's all_reduce."""


def _half(model: Any, seed: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def _power_sgd(model: Any, seed: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=seed
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _hook(name: str, **options: Any) -> Callable[[Any, int], None]:
    def register(model: Any, seed: int) -> None:
        from p4reduce.torch import hooks

        model.register_comm_hook(hooks.HookState(seed=seed, **options), getattr(hooks, name))

    return register


_INT8 = _hook("int8_hook", error_feedback=True)


@dataclass(frozen=True)
class Method:
    """How gradients are summed.

    Attributes:
        backend: of torch.distributed.
        models: which ones it is for.
        most_ranks: that it is for.
        register: gives DDP its hook.
        sparse: whether the embedding's gradients are.
        momentum: whether SGD has any. What error feedback keeps back is a momentum already
            (docs/experiments.md), so where most of a gradient is, it is left out, and the rate is
            the one that momentum comes to in the long run.
        every: steps between two averages of models, which are summed in place of gradients; 0:
            gradients are summed in each step.
        compressor: of these averages.
        rate: of SGD; None: the task's own optimiser.
        alone: whether ranks sum nothing, and only wait for the last one every few steps: what
            computing takes on this machine.
    """

    backend: str
    models: tuple[str, ...]
    register: Callable[[Any, int], None]
    sparse: bool = False
    momentum: bool = True
    every: int = 0
    compressor: str = "none"
    most_ranks: int = 64
    rate: float | None = None
    alone: bool = False


_DENSE = ("mlp", "cnn")
_ALL = (*_DENSE, "embedding")
_GLOO, _OURS = partial(Method, "gloo"), partial(Method, "p4reduce")


def _compressed(compressor: str) -> Callable[[Any, int], None]:
    return _hook("compressed_hook", compressor=compressor)


_LOCAL = {
    f"{name}, H = {every}": Method(
        backend, _ALL, _plain, sparse=True, every=every, compressor=compressor
    )
    for every in (8, 16, 32)
    for backend, name, compressor in (
        ("gloo", "Gloo, local SGD", "none"),
        ("gloo", "Gloo, local SGD, fp16", "int16"),
        ("gloo", "Gloo, PowerSGD 8, fp16", "powersgd:8/int16"),
        ("p4reduce", "p4reduce int8", "int8"),
        ("p4reduce", "p4reduce PowerSGD 8, int8", "powersgd:8/int8"),
    )
}
"""Averages of models. "sparse" is of the embedding's gradients on the rank itself."""

METHODS = {
    "Gloo float32": _GLOO(_DENSE, _plain),
    "Gloo, fp16 hook": _GLOO(_DENSE, _half),
    "Gloo, PowerSGD": _GLOO(_DENSE, _power_sgd),
    "Gloo, PowerSGD, fp16, H = 8": _GLOO(_DENSE, _plain, every=8, compressor="powersgd:4/int16"),
    "p4reduce float32": _OURS(_DENSE, _plain),
    "p4reduce int8, feedback": _OURS(_DENSE, _INT8),
    "p4reduce int4, feedback": _OURS(_DENSE, _hook("int4_hook", error_feedback=True), most_ranks=7),
    "p4reduce signs, feedback": _OURS(_DENSE, _hook("onebit_hook"), most_ranks=7),
    "p4reduce CAT": _OURS(_DENSE, _hook("cat_hook"), momentum=False),
    "p4reduce PowerSGD, int16": _OURS(_DENSE, _compressed("powersgd:2/int16")),
    "p4reduce GradiVeQ, int16": _OURS(_DENSE, _compressed("gradiveq:32/int16")),
    "p4reduce PowerSGD, int8, H = 8": _OURS(_DENSE, _plain, every=8, compressor="powersgd:4/int8"),
    **_LOCAL,
    "computing alone": _GLOO(_ALL, _plain, sparse=True, every=8, alone=True),
    "Gloo, dense": _GLOO(("embedding",), _plain),
    "Gloo, sparse": _GLOO(("embedding",), _plain, sparse=True),
    "p4reduce, dense": _OURS(("embedding",), _plain),
    "p4reduce, sparse": _OURS(("embedding",), _plain, sparse=True),
    "p4reduce, sparse, int8": _OURS(("embedding",), _hook("int8_hook"), sparse=True),
}

_FEW: dict[str, Any] = {"momentum": False, "most_ranks": 7}
LANES: dict[str, Method] = {
    "Gloo, float32": _GLOO(_DENSE, _plain, rate=0.1),
    "Gloo, float16": _GLOO(_DENSE, _half, rate=0.1),
    "int32": _OURS(_DENSE, _plain, rate=0.1),
    "int16": _OURS(_DENSE, _hook("int16_hook"), rate=0.1),
    "int8, feedback": _OURS(_DENSE, _INT8, rate=0.1),
    "int4": _OURS(_DENSE, _hook("int4_hook"), most_ranks=7, rate=0.05),
    "int4, no momentum": _OURS(_DENSE, _hook("int4_hook"), **_FEW, rate=0.3),
    "signs, feedback, no momentum": _OURS(_DENSE, _hook("onebit_hook"), **_FEW, rate=1.0),
    "votes, no momentum": _OURS(_DENSE, _hook("majority_hook"), **_FEW, rate=0.01),
}
"""Those of `bench.pytorch.narrow`."""


@dataclass(frozen=True)
class Task:
    """A model with its data.

    Attributes:
        network: makes it, with sparse gradients or not.
        batch: draws a rank's batch: inputs and labels.
        test: inputs and labels that are not trained on.
        optimiser: of the parameters, with momentum or without.
        target: accuracy to be reached.
    """

    network: Callable[[bool], nn.Module]
    batch: Callable[[torch.Generator], tuple[torch.Tensor, torch.Tensor]]
    test: tuple[torch.Tensor, torch.Tensor]
    optimiser: Callable[[Any, bool], torch.optim.Optimizer]
    target: float


def _sgd(parameters: Any, momentum: bool) -> torch.optim.Optimizer:
    if momentum:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return torch.optim.SGD(parameters, lr=0.05 / (1 - 0.9))


def _digits(seed: int, shape: Sequence[int], network: Callable[[bool], nn.Module]) -> Task:
    """A task of scikit-learn's digits, whose images have a shape."""
    digits = load_digits(seed)
    names = ("train_images", "train_labels", "test_images", "test_labels")
    images, labels, test, answers = (torch.from_numpy(getattr(digits, name)) for name in names)
    images = images.reshape(-1, *shape).float()

    def batch(draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.randint(len(images), (16,), generator=draw)
        return images[chosen], labels[chosen]

    return Task(network, batch, (test.reshape(-1, *shape).float(), answers), _sgd, target=0.93)


def mlp_task(seed: int) -> Task:
    """About a million parameters on scikit-learn's digits."""

    def perceptron(sparse: bool) -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 896), nn.ReLU(), nn.Linear(896, 10)
        )

    return _digits(seed, (64,), perceptron)


def cnn_task(seed: int) -> Task:
    """The network of `make run FRAMEWORK=torch`, on scikit-learn's digits."""
    return _digits(seed, (1, 8, 8), lambda sparse: network())


def embedding_task(seed: int) -> Task:
    """A bag of words, of which few are in a batch: synthetic, with words as popular as in texts."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, WORDS + 1) ** POPULARITY
    popularity /= popularity.sum()
    meaning = rng.standard_normal((WORDS, CLASSES)).astype(np.float32)

    def draw_texts(number: int, with_: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        words = with_.choice(WORDS, (number, TOKENS), p=popularity)
        return torch.from_numpy(words), torch.from_numpy(meaning[words].sum(axis=1).argmax(axis=1))

    def batch(draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        number = int(torch.randint(1 << 31, (1,), generator=draw))
        return draw_texts(16, np.random.default_rng(number))

    def bag_of_words(sparse: bool) -> nn.Module:
        bag = nn.EmbeddingBag(WORDS, WIDTH, mode="mean", sparse=sparse)
        nn.init.normal_(bag.weight, std=0.1)
        return nn.Sequential(bag, nn.Linear(WIDTH, CLASSES))

    # Words differ so much in how often they come that each needs a rate of its own.
    return Task(
        bag_of_words,
        batch,
        draw_texts(2000, rng),
        lambda parameters, momentum: torch.optim.Adagrad(parameters, lr=0.1),
        target=0.7,
    )


TASKS = {"mlp": mlp_task, "cnn": cnn_task, "embedding": embedding_task}


def train(name: str, model_name: str, seed: int, most_steps: int) -> dict[str, Any]:
    """Train until the target, or for `most_steps`. The clock stands while the test data is used.

    Between two averages the ranks' models differ, so they are looked at after an average. The ranks
    continue together, or a step would contain what the others take to look.
    """
    method = (METHODS | LANES)[name]
    task = TASKS[model_name](seed)
    torch.manual_seed(seed)
    model, optimiser = prepared(method, task, seed)
    draw = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    curve = [(0, 0.0, *_look(model, task))]
    dist.barrier()
    before = _bytes()
    apart = np.zeros(2)  # bytes of the barriers
    seconds, reached = 0.0, None
    for step in range(1, (ALONE if method.alone else most_steps) + 1):
        inputs, labels = task.batch(draw)
        began = time.perf_counter()
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
        if method.alone and step % method.every == 0:
            dist.barrier()  # a sum would wait for the last rank as well
        seconds += time.perf_counter() - began
        if step % (method.every or EVERY) == 0:
            curve.append((step, seconds, *_look(model, task)))
            # Models that are not averaged differ, so their ranks would end at different steps.
            if curve[-1][3] >= task.target and not method.alone:
                reached = seconds
                break
            unmoved = _bytes()
            dist.barrier()
            apart += _bytes() - unmoved
    dist.barrier()
    moved = _bytes() - before - apart
    steps = curve[-1][0]
    return {
        "method": name,
        "model": model_name,
        "seed": seed,
        "seconds": reached,
        "steps": steps,
        "step_ms": 1e3 * seconds / steps,
        "accuracy": curve[-1][3],
        "target": task.target,
        "megabytes_up": float(moved[0]) / 1e6,
        "megabytes_down": float(moved[1]) / 1e6,
        "parameters": sum(one.numel() for one in model.parameters()),
        "curve": curve,
    }


def prepared(method: Method, task: Task, seed: int) -> tuple[Any, Any]:
    """The model with its optimiser, whose gradients or averages are summed as the method says."""
    network = task.network(method.sparse)
    if method.alone:
        return network, task.optimiser(network.parameters(), method.momentum)
    if not method.every:
        model = in_one_bucket(network)
        method.register(model, seed)
        if method.rate is not None:
            momentum = 0.9 if method.momentum else 0.0
            return model, torch.optim.SGD(model.parameters(), method.rate, momentum)
        return model, task.optimiser(model.parameters(), method.momentum)
    inner = task.optimiser(network.parameters(), method.momentum)
    if method.backend == "gloo":
        from bench.pytorch.averaging import GlooLocalSGD

        return network, GlooLocalSGD(inner, method.every, method.compressor)
    from p4reduce.torch import LocalSGD

    return network, LocalSGD(inner, method.every, compressor=method.compressor)


def _look(model: Any, task: Task) -> tuple[float, float]:
    """Loss and accuracy on the test data."""
    inputs, labels = task.test
    with torch.no_grad():
        answers = getattr(model, "module", model)(inputs)
        loss = float(nn.functional.cross_entropy(answers, labels))
        return loss, float((answers.argmax(1) == labels).float().mean())


def _bytes() -> Any:
    """What this rank's two links have moved, up and down."""
    return np.sum([interface_bytes(name) for name in (HOST_INTERFACE, BRIDGE_INTERFACE)], axis=0)


def train_all(
    backend: str, store: str, methods: list[str], models: list[str], seeds: int, steps: int
) -> list[dict[str, Any]]:
    """Train with each method that is for a model, with each seed; return all runs."""
    join(backend, store)
    runs = [
        train(name, model, seed, steps)
        for model in models
        for seed in range(seeds)
        for name in methods
        if model in (METHODS | LANES)[name].models
    ]
    dist.destroy_process_group()
    return runs
