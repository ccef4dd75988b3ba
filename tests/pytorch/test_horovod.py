# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface: its calls, its optimiser and its elastic training do what it documents."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_system import EXAMPLES, Ranks, TorchSystem, all_well, torch_system

pytest.importorskip(
    "torch", reason="needs torch: pip install 'p4reduce[torch]', or make test-torch"
)

LEASE = 5.0  # seconds


@pytest.fixture(scope="module")
def system() -> Iterator[TorchSystem]:
    with torch_system() as running:
        yield running


@pytest.fixture
def alert_system() -> Iterator[TorchSystem]:
    """One that notices soon what is lost."""
    with torch_system(LEASE) as running:
        yield running


@pytest.mark.timeout(300)
def test_calls_give_what_horovod_documents(system: TorchSystem, tmp_path: Path) -> None:
    ended = Ranks(system, 3, ["horovod_calls.py"], tmp_path / "ranks").wait()
    all_well(ended)
    assert {len(one.records) for one in ended} == {13}


@pytest.mark.timeout(300)
def test_the_optimizer_does_as_one_process_with_all_the_data(
    system: TorchSystem, tmp_path: Path
) -> None:
    ended = Ranks(system, 3, ["horovod_training.py"], tmp_path / "ranks").wait()
    all_well(ended)
    for one in ended:
        assert len(one.records) == 10
        for record in one.records:
            assert record["apart"] < (5e-3 if record["case"] == "fp16" else 1e-5), record


@pytest.mark.timeout(300)
def test_closures_and_dropped_gradients_do_as_one_process(
    system: TorchSystem, tmp_path: Path
) -> None:
    ended = Ranks(system, 3, ["horovod_steps.py"], tmp_path / "ranks").wait()
    all_well(ended)
    for one in ended:
        *steps, samples = one.records
        assert len(steps) == 12
        for record in steps:
            assert record["alike"], record
            assert record["apart"] < (1e-3 if record["case"] == "line search" else 1e-5), record
            assert record.get("loss", 0.0) < 1e-4, record
            assert record.get("refused", 2) == 2, record
        # Each rank has as many samples, and together they have all that are left.
        every = [list(ranks) for ranks in zip(*samples["every"], strict=True)]
        left = [*range(8), *range(8), 1]
        for ranks, count in zip(every, left, strict=True):
            assert {len(one) for one in ranks} == {-(-count // 3)}, ranks
            assert len({one for some in ranks for one in some}) == count, ranks


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", [0, 1])
def test_elastic_training_goes_on_without_a_rank(
    victim: int, alert_system: TorchSystem, tmp_path: Path
) -> None:
    ended = Ranks(alert_system, 3, ["horovod_elastic.py", str(victim)], tmp_path / "ranks").wait()
    left = [one for rank, one in enumerate(ended) if rank != victim]
    all_well(left)
    for number, one in enumerate(left):
        (record,) = one.records
        assert record.pop("alike")
        # Three ranks did four steps of two images each that count, two ranks eight.
        processed = 3 * 2 * 4 + 2 * 2 * 8
        assert record == {
            "rank": number,
            "size": 2,
            "began": [0, 4],
            "resets": [2],
            "processed": processed,
        }


@pytest.mark.timeout(300)
def test_the_example_trains(system: TorchSystem, tmp_path: Path) -> None:
    ended = Ranks(system, 3, [str(EXAMPLES / "horovod_digits.py")], tmp_path / "ranks").wait()
    all_well(ended)
    found = re.fullmatch(r"accuracy ([0-9.]+) % of 3 ranks", ended[0].lines[-1])
    assert found, ended[0].lines
    assert float(found[1]) > 90.0
    assert not ended[1].lines


def test_a_process_alone_is_one_rank(system: TorchSystem, tmp_path: Path) -> None:
    nobody = {"RANK": "", "WORLD_SIZE": "", "MASTER_ADDR": "", "MASTER_PORT": "", "LOCAL_RANK": ""}
    program = tmp_path / "alone.py"
    program.write_text(
        f"import os\nfor name in {list(nobody)}:\n    del os.environ[name]\n"
        "import torch, p4reduce.horovod as hvd\n"
        "try:\n    hvd.rank()\nexcept ValueError as error:\n    print(error)\n"
        "try:\n    hvd.ProcessSet([0, 'a'])\nexcept ValueError as error:\n    print(error)\n"
        "for wrong in ([[5]], [[0]], 5):\n    try:\n        hvd.init(process_sets=wrong)\n"
        "    except (TypeError, ValueError):\n        print(hvd.is_initialized())\n"
        "hvd.init()\nhvd.init()\n"
        "print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.allreduce(torch.ones(2)).tolist())\n"
    )
    ended = Ranks(system, 1, [str(program)], tmp_path / "ranks").wait()
    all_well(ended)
    assert ended[0].lines == [
        "p4reduce.horovod is not initialised: call hvd.init() first",
        "ProcessSet([0, 'a']): ranks are numbers from 0 on",
        *["False"] * 3,
        "0 1 0 [1.0, 1.0]",
    ]


@pytest.mark.timeout(600)
def test_horovods_own_example_trains(system: TorchSystem, tmp_path: Path) -> None:
    """HOROVOD_EXAMPLE is its pytorch_mnist.py, and MNIST a directory with torchvision's files."""
    example, data = os.environ.get("HOROVOD_EXAMPLE"), os.environ.get("MNIST")
    if not example or not data:
        pytest.skip("needs HOROVOD_EXAMPLE and MNIST: paths of Horovod's script and of the data")
    pytest.importorskip("torchvision")
    text = Path(example).read_text()
    text = text.replace("import horovod.torch as hvd", "import p4reduce.horovod as hvd")
    text = text.replace("import horovod\n", "import p4reduce.horovod as horovod\n")
    script = tmp_path / "pytorch_mnist.py"
    script.write_text(text)
    options = ["--data-dir", data, "--epochs", "2", "--no-cuda"]
    ended = Ranks(system, 2, [str(script), *options], tmp_path / "ranks").wait(580)
    all_well(ended)
    found = re.findall(r"Accuracy: ([0-9.]+)%", "\n".join(ended[0].lines))
    assert len(found) == 2
    assert float(found[-1]) > float(found[0])
