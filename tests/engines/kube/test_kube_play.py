# SPDX-License-Identifier: Apache-2.0
"""The manifests, started by `podman kube play`: the network's pod, and the pods of the Job."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from containers import Podman, needs_podman
from manifests import Manifest, containers_of, pods_of, rendered, secret_for_podman, the
from needed import DEADLINE, needs

pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(3600),
    needs_podman,
    needs(
        programs=("kubectl", "openssl", "debootstrap"),
        packages=("yaml", "hatchling", "ziglang"),
    ),
]
POD, SWITCH, CONTROLLER = "p4reduce-pod-0", "p4reduce-pod-0-switch", "p4reduce-pod-0-controller"
LONG = ["--steps", "1000000"]


def until(what: Callable[[], bool], name: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < deadline, name
        time.sleep(0.2)


@dataclass
class Cluster:
    """Pods on a network of their own."""

    podman: Podman
    folder: Path

    def start(self) -> Path:
        """Start the network's pod, and wait until its probes pass."""
        others = [one for one in rendered("network") if one["kind"] != "Secret"]
        file = self.play("network", others)
        self.ready(SWITCH)
        self.ready(CONTROLLER)
        return file

    def play(self, name: str, manifests: list[Manifest]) -> Path:
        import yaml

        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump_all(manifests))
        self.podman("kube", "play", "--network=p4reduce", file)
        return file

    def down(self, file: Path) -> None:
        self.podman("kube", "down", file)

    @property
    def address(self) -> str:
        infra = self.podman("pod", "inspect", POD, "--format={{.InfraContainerID}}").strip()
        shown = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return self.podman("inspect", infra, f"--format={shown}").strip()

    def pid(self, container: str) -> int:
        return int(self.podman("inspect", container, "--format={{.State.Pid}}"))

    def kill(self, container: str) -> None:
        """Kill its process, as the kernel does when memory is short."""
        before = self.pid(container)
        os.kill(before, signal.SIGKILL)
        until(lambda: self.pid(container) not in (0, before), f"{container} is started again")

    def ready(self, container: str) -> None:
        """Its startup probe passes."""
        pod = the("network", "Deployment")["spec"]["template"]["spec"]
        probe = containers_of(pod)[container.rpartition("-")[2]]["startupProbe"]["exec"]["command"]

        def passes() -> bool:
            return not self.podman("exec", container, *probe, check=False)

        until(passes, f"{container} passes its probe")

    def workers(self, more: list[str] | None = None) -> tuple[Path, list[str]]:
        """Start the pods of the Job; the file, and the names of the containers."""
        pods = pods_of(the("job", "Job"), self.address)
        for pod in pods:
            pod["spec"]["containers"][0]["command"] += more or []
        file = self.play("workers", [the("network", "ConfigMap"), *pods])
        return file, [f"{pod['metadata']['name']}-worker" for pod in pods]

    def ends(self, containers: list[str]) -> list[tuple[int, str]]:
        """Exit code and output of each."""
        return [(int(self.podman("wait", one)), self.podman("logs", one)) for one in containers]

    def jobs(self) -> str:
        return self.podman("exec", CONTROLLER, "p4reduce-controller", "job", "list", "--all")


@pytest.fixture(scope="module")
def cluster(containers: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("kube")
    for secret in (one for one in rendered("network") if one["kind"] == "Secret"):
        name = secret["metadata"]["name"]
        file = folder / name
        file.write_text(secret_for_podman(secret, mounted=name == "p4reduce-controller"))
        containers("secret", "create", name, file)
    containers("network", "create", "p4reduce")
    made = Cluster(containers, folder)
    file = made.start()
    yield made
    made.down(file)
    containers("network", "rm", "p4reduce")


def test_the_job_trains_as_one_process(cluster: Cluster) -> None:
    file, names = cluster.workers()
    ended = cluster.ends(names)
    assert [code for code, _ in ended] == [0] * 4, ended
    together = [re.search(r"accuracy of 4 ranks: (\S+)", said) for _, said in ended]
    alone = re.search(r"accuracy of one process: (\S+)", ended[0][1])
    assert alone is not None
    assert [one and one[1] for one in together] == [alone[1]] * 4
    assert float(alone[1]) > 0.9
    cluster.down(file)


@pytest.mark.parametrize("victim", [SWITCH, CONTROLLER])
def test_a_killed_service_is_started_again(victim: str, cluster: Cluster) -> None:
    file, names = cluster.workers(["--steps", "20000"])
    until(lambda: "running" in cluster.jobs(), "the job runs")
    cluster.kill(victim)
    cluster.ready(victim)
    ended = cluster.ends(names)
    assert [code for code, _ in ended] == [0] * 4, ended
    assert "accuracy of one process" in ended[0][1]
    cluster.down(file)


def test_a_killed_worker_ends_the_others_by_name_and_a_new_start_trains(cluster: Cluster) -> None:
    file, names = cluster.workers(LONG)
    until(lambda: "running" in cluster.jobs(), "the job runs")
    cluster.podman("kill", "--signal=KILL", names[2])
    ended = cluster.ends(names)
    assert ended[2][0] == 137
    for rank in (0, 1, 3):
        code, said = ended[rank]
        assert code == 1, said
        assert "WorkerLostError" in said
        assert "rank 2" in said
    cluster.down(file)
    # What Kubernetes does then: it starts each index again.
    file, names = cluster.workers()
    assert [code for code, _ in cluster.ends(names)] == [0] * 4
    cluster.down(file)


def test_a_lost_pod_is_an_error_on_all_ranks_and_a_new_start_trains(cluster: Cluster) -> None:
    file, names = cluster.workers(LONG)
    until(lambda: "running" in cluster.jobs(), "the job runs")
    cluster.podman("pod", "rm", "--force", "--time=0", POD)
    for code, said in cluster.ends(names):
        assert code == 1, said
        assert re.search(r"^p4reduce\.\S*Error: ", said, re.MULTILINE), said[-3000:]
    cluster.down(file)
    # What Kubernetes does then: another pod, with another address.
    cluster.start()
    file, names = cluster.workers()
    assert [code for code, _ in cluster.ends(names)] == [0] * 4
    cluster.down(file)
