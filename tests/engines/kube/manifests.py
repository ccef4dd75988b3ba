# SPDX-License-Identifier: Apache-2.0
"""The manifests of deploy/kubernetes, as kustomize makes them."""

from __future__ import annotations

import base64
import copy
import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from distributions import run
from needed import ROOT

SOURCE = ROOT / "deploy" / "kubernetes"
NAMESPACE = "here"
Manifest = dict[str, Any]


@cache
def rendered(part: str) -> list[Manifest]:
    """All objects of ``network``, ``job`` or ``pytorchjob``, with fresh secrets."""
    import yaml

    with TemporaryDirectory() as name:
        # kustomize reads no file outside of its folder, so the secrets go into a copy.
        there = Path(name) / "kubernetes"
        shutil.copytree(SOURCE, there, ignore=shutil.ignore_patterns("secrets"))
        if part == "network":
            run(SOURCE / "make-secrets", NAMESPACE, there / part / "secrets")
        text = run("kubectl", "kustomize", there / part)
    return list(yaml.safe_load_all(text))


def the(part: str, kind: str) -> Manifest:
    """The only object of its kind."""
    [found] = [one for one in rendered(part) if one["kind"] == kind]
    return copy.deepcopy(found)


def containers_of(pod: Manifest) -> dict[str, Manifest]:
    """The containers of a pod's spec, by their names."""
    return {one["name"]: one for one in pod["containers"]}


def secret_for_podman(secret: Manifest, *, mounted: bool) -> str:
    """A Secret as podman 4.3 reads it: it decodes what it puts into variables, no files."""
    if not mounted:
        return json.dumps({name: "".join(text.split()) for name, text in secret["data"].items()})
    plain = {name: base64.b64decode(text).decode() for name, text in secret["data"].items()}
    return json.dumps({**secret, "data": plain})


def pods_of(job: Manifest, address: str) -> list[Manifest]:
    """The pods that Kubernetes makes of an Indexed Job; the network is at an address."""
    pods = []
    for index in range(job["spec"]["completions"]):
        pod = copy.deepcopy(job["spec"]["template"])
        pod["metadata"]["name"] = f"{job['metadata']['name']}-{index}"
        pod["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": str(index)}
        pod["spec"]["hostAliases"] = [{"ip": address, "hostnames": ["p4reduce"]}]
        pods.append({"apiVersion": "v1", "kind": "Pod", **pod})
    return pods
