# SPDX-License-Identifier: Apache-2.0
"""``p4reduce-lab deploy``: a network that stays up, and a file with what ranks need."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from p4reduce_lab.deploy.credentials import write_private
from p4reduce_lab.deploy.serving import PAUSE, serve
from p4reduce_lab.deploy.settings import DeploySettings
from p4reduce_lab.errors import LabError
from p4reduce_lab.services import Services


def run_until_signal(settings: DeploySettings, file: Path | None) -> None:
    """Start a network, and keep it up until a signal ends this process.

    Args:
        settings: of the network.
        file: where the variables go; None: to standard output.

    Raises:
        LabError: it does not start, ends again and again, or the file cannot be written.
    """

    def ready(services: Services) -> None:
        exports = "".join(
            f"export {name}={shlex.quote(value)}\n"
            for name, value in services.parts.variables.items()
        )
        print(f"Ready: {services.parts.text}")
        if file is None:
            print(f"Ranks find it with\n{exports}", end="")
        else:
            _write(file, exports)
            print(f"Ranks find it with\n  . {shlex.quote(str(file))}")
        print("Ctrl-C ends it.", flush=True)

    def news(services: Services, what: str) -> None:
        print(what, flush=True)

    def wait(services: Services) -> bool:
        time.sleep(PAUSE)
        return False

    try:
        serve(settings, ready, news, wait)
    finally:
        if file is not None:
            file.unlink(missing_ok=True)


def _write(file: Path, text: str) -> None:
    beside = file.with_name(f"{file.name}.new")
    try:
        beside.unlink(missing_ok=True)
        write_private(beside, text)
        beside.replace(file)  # a process that waits for the file finds all of it
    except OSError as error:
        raise LabError(f"cannot write the variables to {file}: {error.strerror}") from None
