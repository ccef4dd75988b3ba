# SPDX-License-Identifier: Apache-2.0
"""MPI programs whose all-reduces the switch computes, started by mpirun alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from needed import DEADLINE, ROOT, marked, needs, pid_of, wait_for_socket
from p4reduce import ConfigurationError, LaunchError
from p4reduce.mpi import building, sums

pytestmark = pytest.mark.engines
HERE = Path(__file__).parent

SERVICES = ("p4reduce_switch", "p4reduce_controller")
FORTRAN = os.environ.get("OMPI_FC", "gfortran")  # mpif90 is there without the compiler it calls

with_mpi4py = needs(programs=("mpirun",), packages=("mpi4py",))
with_mpicc = needs(programs=("mpirun", "mpicc"))

SUMS = """
import array, random
import numpy as np
from mpi4py import MPI
import p4reduce, p4reduce.mpi

world = MPI.COMM_WORLD
with p4reduce.mpi.wrap(world) as comm:
    assert isinstance(comm, MPI.Intracomm)
    n, r = comm.size, comm.rank
    with comm.Dup() as twin:
        ones = np.ones(3, np.float32)
        twin.Allreduce(MPI.IN_PLACE, ones)
        assert ones.tolist() == [n] * 3 and twin.switched == (n > 1)
    total = n * (n + 1) // 2
    # Each rank gives the same message in another form: all must decide alike.
    for dtype, mpi in ((np.float32, MPI.FLOAT), (np.float64, MPI.DOUBLE), (np.int32, MPI.INT)):
        mine, sum = np.full(600, r + 1, dtype), np.zeros(600, dtype)
        forms = [
            (mine, sum),
            ([mine, mpi], [sum, mpi]),
            ([mine, 600, mpi], [sum, (600, 0), mpi]),
            ([mine.tobytes(), mpi], [memoryview(sum), mpi]),
        ]
        comm.Allreduce(*forms[r % len(forms)])
        assert sum.tolist() == [total] * 600, (dtype, sum)
        comm.Allreduce(MPI.IN_PLACE, sum)
        assert sum.tolist() == [total * n] * 600
    assert comm.switched == 6
    fortran = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    out = np.asfortranarray(np.zeros((3, 4), np.float32))
    comm.Allreduce(fortran, out)
    assert np.array_equal(out, fortran * n)
    whole = np.zeros(10, np.float32)
    comm.Allreduce([np.ones(4, np.float32), MPI.FLOAT], [whole, (4, 3), MPI.FLOAT])
    assert whole.tolist() == [0] * 3 + [n] * 4 + [0] * 3
    got = array.array("f", [0, 0])
    comm.Allreduce(array.array("f", [1, 2]), got)
    assert list(got) == [n, 2 * n]
    big = np.full(3, 2**30, np.int32)
    comm.Allreduce(MPI.IN_PLACE, big)  # modulo 2^32, as MPI's own
    assert big.tolist() == [np.int64(n * 2**30).astype(np.int32)] * 3
    nothing = np.empty((0, 3), np.float32)
    comm.Allreduce(MPI.IN_PLACE, nothing)
    for send, receive in (
        (mine, sum[:599]),
        ([mine, 601, MPI.INT], sum),
        ([mine, -1, MPI.INT], [sum, -1, MPI.INT]),
        (mine, [sum, (1, 600), MPI.INT]),
        (mine.astype(np.float64), sum),
    ):
        try:
            comm.Allreduce(send, receive)
        except ValueError:
            continue
        raise AssertionError(f"{send} does not fit {receive}")
    switched = comm.switched
    # What the switch has no part in.
    longs, most = np.full(3, r, np.int64), np.zeros(3, np.float32)
    comm.Allreduce(MPI.IN_PLACE, longs)
    comm.Allreduce(np.full(3, r, np.float32), most, op=MPI.MAX)
    assert longs.tolist() == [n * (n - 1) // 2] * 3 and most.tolist() == [n - 1] * 3
    assert comm.allreduce({1, r} , op=lambda a, b: a | b) == {1, *range(n)}
    assert comm.switched == switched
    half = comm.Split(r % 2)
    one = np.ones(1, np.float32)
    half.Allreduce(MPI.IN_PLACE, one)
    assert one[0] == half.size
    try:
        p4reduce.mpi.wrap(world)
    except p4reduce.ConfigurationError as error:
        assert "wrapped already" in str(error)
    else:
        raise AssertionError("wrapped twice")
after = np.ones(1, np.float32)
comm.Allreduce(MPI.IN_PLACE, after)  # MPI's own from here on
assert after[0] == n
if r == 0:
    print("right", n)
"""

TENSORS = """
import numpy as np
import torch
from mpi4py import MPI
import p4reduce.mpi

with p4reduce.mpi.wrap(MPI.COMM_WORLD) as comm:
    mine = torch.arange(5.0)
    total = torch.empty(5) if comm.rank else np.empty(5, np.float32)
    comm.Allreduce(mine, total)
    assert (torch.as_tensor(total) == mine * comm.size).all(), total
    comm.Allreduce(MPI.IN_PLACE, mine)
    assert comm.switched == 2
    if comm.rank == 0:
        print("right", mine.tolist())
"""

# A rank that is killed; the others are in a sum with it.
KILLED = """
import os, signal
import numpy as np
from mpi4py import MPI
import p4reduce.mpi

comm = p4reduce.mpi.wrap(MPI.COMM_WORLD)
numbers = np.ones(1000, np.float32)
if comm.rank == 0:
    print("summing", flush=True)
while True:
    comm.Allreduce(numbers, np.empty_like(numbers))
    if comm.rank == 1 and {suicide}:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def mpirun(
    environment: dict[str, str], ranks: int, *command: str, preload: Path | None = None
) -> subprocess.Popen[str]:
    own = {**environment, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    options = ["--oversubscribe", "-n", str(ranks)]
    options += [] if preload is None else ["-x", f"LD_PRELOAD={preload}"]
    return subprocess.Popen(
        ["mpirun", *options, *command], env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def until_begun(begun: Path, run: subprocess.Popen[str]) -> None:
    while not begun.exists():
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.05)


@with_mpi4py
@pytest.mark.parametrize("ranks", [1, 4])
def test_every_form_of_a_buffer(ranks: int) -> None:
    program = SUMS if ranks > 1 else SUMS.partition("    # Each rank")[0] + "    print('right', n)"
    with marked() as environment:
        run = mpirun(environment, ranks, sys.executable, "-c", program)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, output
    assert f"right {ranks}\n" in output


@needs(programs=("mpirun",), packages=("mpi4py", "torch"))
def test_tensors() -> None:
    with marked() as environment:
        run = mpirun(environment, 2, sys.executable, "-c", TENSORS)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, output
    assert "right [0.0, 2.0, 4.0, 6.0, 8.0]" in output


@with_mpi4py
def test_the_example_learns() -> None:
    with marked() as environment:
        example = str(ROOT / "examples" / "mpi_allreduce.py")
        run = mpirun(environment, 3, sys.executable, example)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, output
    assert "200 gradients of 3 ranks summed by the switch" in output
    off = re.search(r"off by at most (\S+)", output)
    assert off is not None
    assert float(off[1]) < 1e-6


@with_mpi4py
def test_a_killed_rank_ends_all_and_leaves_nothing() -> None:
    with marked() as environment:
        run = mpirun(environment, 3, sys.executable, "-c", KILLED.format(suicide=True))
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode != 0
    assert "signal 9" in output


@with_mpi4py
def test_a_frozen_rank_is_lost_after_the_lease() -> None:
    """mpirun sees an ended process, but not one that stands still."""
    program = """
import os, signal
import numpy as np
from mpi4py import MPI
import p4reduce, p4reduce.mpi
world = MPI.COMM_WORLD
comm = p4reduce.mpi.wrap(world, timeout=120, lease=4)
pids = world.allgather(os.getpid())
if world.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    comm.Allreduce(MPI.IN_PLACE, np.ones(1000, np.float32))
except p4reduce.WorkerLostError as error:
    # In one piece: mpirun mixes what its ranks write.
    os.write(1, f"rank {world.rank} heard: {error}\\n".encode())
if world.rank == 0:
    world.recv(source=2)
    os.kill(pids[1], signal.SIGKILL)
else:
    world.send(None, 0)
"""
    with marked() as environment:
        run = mpirun(environment, 3, sys.executable, "-c", program)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode != 0
    for rank in (0, 2):
        heard = re.search(rf"rank {rank} heard: .*rank 1.*no heartbeat for (\S+) s", output)
        assert heard is not None, output
        assert float(heard[1]) >= 3.0  # three quarters


@with_mpi4py
@pytest.mark.parametrize("victim", SERVICES)
def test_a_killed_service_is_started_again(victim: str) -> None:
    program = """
import numpy as np
from mpi4py import MPI
import p4reduce.mpi, os, sys
comm = p4reduce.mpi.wrap(MPI.COMM_WORLD)
going = np.ones(1, np.int32)
while going[0]:
    one = np.ones(1000, np.float32)
    comm.Allreduce(MPI.IN_PLACE, one)
    assert one.tolist() == [comm.size] * 1000
    going[0] = comm.rank == 0 and not (comm._network.news and os.path.exists(sys.argv[1]))
    comm.Allreduce(MPI.IN_PLACE, going)
    if comm.rank == 0 and not os.path.exists(sys.argv[1] + ".begun"):
        open(sys.argv[1] + ".begun", "w").close()
comm.close()
print("done", flush=True)
"""
    with marked() as environment:
        flag = Path(f"/tmp/p4reduce-mpi-{os.getpid()}")
        begun = Path(f"{flag}.begun")
        try:
            run = mpirun(environment, 2, sys.executable, "-c", program, str(flag))
            until_begun(begun, run)
            wait_for_socket(environment, f"-m {victim}")
            os.kill(pid_of(environment, f"-m {victim}"), signal.SIGKILL)
            flag.touch()
            output, _ = run.communicate(timeout=DEADLINE)
        finally:
            flag.unlink(missing_ok=True)
            begun.unlink(missing_ok=True)
    assert run.returncode == 0, output
    assert output.count("done") == 2


@with_mpi4py
def test_a_killed_network_is_an_error_on_every_rank() -> None:
    program = """
import os
import numpy as np
from mpi4py import MPI
import p4reduce, p4reduce.mpi
world = MPI.COMM_WORLD
comm = p4reduce.mpi.wrap(world, timeout=20)
try:
    while True:
        comm.Allreduce(MPI.IN_PLACE, np.ones(1000, np.float32))
        if comm.switched == 1:
            print("summed", flush=True)
except p4reduce.P4ReduceError as error:
    # In one piece: mpirun mixes what its ranks write.
    os.write(1, f"rank {world.rank} heard of it: {type(error).__name__} {error}\\n".encode())
"""
    with marked() as environment:
        run = mpirun(environment, 2, sys.executable, "-c", program)
        assert run.stdout is not None
        begun = ""
        while begun.count("summed") < 2:  # mpirun may put it into a line of another rank's
            more = os.read(run.stdout.fileno(), 4096).decode()
            begun += more
            assert more, begun
        wait_for_socket(environment, "-m p4reduce_switch")
        os.kill(pid_of(environment, "-m p4reduce_lab.deploy"), signal.SIGKILL)
        output, _ = run.communicate(timeout=DEADLINE)
    for rank in (0, 1):
        assert f"rank {rank} heard of it:" in output
    assert "rank 0 heard of it: LaunchError the network has ended" in output


@with_mpi4py
def test_what_cannot_start_is_said_on_every_rank() -> None:
    program = "import p4reduce.mpi; from mpi4py import MPI; p4reduce.mpi.wrap(MPI.COMM_WORLD)"
    with marked() as environment:
        own = {**environment, "P4REDUCE_HOST": "203.0.113.7"}
        run = mpirun(own, 2, sys.executable, "-c", program)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode != 0
    assert output.count("P4REDUCE_HOST=203.0.113.7 is not an address of this host") == 2, output


# What each rank gives in one call, as (what is wrong, the error on rank 0, on others).
WRONG_CALLS = """
import os, time
import numpy as np
from mpi4py import MPI
import p4reduce, p4reduce.mpi, p4reduce.started_job
from p4reduce.mpi import wrap

world = MPI.COMM_WORLD
me = world.rank

def refused(kind, text, **options):
    try:
        wrap(world, **options)
    except kind as error:
        assert text in str(error), (text, str(error))
    else:
        raise AssertionError(f"{options} is not refused")
    world.Barrier()
    deadline = time.monotonic() + 100
    while open(f"/proc/self/task/{os.getpid()}/children").read():
        assert time.monotonic() < deadline, "a network was left"
        time.sleep(0.05)

ERROR = p4reduce.ConfigurationError
for _ in range(3):
    refused(ERROR, "'flaot' is not one of float, double, int", types=["flaot"])
refused(ERROR, "['float'] is not one of", types=[["float"]])
refused(TypeError, "types=3: some of float, double, int are needed", types=3)
refused(TypeError, "types='float'", types="float")
refused(ValueError, "timeout=0", timeout=0)
refused(ValueError, "lease=-1", lease=-1)
refused(ERROR, "lease", lease=1e6)  # the network refuses it
# One rank alone is wrong, and all hear of it.
for wrong in range(world.size):
    kind, options = (TypeError, {"timeout": "x"}) if me == wrong else (ERROR, {})
    refused(kind, "timeout='x'", **options)
    kind, options = (TypeError, {"types": 5}) if me == wrong else (ERROR, {})
    refused(kind, ("" if me == wrong else f"rank {wrong}: TypeError: ") + "types=5", **options)
os.environ["P4REDUCE_MPI_TYPES"] = "float,long" if me == 0 else "float"
refused(ERROR, "P4REDUCE_MPI_TYPES: 'long'")
del os.environ["P4REDUCE_MPI_TYPES"]
# It has started, and one rank cannot join, for whatever reason.
known = set(os.environ)
for wrong in (0, 1):
    init = p4reduce.started_job.init
    if me == wrong:
        def init_fails(*_, **__):
            raise RuntimeError("out of threads")
        p4reduce.started_job.init = init_fails
    # The others join as far as they can, and wait for it.
    kind, text = p4reduce.P4ReduceTimeoutError, f"rank {wrong}"
    if me == wrong:
        kind, text = RuntimeError, "out of threads"
    refused(kind, text, timeout=3)
    p4reduce.started_job.init = init
    assert os.environ.keys() == known
for _ in range(2):
    with wrap(world, types=["int"]) as comm:
        comm.Allreduce(MPI.IN_PLACE, np.ones(3, np.int32))
        comm.Allreduce(MPI.IN_PLACE, np.ones(3, np.float32))
        assert comm.switched == 1
        assert os.environ.keys() == known
os.write(1, f"rank {me} is right\\n".encode())
"""


@with_mpi4py
def test_what_is_wrong_is_an_error_on_all_ranks_and_leaves_nothing() -> None:
    with marked() as environment:
        run = mpirun(environment, 3, sys.executable, "-c", WRONG_CALLS)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, output
    assert output.count("is right") == 3, output


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The library to preload, and a program that knows nothing of it."""
    directory = tmp_path_factory.mktemp("pmpi")
    library = building.build(directory)
    program = directory / "sums"
    source = str(HERE / "sums.c")
    subprocess.run(
        ["mpicc", "-o", str(program), source, "-lm", "-pthread"], check=True, timeout=100
    )
    return library, program


@with_mpicc
def test_a_c_program_with_and_without(shim: tuple[Path, Path]) -> None:
    library, program = shim
    for preload in (None, library):
        with marked() as environment:
            own = {**environment, "P4REDUCE_MPI_VERBOSE": "1"}
            run = mpirun(own, 3, str(program), preload=preload)
            output, _ = run.communicate(timeout=DEADLINE)
        assert run.returncode == 0, output
        assert "all sums of 3 ranks are right" in output
        assert ("6 all-reduces by the switch, 6 by MPI" in output) == (preload is not None)


@with_mpicc
@needs(programs=("IMB-MPI1",))
def test_intels_benchmark_finds_no_defect(shim: tuple[Path, Path]) -> None:
    """IMB-MPI1 compiled with -DCHECK has a column of wrong results (docs/mpi.md)."""
    with marked() as environment:
        own = {**environment, "P4REDUCE_MPI_VERBOSE": "1"}
        options = ("-iter", "20", "-msglog", "12:18", "Allreduce", "Allgather", "Bcast")
        run = mpirun(own, 2, "IMB-MPI1", *options, preload=shim[0])
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, output
    if "defects" not in output:
        pytest.skip("this IMB-MPI1 is compiled without -DCHECK")
    rows = re.findall(r"^ +\d+ +\d+(?: +[\d.]+){3} +([\d.]+) *$", output, re.MULTILINE)
    assert len(rows) >= 12, output  # of 24: on a busy machine it leaves out what takes long
    assert set(rows) == {"0.00"}
    switched = re.search(r"(\d+) all-reduces by the switch", output)
    assert switched is not None
    assert int(switched[1]) > 80


@with_mpicc
def test_types_can_be_left_to_mpi(shim: tuple[Path, Path]) -> None:
    library, program = shim
    with marked() as environment:
        own = {**environment, "P4REDUCE_MPI_VERBOSE": "1", "P4REDUCE_MPI_TYPES": "float"}
        run = mpirun(own, 2, str(program), preload=library)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, output
    assert "4 all-reduces by the switch, 8 by MPI" in output


@with_mpicc
@pytest.mark.parametrize("mode", ["threads", "levels"])
def test_sums_of_several_threads_are_mpis(mode: str, shim: tuple[Path, Path]) -> None:
    library, program = shim
    with marked() as environment:
        run = mpirun(environment, 3, str(program), mode, preload=library)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, output
    assert "all sums of 3 ranks are right" in output
    assert "with MPI_THREAD_MULTIPLE all sums are MPI's" in output


def refused(shim: tuple[Path, Path], **setting: str) -> str:
    """Return what a preloaded program of two ranks says, which does not start with this setting."""
    library, program = shim
    with marked() as environment:
        run = mpirun({**environment, **setting}, 2, str(program), preload=library)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode != 0
    return output


@with_mpicc
def test_a_wrong_timeout_is_refused(shim: tuple[Path, Path]) -> None:
    output = refused(shim, P4REDUCE_MPI_TIMEOUT="-3")
    assert "P4REDUCE_MPI_TIMEOUT='-3' is not a number of seconds above 0" in output


@with_mpicc
def test_a_killed_rank_of_a_c_program(shim: tuple[Path, Path]) -> None:
    library, program = shim
    with marked() as environment:
        run = mpirun(environment, 3, str(program), "die", preload=library)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode != 0
    assert "signal 9" in output


@with_mpicc
@pytest.mark.parametrize(
    "victim", ["p4reduce_switch", "p4reduce_controller", "p4reduce_lab.deploy"]
)
def test_a_killed_service_of_a_c_program(
    victim: str, shim: tuple[Path, Path], tmp_path: Path
) -> None:
    library, program = shim
    end, begun = tmp_path / "end", tmp_path / "end.begun"
    network = victim == "p4reduce_lab.deploy"  # all of it goes with this one
    with marked() as environment:
        own = {**environment, "P4REDUCE_LEASE": "45", "P4REDUCE_MPI_TIMEOUT": "20"}
        run = mpirun(own, 2, str(program), "until", str(end), preload=library)
        until_begun(begun, run)
        pid_of(environment, "--lease 45 ")
        wait_for_socket(environment, f"-m {'p4reduce_switch' if network else victim}")
        os.kill(pid_of(environment, f"-m {victim}"), signal.SIGKILL)
        if not network:
            end.touch()
        output, _ = run.communicate(timeout=DEADLINE)
    if network:
        assert run.returncode != 0
        for rank in (0, 1):
            assert re.search(rf"p4reduce: rank {rank}: \w+Error: ", output), output
            assert f"rank {rank} has an error" in output
        assert "rank 0: LaunchError: the network has ended: killed by signal 9" in output
    else:
        assert run.returncode == 0, output
    assert "wrong" not in output


@with_mpicc
def test_a_network_that_does_not_start_ends_a_c_program(shim: tuple[Path, Path]) -> None:
    output = refused(shim, P4REDUCE_HOST="203.0.113.7")
    assert "p4reduce: rank 0: ConfigurationError: P4REDUCE_HOST=203.0.113.7" in output


@with_mpicc
@needs(programs=("mpif90", FORTRAN))
def test_a_fortran_program(shim: tuple[Path, Path], tmp_path: Path) -> None:
    library, _ = shim
    program = tmp_path / "sums"
    source = str(HERE / "sums.f90")
    operation = str(tmp_path / "add_at.o")
    add_at = ["mpicc", "-c", "-o", operation, str(HERE / "add_at.c")]
    for command in (add_at, ["mpif90", "-o", str(program), source, operation]):
        subprocess.run(command, check=True, timeout=100, cwd=tmp_path)
    with marked() as environment:
        own = {**environment, "P4REDUCE_MPI_VERBOSE": "1"}
        run = mpirun(own, 2, str(program), preload=library)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, output
    assert "real 3.0 integer 2 four  3  3  3  3" in output
    assert "2 all-reduces by the switch, 1 by MPI" in output


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPICC", "no-such-compiler")
    with pytest.raises(LaunchError, match="there is no no-such-compiler"):
        building.build(tmp_path)


def test_types_that_there_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_MPI_TYPES", "float,long")
    with pytest.raises(ConfigurationError, match="'long' is not one of float, double, int"):
        sums.summed_types()


def test_preloaded_programs_hear_of_wrong_types_before_anything_starts(
    shim: tuple[Path, Path],
) -> None:
    library, program = shim
    with marked() as environment:
        own = {**environment, "P4REDUCE_MPI_TYPES": "flaot", "P4REDUCE_HOST": "203.0.113.7"}
        run = mpirun(own, 2, str(program), preload=library)
        output, _ = run.communicate(timeout=DEADLINE)
    assert run.returncode != 0
    assert "'flaot' is not one of float, double, int" in output  # and not about the host
