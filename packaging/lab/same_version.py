# SPDX-License-Identifier: Apache-2.0
"""Makes p4reduce-lab depend on p4reduce of the same version."""

from __future__ import annotations

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):  # type: ignore[misc]
    """Called by hatchling for `[tool.hatch.metadata.hooks.custom]`."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [f"p4reduce[demo]=={metadata['version']}"]
