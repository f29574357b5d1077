"""Where the controller listens: what is an address, and who gets a socket in the file system."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.sdn import endpoint
from ropewalk.sdn.config import Tls
from ropewalk.sdn.endpoint import Endpoint
from ropewalk.sdn.openflow.switches import Switches
from ropewalk.sdn.reader import ConfigError
from ropewalk.sdn.service import context


@pytest.mark.parametrize("text", ["192.0.2.1:6653", "[2001:db8::1]:6653", "unix:/run/x.sock"])
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert str(endpoint.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", "here", "192.0.2.1", "192.0.2.1:0", "192.0.2.1:65536", "192.0.2.1:٣", "host:80"),
        *("2001:db8::1:6653", "[192.0.2.1]:80", "[::1]", "unix:", "unix:run/x"),
        "unix:/" + "x" * 107,
        *("192.0.2.1:" + "9" * 5000, "192.0.2.1:-1", "192.0.2.1: 1"),
    ],
)  # fmt: skip
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="no a"):
        endpoint.parse(text)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_an_error(text: str) -> None:
    try:
        read = endpoint.parse(text)
    except ValueError:
        return
    assert endpoint.parse(str(read)) == read


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_both_address_families_can_be_listened_on(host: str) -> None:
    with (
        endpoint.listener(Endpoint(host, 0), 1) as listening,
        socket.create_connection((host, listening.getsockname()[1]), timeout=5),
    ):
        pass


def test_an_address_that_is_taken_is_named_with_a_remedy(tmp_path: Path) -> None:
    with endpoint.listener(Endpoint("127.0.0.1", 0), 1) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}: .*running already"):
            endpoint.listener(Endpoint("127.0.0.1", port), 1)
    with pytest.raises(OSError, match=r"192\.0\.2\.1:1: .*address of this machine"):
        endpoint.listener(Endpoint("192.0.2.1", 1), 1)
    with pytest.raises(OSError, match="Open vSwitch makes its own"):
        endpoint.listener(Endpoint(path=tmp_path / "none" / "x"), 1)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(OSError, match="no socket"):
        endpoint.listener(Endpoint(path=tmp_path / "file"), 1)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_socket_in_the_file_system_is_for_its_directorys_owner_alone(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)
    place = Endpoint(path=tmp_path / "x.sock")
    assert place.path is not None
    listening = endpoint.listener(place, 1)
    found = place.path.stat()
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert found.st_uid == tmp_path.stat().st_uid
    # A second controller does not take it away.
    with pytest.raises(OSError, match="running already"):
        endpoint.listener(place, 1)
    endpoint.closed(listening, place)
    assert not place.path.exists()


def test_what_a_killed_controller_left_is_replaced(tmp_path: Path) -> None:
    place = Endpoint(path=tmp_path / "x.sock")
    text = (
        "import os, signal\nfrom pathlib import Path\nfrom ropewalk.sdn import endpoint\n"
        f"here = endpoint.Endpoint(path=Path({str(place.path)!r}))\n"
        "kept = endpoint.listener(here, 1)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", text], check=False, timeout=30)
    assert killed.returncode == -signal.SIGKILL
    assert place.path is not None
    assert place.path.is_socket()
    switches = Switches(place, lambda _: None, lambda *_: None, None, 1)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(place.path))
        # The controller greets first.
        assert client.recv(8)[:2] == b"\x04\x00"
    switches.close()
    assert not place.path.exists()


def test_files_that_are_none_for_tls_are_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        request = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
        request += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={name}"]
        request += ["-keyout", f"{tmp_path}/{name}.key", "-out", f"{tmp_path}/{name}.crt"]
        subprocess.run(request, check=True, capture_output=True, timeout=30)
    (tmp_path / "junk").write_text("junk")
    protect = ["openssl", "ec", "-aes128", "-passout", "pass:secret"]
    protect += ["-in", f"{tmp_path}/a.key", "-out", f"{tmp_path}/protected.key"]
    subprocess.run(protect, check=True, capture_output=True, timeout=30)

    def tls(key: str, certificate: str, authority: str) -> Tls:
        return Tls(tmp_path / key, tmp_path / certificate, tmp_path / authority, None, None)

    context(tls("a.key", "a.crt", "b.crt"))
    for files, wrong in (
        (("none", "a.crt", "a.crt"), "none: No such file"),
        (("a.key", "none", "a.crt"), "none: No such file"),
        (("a.key", "a.crt", "none"), "none: No such file"),
        (("a.key", "a.crt", "junk"), "junk: not the certificates"),
        (("b.key", "a.crt", "a.crt"), r"b.key: not the key of .*a.crt"),
        # Nobody is asked for the password of a key.
        (("protected.key", "a.crt", "a.crt"), r"protected.key: not the key of .* encrypted"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            context(tls(*files))
