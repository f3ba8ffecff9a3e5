"""The condition that figures were measured under; without it they mean nothing.

In: a session, and what was asked for. Out: machine, provider, versions, commit, bundle, data and
options, as JSON types and as one line for captions. It measures nothing.
"""

import hashlib
import platform
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from coordgen_rs.loading.profile import bundle_facts, device_facts
from coordgen_rs.runtime.ort_session import OrtSession

_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class Condition:
    """What the figures depend on.

    Attributes:
        device: Provider, processor, cores, threads, system and ONNX Runtime's version; for QNN its
            versions, the chip, and whether it is emulated.
        software: Versions of what is not in `device`.
        commit: The commit of the checkout that runs, with "+" where files of it were changed;
            None for an installed wheel, which `software` names.
        bundle: Name, weights, and the SHA-256 of the manifest, which holds those of all files.
        data: Name and SHA-256 of the file of prompts, and the prompts of each task that were used;
            None where there was none.
        options: What was asked for.
    """

    device: dict[str, object]
    software: dict[str, str]
    commit: str | None
    bundle: dict[str, object]
    data: dict[str, object] | None
    options: dict[str, object]

    @classmethod
    def of(
        cls,
        session: OrtSession,
        data: Path | None,
        num_prompts: dict[str, int],
        options: dict[str, object],
    ) -> "Condition":
        """The condition of this process.

        Raises:
            OSError: The data cannot be read.
        """
        return cls(
            device=device_facts(session.bundle, session.threads),
            software={
                "coordgen_rs": version("coordgen-rs"),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            commit=commit_of(Path(__file__)),
            bundle=bundle_facts(session.bundle),
            data=None
            if data is None
            else {
                "name": data.name,
                "sha256": hashlib.sha256(data.read_bytes()).hexdigest(),
                "num_prompts": num_prompts,
            },
            options=options,
        )

    def to_json(self) -> dict[str, Any]:
        """The condition as JSON types."""
        return asdict(self)

    def caption(self) -> str:
        """The condition in one line."""
        device, bundle = self.device, self.bundle
        code = f"coordgen_rs {self.software['coordgen_rs']}"
        if self.commit is not None:
            code += f" at {self.commit[:_SHOWN_DIGITS]}{'+' if self.commit.endswith('+') else ''}"
        chip = f" for {device['soc']}" if "soc" in device else ""
        chip += ", emulated" if self.device.get("is_emulator") else ""
        return (
            f"{device['cpu']}, {device['cores']} cores, {device['threads']} threads, "
            f"{device['system']}; {device['provider']}{chip}, "
            f"onnxruntime {device['onnxruntime']}; {code}; "
            f"bundle {bundle['name']} {bundle['weights']} "
            f"{str(bundle['manifest_sha256'])[:_SHOWN_DIGITS]}"
        )


def commit_of(file: Path) -> str | None:
    """The commit of the checkout that tracks a file, "+" behind it where tracked files differ.

    None where git is not there, or tracks the file nowhere.
    """

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(file.parent), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", file.name) is None:
        return None
    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    return commit.strip() + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
