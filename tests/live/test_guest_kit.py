"""The kit of guests: is an older QEMU passed over, and does a package that has changed say so?"""

from pathlib import Path

import pytest

from tests.live import guest_qemu
from tests.live.guest_qemu import Apt, Changed, Pin

PIN = Pin("some", "1.0", "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae")
"""A package whose file has the bytes "foo"."""


class Offline(Apt):
    """A Debian with one package, whose file has the bytes "foo"."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self.version = folder, version

    def versions(self, names: list[str]) -> dict[str, str]:
        return dict.fromkeys((name for name in names if name == PIN.name), self.version)

    def download(self, names: list[str], versions: dict[str, str]) -> dict[str, Path]:
        assert names == [PIN.name] and versions == {PIN.name: self.version}
        (self.folder / "some.deb").write_bytes(b"foo")
        return {PIN.name: self.folder / "some.deb"}


def test_the_packages_are_pinned():
    pins = guest_qemu.pins()
    assert len({pin.name for pin in pins}) == len(pins)
    assert {"libc6", *guest_qemu.DATA} <= {pin.name for pin in pins}
    for pin in pins:
        assert len(bytes.fromhex(pin.sha256)) == 32, pin


def test_a_changed_package_says_so(tmp_path):
    with pytest.raises(Changed, match=r"some 1\.0 is now 1\.1\. Run python -m"):
        Offline(tmp_path, "1.1").fetch([PIN], tmp_path / "root")
    with pytest.raises(Changed, match=r"other 1\.0 is now gone"):
        Offline(tmp_path, "1.0").fetch([PIN, PIN._replace(name="other")], tmp_path / "root")
    with pytest.raises(Changed, match=f"some 1.0 has SHA-256 {PIN.sha256}, not 00"):
        Offline(tmp_path, "1.0").fetch([PIN._replace(sha256="00")], tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("version", "devices", "found"),
    [("7.2.22", "vfio-user-pci", False), ("10.0.9", "vfio-user-pci", False),
     ("10.1.0", "nvme", False), ("10.1.0", "vfio-user-pci", True),
     ("11.1.3", "vfio-user-pci", True)],
)  # fmt: skip
def test_a_qemu_of_this_machine(tmp_path, monkeypatch, version, devices, found):
    program = tmp_path / "qemu-system-x86_64"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "QEMU emulator version {version} '
                       f'(Debian)" || echo \'name "{devices}", bus PCI\'\n')  # fmt: skip
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    guest_qemu.installed.cache_clear()
    try:
        assert guest_qemu.installed() == (str(program) if found else None)
        if found:
            assert guest_qemu.why_not() == "" and guest_qemu.find().words == (str(program),)
    finally:
        guest_qemu.installed.cache_clear()
