# SPDX-License-Identifier: Apache-2.0
"""Two images of the same objects say what is not alike in them."""

from __future__ import annotations

import numpy as np
from p4reduce_model.heap import Heap


class Thing:
    def __init__(self) -> None:
        self.number = 1
        self.array = np.zeros(3)
        self.items = [1]
        self.same = "same"


def test_images_say_in_what_they_differ() -> None:
    thing = Thing()
    heap = Heap([thing], module=Thing.__module__.partition(".")[0])
    first = heap.capture()
    assert first.differences(heap.capture()) == []
    thing.number = 2
    thing.array[1] = 5
    thing.items.append(2)
    second = heap.capture()
    assert second.digest != first.digest
    assert first.differences(second) == ["Thing.array", "Thing.items", "Thing.number"]
    Heap.restore(first)
    assert heap.capture().digest == first.digest
