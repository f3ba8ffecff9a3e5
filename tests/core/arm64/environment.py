"""Makes what the arm64 tests run in, without installing it on this machine.

python tests/core/arm64/environment.py check      # which packages of Debian are missing
python tests/core/arm64/environment.py system     # build/arm64/system, from Debian's arm64 packages
python tests/core/arm64/environment.py site       # build/arm64/site, from wheels for arm64
"""

import argparse
import shutil
import subprocess
import sys

from machine import BUILD, SITE, SYSTEM, WHEELS, run

CROSS_PACKAGES = (
    "cargo-web",
    "g++-aarch64-linux-gnu",
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "libstd-rust-web-dev:arm64",
    "libstd-rust-web-dev:amd64",
    "qemu-user",
    "rustc-web",
)
"""What builds and emulates. Debian's `rustc` is too old for the crate; `rustc-web` follows Rust."""

SYSTEM_PACKAGES = (
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"),
    *("libc6", "libgcc-s1", "libstdc++6"),
    *("libbz2-1.0", "libexpat1", "libffi8", "liblzma5", "libsqlite3-0", "libssl3", "libuuid1"),
    "zlib1g",
)
"""What is unpacked and never installed: Python of two architectures cannot stand side by side."""

PYTHON_VERSION = "311"  # of SYSTEM_PACKAGES


def missing() -> list[str]:
    """Of the cross packages, those that are not installed."""
    command = ["dpkg-query", "-W", "-f", "${binary:Package} ${db:Status-Status}\n"]
    done = subprocess.run(command, capture_output=True, text=True)
    states = (line.split() for line in done.stdout.splitlines())
    names = {state[0] for state in states if state[-1] == "installed"}
    names |= {name.removesuffix(":amd64") for name in names}
    return [name for name in CROSS_PACKAGES if name not in names]


def check() -> None:
    """Say in one line which packages are missing, and how to install them.

    Raises:
        SystemExit: One is missing.
    """
    if shutil.which("dpkg-query") is None:
        raise SystemExit("arm64: this needs Debian 12 on x86-64, whose packages it uses")
    if absent := missing():
        raise SystemExit(
            f"arm64: missing {' '.join(absent)}: run `make arm64-packages` as root, or "
            "`dpkg --add-architecture arm64 && apt-get update && apt-get install "
            f"--no-install-recommends {' '.join(absent)}`"
        )


def install() -> None:
    """Install the cross packages that are missing; only root can."""
    if absent := missing():
        run("dpkg", "--add-architecture", "arm64")
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *absent)


def system() -> None:
    """Unpack Debian's Python for arm64 and the libraries that it and wheels need."""
    folder, unpacked = BUILD / "packages", BUILD / "system.part"
    for old in (folder, unpacked, SYSTEM):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True)
    command = ["apt-get", "download", "-qq", *(f"{name}:arm64" for name in SYSTEM_PACKAGES)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip() or "apt-get fails").splitlines()[-1]
        raise SystemExit(f"arm64: {last}: run `apt-get update` as root, then this again")
    for package in sorted(folder.glob("*.deb")):
        run("dpkg", "-x", package, unpacked)
    shutil.rmtree(folder)
    unpacked.rename(SYSTEM)


def site() -> None:
    """Install the built wheel, what it needs and what runs tests, as pip there would choose it."""
    shutil.rmtree(SITE, ignore_errors=True)
    (wheel,) = WHEELS.glob("*.whl")
    # glibc 2.36 of Debian 12 takes wheels for any older one; pip wants each tag by name.
    tags = [f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)]
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:"),
        *("--implementation", "cp", "--python-version", PYTHON_VERSION),
        *("--abi", f"cp{PYTHON_VERSION}", "--abi", "abi3", "--abi", "none"),
        *(word for tag in tags for word in ("--platform", tag)),
        *("--platform", "manylinux2014_aarch64", "--target", SITE),
        *(f"{wheel}[export]", "hypothesis", "pytest", "safetensors"),
    )


if __name__ == "__main__":
    parts = {"check": check, "install": install, "system": system, "site": site}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=parts)
    parts[parser.parse_args().part]()
