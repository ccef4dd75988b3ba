# SPDX-License-Identifier: Apache-2.0
"""What estimators share with scikit-learn's: parameters by name, clones, and checks of input."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from p4reduce.methods.meeting import checksum, problem_of_samples

Floats = npt.NDArray[np.float64]
Self = TypeVar("Self", bound="Estimator")


def _bytes(value: Any) -> bytes:
    try:
        return np.asarray(value, np.float64).tobytes()
    except (TypeError, ValueError):
        return repr(value).encode()


class Estimator:
    """An object whose constructor keeps its arguments as attributes of the same names.

    Its first argument is the communicator. `fit` is a collective: every rank calls it with its own
    part of the samples. What it learns is the same on all ranks, in attributes that end in "_".
    All other methods work on one rank.
    """

    _arrays: tuple[str, ...] = ()  # arguments that are no numbers

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments; `deep` is for scikit-learn and changes nothing."""
        names = list(inspect.signature(type(self)).parameters)
        return {name: getattr(self, name) for name in names}

    def set_params(self: Self, **parameters: Any) -> Self:
        """Change arguments of the constructor by name. Raises ValueError for an unknown one."""
        known = self.get_params()
        for name, value in parameters.items():
            if name not in known:
                raise ValueError(f"{type(self).__name__} has no {name!r}; it has {sorted(known)}")
            setattr(self, name, value)
        return self

    def _settings(self) -> dict[str, float]:
        """The arguments as numbers, for all ranks to have the same: see `meeting.meet`."""
        numbers: dict[str, float] = {}
        for name, value in self.get_params().items():
            if name in self._arrays:
                numbers[f"checksum of {name}"] = float(checksum(_bytes(value)))
            elif name != "comm":
                numbers[name] = float("nan") if value is None else float(value)
        return numbers

    def __sklearn_clone__(self: Self) -> Self:
        return type(self)(**self.get_params())

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self.get_params().items() if name != "comm")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _samples(self, samples: Any, features: int) -> Floats:
        """Return samples to predict for. Raises ValueError."""
        array, problem = problem_of_samples(samples)
        if problem is not None:
            raise ValueError(problem)
        if array.shape[1] != features:
            raise ValueError(
                f"X has {array.shape[1]} features, but the model was fitted with {features}"
            )
        return array
