"""Fetches and builds what the table calls of other engines, into `build/peers`, for `make table`.

In: the package index, and the sources of llama.cpp, which `make table` unpacks. Out:
ArcticInference's suffix decoding without its parts for vLLM, vLLM's module of n-grams without its
parts for a GPU, and a library of llama.cpp's n-gram drafting. What is there already is left alone;
what fails is named, and the table goes without it.
"""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parents[2]))

from recorded import arctic, llama_cpp, vllm_ngram
from support.script import run_script

_HERE = Path(__file__).parent


def main():
    """Build what is absent; 0 even where something failed, as the table says what is left out."""
    for name, built, build in (
        (arctic.PACKAGE, arctic.BUILT, build_arctic),
        (vllm_ngram.PACKAGE, vllm_ngram.BUILT, build_vllm),
        (llama_cpp.PACKAGE, llama_cpp.BUILT, build_llama_cpp),
    ):
        if built.exists():
            continue
        print(f"{name}: building {built.name} ..", file=sys.stderr, flush=True)
        built.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=built.parent) as place:
            try:
                build(Path(place), Path(place) / "built")
                (Path(place) / "built").rename(built)
            except subprocess.CalledProcessError as error:
                ended = f"{error.cmd[0]} ended with {error.returncode}"
                print(f"{name}: not built: {ended}", file=sys.stderr)
            except (OSError, ValueError, tarfile.TarError) as error:
                print(f"{name}: not built: {error}", file=sys.stderr)


def build_arctic(place, built):
    """The Python package with `suffix_decoding` alone, and its module in C++."""
    archive = _fetched(arctic.PINNED, place, "--no-binary", ":all:", "--no-build-isolation")
    with tarfile.open(archive) as tar:
        tar.extractall(place, filter="data")
    source = place / archive.name.removesuffix(".tar.gz")
    made = place / "made"
    cmake = ["cmake", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
    cmake += [f"-DPython_EXECUTABLE={sys.executable}", "-S", source / "csrc/suffix_decoding"]
    _run(*cmake, "-B", made)
    _run("cmake", "--build", made)
    package = built / "arctic_inference"
    shutil.copytree(source / "arctic_inference/suffix_decoding", package / "suffix_decoding")
    shutil.copy(source / "arctic_inference/__init__.py", package)
    (module,) = made.glob("_C.*.so")
    shutil.copy(module, package / "suffix_decoding")


def build_vllm(place, built):
    """One module out of the wheel."""
    with zipfile.ZipFile(_fetched(vllm_ngram.PINNED, place, "--only-binary", ":all:")) as wheel:
        built.write_bytes(wheel.read("vllm/v1/spec_decode/ngram_proposer.py"))


def build_llama_cpp(place, built):
    """A library of its n-gram drafting, from the sources.

    Most of what these files call is left out, a model's code above all: it is never reached.
    """
    source = llama_cpp.SOURCE / "vendor" / "llama.cpp"
    folders = [source / name for name in ("common", "include", "ggml/include", "vendor")]
    names = ("speculative", "ngram-map", "ngram-mod", "ngram-cache", "common", "log")
    sources = [_HERE / "llama_cpp.cpp", *(source / "common" / f"{name}.cpp" for name in names)]
    options = ["-std=c++17", "-O2", "-shared", "-fPIC", "-Wl,-Bsymbolic"]
    _run("c++", *options, *(f"-I{folder}" for folder in folders), *sources, "-o", built)


def _fetched(pinned, place, *how):
    """The only file that pip downloads for a requirement and its hash."""
    requirement, digest = pinned
    wanted = place / "requirements.txt"
    wanted.write_text(f"{requirement} --hash={digest}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *how]
    _run(*pip, "--dest", place / "fetched", "--requirement", wanted)
    (file,) = (place / "fetched").iterdir()
    return file


def _run(*command):
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    run_script(main)
