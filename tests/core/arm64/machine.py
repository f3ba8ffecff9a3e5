"""The emulated machine: an arm64 system under qemu's user mode, one view of it per processor.

`build/arm64/system` holds Debian's Python and C libraries for arm64, `build/arm64/site` the
packages that tests need; `environment.py` makes both. Nothing is installed on the machine itself.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build" / "arm64"
SYSTEM, SITE, WHEELS = BUILD / "system", BUILD / "site", BUILD / "wheels"
TARGET = "aarch64-unknown-linux-gnu"

_FEATURES = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
_MORE_FEATURES = f"{_FEATURES} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"
PROCESSORS = {
    "cortex-a53": ("0xd03", _FEATURES),
    "neoverse-n1": ("0xd0c", _MORE_FEATURES),
    "max": ("0xd40", f"{_MORE_FEATURES} sve i8mm bf16"),
}
"""By qemu's name: ARM's number of the part, and what /proc/cpuinfo says that it has.

The first has no dot products of bytes, the second has; the third is all that qemu knows, and has
the number of a Neoverse V1.
"""


def view(processor: str) -> Path:
    """The system with the /proc/cpuinfo of a processor.

    qemu 7.2 shows the one of the machine that emulates: ONNX Runtime reads it at its import, finds
    no ARM processor, and crashes.
    """
    folder = BUILD / "views" / processor
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("etc", "lib", "usr"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(SYSTEM / name)
    part, features = PROCESSORS[processor]
    (folder / "proc").mkdir(exist_ok=True)
    (folder / "proc" / "cpuinfo").write_text(
        "".join(
            f"processor\t: {number}\nBogoMIPS\t: 50.00\nFeatures\t: {features}\n"
            "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\n"
            f"CPU part\t: {part}\nCPU revision\t: 0\n\n"
            for number in range(os.cpu_count() or 1)
        )
    )
    return folder


def emulated(processor: str) -> list[str]:
    """The words before the command of an arm64 program."""
    return ["qemu-aarch64", "-cpu", processor, "-L", str(view(processor))]


def python(processor: str) -> list[str]:
    """The command of the emulated Python, in which the built wheel is installed."""
    script = view(processor) / "python"
    modules = ":".join(map(str, (Path(__file__).parent / "guest", SITE)))
    script.write_text(
        "#!/bin/sh\n"
        f"export COORDGEN_EMULATED_PYTHON='{script}' PYTHONPATH='{modules}'\n"
        f"exec {' '.join(emulated(processor))} '{SYSTEM}/usr/bin/python3.11' \"$@\"\n"
    )
    script.chmod(0o755)
    return [str(script)]


def run(*command: str | Path, **variables: str) -> None:
    """Run a command in the checkout; its failure ends the program, with its output before.

    Raises:
        SystemExit: The command fails.
    """
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | variables)
    if done.returncode != 0:
        raise SystemExit(f"arm64: {' '.join(words[:6])} .. ends with {done.returncode}")


def say(text: str) -> None:
    """A line of what is done."""
    print(text, file=sys.stderr, flush=True)
