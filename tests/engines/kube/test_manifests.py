# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests fit the schemas, and their parts fit each other."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from manifests import NAMESPACE, SOURCE, containers_of, rendered, the
from needed import ROOT, needs

pytestmark = [pytest.mark.engines, needs(programs=("kubectl", "openssl"), packages=("yaml",))]
PARTS = ("network", "job", "pytorchjob")
KINDS = {
    "network": ["ConfigMap", "Deployment", "NetworkPolicy", "Secret", "Secret", "Service"],
    "job": ["Job", "Service"],
    "pytorchjob": ["PyTorchJob"],
}


@pytest.mark.parametrize("part", PARTS)
def test_kinds(part: str) -> None:
    assert sorted(one["kind"] for one in rendered(part)) == KINDS[part]


@needs(packages=("kubernetes_validate",))
@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
@pytest.mark.parametrize("part", ["network", "job"])
def test_fit_the_schema(part: str, version: str) -> None:
    import kubernetes_validate

    for one in rendered(part):
        kubernetes_validate.validate(one, version, strict=True)
    broken = the(part, "Service")
    broken["spec"]["clusterIp"] = "None"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def lost(given: Any, kept: Any, path: str = "") -> list[str]:
    """What is in `given` and not the same in `kept`."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [one for key in given for one in lost(given[key], kept.get(key), f"{path}/{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return [one for n, (a, b) in pairs for one in lost(a, b, f"{path}/{n}")]
    return [] if given == kept else [path]


@needs(packages=("kubeflow.training",))
def test_kubeflows_own_models_keep_all_of_a_pytorchjob() -> None:
    from kubeflow.training.api_client import ApiClient

    client = ApiClient()

    def there_and_back(manifest: dict[str, Any]) -> Any:
        answer = SimpleNamespace(data=json.dumps(manifest))
        return client.sanitize_for_serialization(
            client.deserialize(answer, "KubeflowOrgV1PyTorchJob")
        )

    job = the("pytorchjob", "PyTorchJob")
    assert lost(job, there_and_back(job)) == []
    job["spec"]["pytorchReplicaSpecs"]["Master"]["replica"] = 2
    assert lost(job, there_and_back(job)) == ["/spec/pytorchReplicaSpecs/Master/replica"]


def test_ports_are_the_same_everywhere() -> None:
    pod = containers_of(the("network", "Deployment")["spec"]["template"]["spec"])
    switch, controller = " ".join(pod["switch"]["command"]), pod["controller"]["command"]
    ports = re.search(r"--port=1-(\d+)=udp:0.0.0.0:(\d+)", switch)
    assert ports is not None
    count, first = int(ports[1]), int(ports[2])
    assert f"--ports=1-{count}" in controller
    allowed = the("network", "NetworkPolicy")["spec"]["ingress"][0]["ports"]
    assert {"protocol": "UDP", "port": first, "endPort": first + count - 1} in allowed
    assert {"protocol": "TCP", "port": 7070} in allowed
    data = the("network", "ConfigMap")["data"]
    assert data["P4REDUCE_INTERFACE"] == f"udp:p4reduce:{first - 1}+{{port}}"
    assert data["P4REDUCE_CONTROLLER"] == "p4reduce:7070"
    assert the("network", "Service")["metadata"]["name"] == "p4reduce"
    assert containers_of(the("job", "Job")["spec"]["template"]["spec"])["worker"]["env"][1] == {
        "name": "WORLD_SIZE",
        "value": str(the("job", "Job")["spec"]["completions"]),
    }


def pods() -> list[tuple[str, dict[str, Any]]]:
    replicas = the("pytorchjob", "PyTorchJob")["spec"]["pytorchReplicaSpecs"]
    return [
        ("network", the("network", "Deployment")["spec"]["template"]["spec"]),
        ("worker", the("job", "Job")["spec"]["template"]["spec"]),
        *((name, one["template"]["spec"]) for name, one in replicas.items()),
    ]


def test_nothing_has_more_rights_than_it_needs() -> None:
    for name, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["runAsUser"] == 10001, name
        assert not pod["automountServiceAccountToken"], name
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert not rights["allowPrivilegeEscalation"], name
            assert rights["readOnlyRootFilesystem"], name
            assert rights["capabilities"] == {"drop": ["ALL"]}, name


def test_workers_pass_the_network_policy() -> None:
    [source] = the("network", "NetworkPolicy")["spec"]["ingress"][0]["from"]
    labels = source["podSelector"]["matchLabels"]
    replicas = the("pytorchjob", "PyTorchJob")["spec"]["pytorchReplicaSpecs"]
    templates = [the("job", "Job")["spec"]["template"]]
    templates += [one["template"] for one in replicas.values()]
    for template in templates:
        assert labels.items() <= template["metadata"]["labels"].items()


def test_every_probe_and_program_is_in_the_image() -> None:
    spec = the("network", "Deployment")["spec"]["template"]["spec"]
    for container in spec["containers"]:
        for probe in ("startupProbe", "livenessProbe"):
            assert container[probe]["exec"]["command"][0] == "p4reduce-answers"
    assert (ROOT / "deploy" / "container" / "p4reduce-answers").stat().st_mode & 0o111
    for _, pod in pods()[1:]:
        program = pod["containers"][0]["command"][1]
        assert (ROOT / "examples" / Path(program).name).is_file()


def test_the_certificate_is_for_the_services_names(tmp_path: Path) -> None:
    secrets = [one for one in rendered("network") if one["kind"] == "Secret"]
    by_name = {one["metadata"]["name"]: one["data"] for one in secrets}
    certificate = tmp_path / "controller.pem"
    certificate.write_bytes(base64.b64decode(by_name["p4reduce-controller"]["controller.pem"]))
    for host in ("p4reduce", f"p4reduce.{NAMESPACE}.svc"):
        said = subprocess.run(
            ["openssl", "x509", "-in", certificate, "-noout", "-checkhost", host],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "does match" in said.stdout
    assert len(base64.b64decode(by_name["p4reduce-worker"]["P4REDUCE_UDP_KEY"])) == 64


def test_no_secret_is_in_the_repository() -> None:
    ignored = subprocess.run(
        ["git", "check-ignore", SOURCE / "network" / "secrets" / "udp.key"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ignored.returncode in (0, 128), ignored.stderr  # 128: no repository
