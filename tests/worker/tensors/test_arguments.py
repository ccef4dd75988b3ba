# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of all that users call: an error that names the argument and its value."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import p4reduce
import pytest
from option_names import taken
from p4reduce import Communicator, SparseBlocks, SparseRows
from p4reduce.options import CommunicatorOptions
from p4reduce.session.session import Session
from p4reduce.tensors import plans
from p4reduce.tensors.stream import Collective
from worker_system import NO_OPERATION

ONES = np.ones(3, np.float32)
ROWS = SparseRows([1], ONES[:1], (3,))
MASKED = np.ma.masked_array(ONES, [False, True, False])
# What each call takes where nothing is wrong, in a job of one rank.
CALLS: dict[str, dict[str, Any]] = {
    "allreduce": {"array": ONES},
    "allreduce_sparse": {"array": ROWS},
    "grouped_allreduce": {"arrays": [ONES]},
    "broadcast": {"array": ONES},
    "reduce": {"array": ONES},
    "reduce_scatter": {"array": ONES},
    "allgather": {"array": ONES, "counts": [3]},
    "barrier": {},
    "reform": {},
}
# close takes nothing; wrong arguments of the others are told to all ranks (test_groups_e2e.py).
NOT_ARGUED = {"awaiting", "close", "dup", "partial_sums", "spans", "split", "trace"}

# Wrong values of each parameter, with what the text has; None: parameter=value.
Wrong = tuple[Any, type[Exception], str | None]
NO_COUNT: list[Wrong] = [("2", TypeError, None), (2.0, TypeError, None), (True, TypeError, None)]
NO_SECONDS: list[Wrong] = [
    ("x", TypeError, None),
    (True, TypeError, None),
    (1j, TypeError, None),
    (-1.0, ValueError, None),
    (math.nan, ValueError, None),
    (math.inf, ValueError, None),
]
WRONG: dict[str, list[Wrong]] = {
    "residual": [(np.zeros(3, np.float32), ValueError, "residual needs floats with precision")],
    "array": [
        ([1.0], TypeError, "array=[1.0]"),
        (5, TypeError, "array=5"),
        (np.array([None]), TypeError, "object"),
        (MASKED, TypeError, "array"),
    ],
    "arrays": [
        (5, TypeError, None),
        ("ab", TypeError, None),
        ([ONES, 5], TypeError, "array=5"),
        ([MASKED], TypeError, "array is a masked array"),
    ],
    "op": [
        (NO_OPERATION, ValueError, f"op='{NO_OPERATION}': 'sum' or 'mean' is needed"),
        ("", ValueError, None),
        (b"sum", TypeError, None),
        (0, TypeError, None),
        (None, TypeError, None),
    ],
    "name": [(5, TypeError, None), (b"x", TypeError, None)],
    "names": [
        (5, TypeError, None),
        ("a", TypeError, None),
        ([5], TypeError, "name=5"),
        (["a", "b"], ValueError, None),
    ],
    "out": [
        ([0.0], TypeError, "out=[0.0]"),
        (np.ones(7, np.float32), ValueError, "out has shape (7,)"),
        (np.ma.masked_array(np.ones(3, np.float32)), TypeError, "out is a masked array"),
    ],
    "outs": [
        (5, TypeError, None),
        ([ONES, ONES], ValueError, "outs="),
        ([5], TypeError, "out=5"),
    ],
    "timeout": [*NO_SECONDS, (0, ValueError, None)],
    "precision": [(16, ValueError, None), ("int2", ValueError, None)],
    "seed": [*NO_COUNT, (-1, ValueError, None)],
    "priority": [
        *((value, TypeError, None) for value in (5.0, True)),
        *((value, ValueError, None) for value in ("soon", 8, -1)),
    ],
    "deadline": [wrong for wrong in NO_SECONDS if wrong[0] != math.inf],
    "at_least": [(2, ValueError, "at_least and feedback need a deadline")],
    "feedback": [(True, ValueError, "at_least and feedback need a deadline")],
    "agree": [(5, TypeError, None), ("yes", TypeError, None)],
    "root": [*NO_COUNT, (1, ValueError, None), (-1, ValueError, None)],
    "counts": [
        (3, TypeError, None),
        ("3", TypeError, None),
        ([3.0], TypeError, None),
        ([True], TypeError, None),
        ([-1], ValueError, None),
        ([1, 2], ValueError, None),
        ([2], ValueError, None),
    ],
    "fusion_threshold": [*NO_COUNT, (-1, ValueError, None)],
    "dense": [("no", TypeError, None), (1, TypeError, None)],
    "world_size": [*NO_COUNT, (0, ValueError, None), (4097, ValueError, None)],
}
# And of init; what launchers can say as well is told as a setting.
WRONG_INIT: dict[str, list[Wrong]] = {
    "rank": [*NO_COUNT, (5, ValueError, "rank 5"), (-1, ValueError, "rank -1")],
    "world_size": [
        *NO_COUNT,
        (0, ValueError, "world size 0"),
        (4097, ValueError, "world size 4097"),
    ],
    "controller": [
        (5, TypeError, None),
        ("foo", ValueError, "controller=foo"),
        ("foo:x", ValueError, "controller=foo:x"),
        ("unix:", ValueError, "controller=unix:"),
    ],
    "job": [
        (5, TypeError, None),
        ("", ValueError, None),
        ("a\nb", ValueError, None),
        ("x" * 101, ValueError, None),
    ],
    "timeout": [*NO_SECONDS, (0, ValueError, None), (None, TypeError, None)],
    "interface": [(5, TypeError, None), ("unix:/{x}", ValueError, "interface 'unix:/{x}'")],
    "slots": [*NO_COUNT, *((number, ValueError, None) for number in (0, -3, 1025))],
    "urgent_slots": [
        *NO_COUNT,
        *((number, ValueError, None) for number in (-1, 1024)),
        *((numbers, ValueError, None) for numbers in ([1, 0], [1000, 24], [1] * 8)),
        ([2, "3"], TypeError, None),
    ],
    "recover": [("no", TypeError, None), (1, TypeError, None), (None, TypeError, None)],
    "fallback": [(5, TypeError, None), ("star", ValueError, None)],
    "fallback_after": NO_SECONDS,
    "ring_address": [(5, TypeError, None)],
    "check": [(5, TypeError, None)],
    "engine": [("fast", ValueError, None)],
    "check_shapes": [(5, TypeError, None), ("no", TypeError, None)],
    "network": [
        ("unix:/nowhere", TypeError, None),
        ({"P4REDUCE_CONTROLLER": 5}, TypeError, None),
    ],
}


def parameters(function: Any) -> set[str]:
    """Names of parameters, and of the options that `**options` takes."""
    return set(taken(inspect.signature(function))) - {"self"}


def method_cases() -> Iterator[Any]:
    for call, arguments in CALLS.items():
        for name in (call, f"{call}_async"):
            method = getattr(Communicator, name, None)
            for parameter in sorted(parameters(method)) if method else ():
                yield pytest.param(name, arguments, parameter, id=f"{name}-{parameter}")


class Nobody:
    """A session to which nothing may come."""

    rank, world_size, slots, job, broken, shares_link = 0, 1, 32, "job", None, False

    def submit(self, collective: Collective) -> None:
        raise AssertionError("it was not refused")

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass


@pytest.fixture
def comm() -> Communicator:
    return Communicator(cast(Session, Nobody()), CommunicatorOptions(30.0))


def check(wrong: Wrong, parameter: str, error: BaseException) -> None:
    value, _, text = wrong
    assert (f"{parameter}={value!r}" if text is None else text) in str(error)


@pytest.mark.parametrize(("method", "arguments", "parameter"), list(method_cases()))
def test_a_wrong_argument_is_named_with_its_value(
    comm: Communicator, method: str, arguments: dict[str, Any], parameter: str
) -> None:
    for wrong in WRONG[parameter]:
        with pytest.raises(wrong[1]) as caught:
            getattr(comm, method)(**{**arguments, parameter: wrong[0]})
        check(wrong, parameter, caught.value)


@pytest.mark.parametrize(
    ("parameter", "wrong"),
    [
        pytest.param(parameter, wrong, id=f"{parameter}-{number}")
        for parameter, some in WRONG_INIT.items()
        for number, wrong in enumerate(some)
    ],
)
def test_a_wrong_argument_of_init_is_named_with_its_value(
    parameter: str, wrong: Wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is nobody to talk to: none of these gets that far.
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "unix:/nowhere")
    right = {"rank": 0, "world_size": 2, "interface": "unix:/nowhere", "timeout": 1.0}
    if parameter in ("fallback_after", "ring_address"):
        right["fallback"] = "ring"
    with pytest.raises(wrong[1]) as caught:
        p4reduce.init(**{**right, parameter: wrong[0]})
    check(wrong, parameter, caught.value)


def test_no_parameter_is_left_out() -> None:
    assert parameters(p4reduce.init) == set(WRONG_INIT)
    public = {
        name.removesuffix("_async")
        for name, _ in inspect.getmembers(Communicator, inspect.isfunction)
        if not name.startswith("_")
    }
    assert public == CALLS.keys() | NOT_ARGUED


@pytest.mark.parametrize(
    ("name", "meant"),
    [("slot", "; did you mean 'slots'?"), ("Timeout", ""), ("interfaces", "; did you mean 'int")],
)
def test_an_unknown_option_of_init_is_named(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"init() has no option {name!r}{meant}")):
        p4reduce.init(0, 2, **{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "given", "what"),
    [
        ("allreduce", {"presicion": "int8"}, "'presicion'; did you mean 'precision'?"),
        ("allreduce", {"deadline": 1.0, "presicion": "int8"}, "'presicion'; did you mean"),
        ("allreduce_async", {"deadline": 1.0}, "'deadline'"),
        ("allreduce_sparse", {"array": ROWS, "priority": 1}, "'priority'"),
        ("allreduce_sparse_async", {"array": ROWS, "dence": True}, "'dence'"),
        ("grouped_allreduce", {"arrays": [ONES], "priority": 1}, "'priority'"),
        ("grouped_allreduce_async", {"arrays": [ONES], "residual": ONES}, "'residual'"),
        ("reduce", {"priority": 1}, "'priority'"),
        ("reduce_async", {"sead": 1}, "'sead'; did you mean 'seed'?"),
        ("reduce_scatter", {"residual": ONES}, "'residual'"),
        ("reduce_scatter_async", {"residual": ONES}, "'residual'"),
    ],
)
def test_an_option_of_another_call_is_named(
    comm: Communicator, method: str, given: dict[str, Any], what: str
) -> None:
    first = {} if "arrays" in given else {"array": ONES}
    with pytest.raises(TypeError, match=re.escape(f"{method}() has no option {what}")):
        getattr(comm, method)(**{**first, **given})
    assert comm.broken is None


def test_a_controller_in_the_environment_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_CONTROLLER", "foo")
    with pytest.raises(p4reduce.ConfigurationError, match="P4REDUCE_CONTROLLER=foo"):
        p4reduce.init(0, 1, interface="unix:/nowhere", timeout=1.0)


@pytest.mark.parametrize("timeout", ["x", True, -1, math.nan])
def test_a_handles_timeout_is_checked_too(timeout: Any) -> None:
    handle = p4reduce.Handle([], lambda: 7)
    with pytest.raises((TypeError, ValueError), match=f"timeout={timeout!r}"):
        handle.wait(timeout)
    assert handle.wait(0) == 7


@pytest.mark.parametrize(
    "array",
    [
        SparseRows([0, 1, 2], MASKED, (3,)),
        SparseRows(np.ma.masked_array([0, 1, 2]), ONES, (3,)),
        SparseBlocks([0], MASKED.reshape(1, 3), 3),
    ],
)
def test_masks_within_sparse_arrays_are_refused(comm: Communicator, array: Any) -> None:
    with pytest.raises(TypeError, match=r"masked array.*filled\(0\)"):
        comm.allreduce(array)


def test_a_masked_array_is_refused_with_what_would_be_right(comm: Communicator) -> None:
    for call in (comm.allreduce, comm.broadcast, comm.reduce, comm.reduce_scatter, comm.allgather):
        with pytest.raises(TypeError, match=r"masked array.*array\.filled\(0\)"):
            call(MASKED)


def test_numpys_numbers_are_as_good_as_pythons(alone: Communicator) -> None:
    one = np.int64(1)
    result = alone.allreduce(
        ONES, name=np.str_("x"), timeout=np.float32(30), precision="int16", seed=one
    )
    assert np.array_equal(alone.broadcast(ONES, root=one - 1), ONES)
    assert np.array_equal(alone.allgather(ONES, counts=np.array([3])), ONES)
    assert result.shape == ONES.shape


@pytest.mark.parametrize("name", ["mean", "MEAN", np.str_("Mean")])
def test_an_operation_is_as_good_by_its_name(name: str) -> None:
    for given, meant in (
        (plans.allreduce(ONES, name, None, None, world_size=2), p4reduce.MEAN),
        (plans.reduce(ONES, name, 0, None, None, rank=0, world_size=2), p4reduce.MEAN),
        (plans.reduce_scatter(ONES, name, None, None, None, rank=0, world_size=2), p4reduce.MEAN),
        (plans.allreduce(ONES, "sum", None, None, world_size=2), p4reduce.SUM),
    ):
        # Ranks that say it the one way and the other have called the same.
        assert given.call.operation is meant
    sparse = SparseRows([1], ONES[:1], (3,))
    plan = plans.allreduce_sparse(sparse, name, None, None, None, dense=True, world_size=2)
    assert plan.call.operation is p4reduce.MEAN
    assert p4reduce.error_bound(1.0, 4, op=name) == p4reduce.error_bound(1.0, 4, op=p4reduce.MEAN)


@pytest.mark.parametrize("call", ["allreduce", "reduce", "reduce_scatter", "grouped_allreduce"])
def test_collectives_take_the_names_of_operations(alone: Communicator, call: str) -> None:
    array = np.array([1.0, 2.0, 4.0], np.float32)
    given = [array] if call == "grouped_allreduce" else array
    for name in ("sum", "mean"):
        result = np.reshape(getattr(alone, call)(given, op=name), 3)
        assert np.array_equal(result, array)  # of one rank


def test_a_mean_of_integers_is_refused_by_its_name_too(comm: Communicator) -> None:
    with pytest.raises(TypeError, match="op=MEAN needs floats, not int32; SUM works"):
        comm.allreduce(np.ones(3, np.int32), op="mean")


class Unreadable:
    """What an array library has for an array that cannot be converted, by code of its own."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self.error


class NotEvenAsked(Unreadable):
    @property
    def __array__(self) -> Any:
        raise self.error


class Numbers:
    """A sequence, or a number, by code that fails."""

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("no rows here")

    def __index__(self) -> int:
        raise RuntimeError("no number here")


ERRORS = [
    RuntimeError("it needs a gradient; use .detach()"),
    KeyError("data"),
    NotImplementedError("lazy"),
    OSError(5, "the file is gone"),
    AssertionError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", [Unreadable, NotEvenAsked])
def test_every_exception_of_a_conversion_is_an_argument_error(
    comm: Communicator, kind: type[Unreadable], error: Exception
) -> None:
    array = kind(error)
    for call, arguments in CALLS.items():
        if not arguments or call == "allreduce_sparse":
            continue
        wrong = {**arguments, "arrays" if "arrays" in arguments else "array": array}
        if "arrays" in arguments:
            wrong["arrays"] = [ONES, array]
        for name in (call, f"{call}_async"):
            with pytest.raises(TypeError) as caught:
                getattr(comm, name)(**wrong)
            assert f"{type(error).__name__}: {error}" in str(caught.value)
            assert caught.value.__cause__ is error
    for sparse in (
        lambda: SparseRows([1], array, (3,)),  # type: ignore[arg-type]
        lambda: SparseBlocks(array, ONES.reshape(1, 3), 3),  # type: ignore[arg-type]
        lambda: p4reduce.SparseElements([1], array, 3),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="cannot be converted to a numpy array"):
            sparse()


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("allgather", {"array": ONES, "counts": Numbers()}),
        ("reduce_scatter", {"array": ONES, "counts": [Numbers()]}),
        ("broadcast", {"array": ONES, "root": Numbers()}),
        ("grouped_allreduce", {"arrays": Numbers()}),
        ("grouped_allreduce", {"arrays": [ONES], "names": Numbers()}),
        ("grouped_allreduce", {"arrays": [ONES], "outs": Numbers()}),
        ("allreduce", {"array": ONES, "seed": Numbers()}),
        ("allreduce", {"array": ONES, "priority": Numbers()}),
    ],
)
def test_numbers_whose_own_code_fails_are_argument_errors(
    comm: Communicator, call: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match="Numbers object") as caught:
        getattr(comm, call)(**arguments)
    assert isinstance(caught.value.__cause__, RuntimeError) or call == "reduce_scatter"


def test_an_interrupt_within_a_conversion_is_none(alone: Communicator) -> None:
    class Interrupted:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        alone.allreduce(Interrupted())


def test_a_tensor_that_needs_a_gradient(alone: Communicator) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    weights = torch.ones(3, requires_grad=True)
    for call in (alone.allreduce, alone.broadcast, alone.reduce, alone.allgather):
        with pytest.raises(TypeError, match=r"\.detach\(\)"):
            call(weights)
    assert alone.broken is None
    assert alone.allreduce(weights.detach()).tolist() == [1, 1, 1]
