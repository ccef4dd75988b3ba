# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
from pathlib import Path

import pytest
from p4reduce_controller.service.listen import ListenError, prepare


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:5000", "[::1]:5000", "127.9.9.9:1"])
def test_loopback_is_fine(address: str) -> None:
    prepare(address)


@pytest.mark.parametrize("address", ["0.0.0.0:5000", "[::]:5000", "10.0.0.1:5000", "example:1"])
def test_beyond_loopback_is_refused(address: str) -> None:
    with pytest.raises(ListenError, match="TLS"):
        prepare(address)


@pytest.mark.parametrize("address", ["", "5000", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536"])
def test_no_address_at_all(address: str) -> None:
    with pytest.raises(ListenError, match=r"of the form HOST:PORT or unix:PATH|within 0 to 65535"):
        prepare(address)


def test_a_new_directory_is_private(tmp_path: Path) -> None:
    prepare(f"unix:{tmp_path}/new/controller.sock")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ListenError, match="open to other users"):
        prepare(f"unix:{tmp_path}/open/controller.sock")


def test_a_dead_socket_is_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "controller.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    prepare(f"unix:{path}")
    assert not path.exists()


def test_a_live_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "controller.sock"
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        with pytest.raises(ListenError, match="another controller listens"):
            prepare(f"unix:{path}")
        assert path.is_socket()


def test_a_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "controller.sock"
    path.write_text("precious")
    with pytest.raises(ListenError, match="is not a socket"):
        prepare(f"unix:{path}")
    assert path.read_text() == "precious"


def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="107 bytes"):
        prepare(f"unix:{tmp_path}/{'x' * 108}")
