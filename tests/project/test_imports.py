"""What is loaded when: a program pays for what it uses."""

import importlib.metadata
import inspect
import os
import pickle
import subprocess
import sys
import typing

import pytest

import coordgen_rs
from coordgen_rs import errors

APART = ("cli", "convert", "formats", "server", "runtime.qnn", "lab")
"""Parts that no request on CPU needs."""

ANSWER = """
from coordgen_rs import Model
with Model.open(sys.argv[1]) as model:
    assert model.generate("Hello", max_new_tokens=2).token_ids
"""


def loaded_by(code, *arguments):
    """Names of our modules that `code` loads, and of NumPy's and ONNX Runtime's."""
    listing = """
packages = ("coordgen_rs", "numpy", "onnxruntime")
print(*(name for name in sys.modules if name.split(".")[0] in packages))
"""
    command = [sys.executable, "-c", f"import sys\n{code}{listing}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return set(done.stdout.split())


def of_parts(modules, parts):
    prefixes = tuple(f"coordgen_rs.{part}" for part in parts)
    return {module for module in modules if module.startswith(prefixes)}


def test_importing_the_package_loads_nothing_else():
    modules = loaded_by("import coordgen_rs")
    assert modules == {"coordgen_rs"}


def test_the_loop_loads_no_runtime():
    modules = loaded_by("from coordgen_rs import generate")
    assert not of_parts(modules, APART)
    assert "onnxruntime" not in modules


def test_an_answer_on_cpu_loads_nothing_that_it_does_not_use(bundle_of):
    modules = loaded_by(ANSWER, bundle_of("embedded", "fp32"))
    unused = ("store.history", "loading.profile", "loading.source")
    unused += ("generation.drafting.draft_model", "generation.drafting.warm_up")
    assert not of_parts(modules, (*APART, *unused))


def test_an_answer_loads_no_history_energy_or_profile_that_it_does_not_use(bundle_of):
    modules = loaded_by(ANSWER, bundle_of("embedded", "fp32"))
    assert not of_parts(
        modules,
        (
            *("store.history", "loading.profile", "loading.conversion"),
            *("generation.drafting.draft_model", "generation.drafting.warm_up"),
        ),
    )


def test_the_version_is_told_without_loading_a_command_a_tool_or_numpy():
    modules = loaded_by("from coordgen_rs.__main__ import main\nmain()", "--version")
    assert "coordgen_rs.cli.main" in modules
    assert not of_parts(modules, ("cli.commands", "cli.option", "lab"))
    assert not modules & {"numpy", "onnxruntime"}


def test_commands_are_declared_without_the_packages_of_extras():
    code = """
from coordgen_rs.cli.main import make_parser
make_parser()
extras = {"matplotlib", "onnx", "prompt_toolkit", "pyarrow", "ray", "safetensors", "starlette"}
assert not extras & {*sys.modules}
"""
    assert "coordgen_rs.convert.export" in loaded_by(code)


def test_the_version_is_that_of_the_package_and_errors_are_of_the_module_that_exports_them():
    assert coordgen_rs.__version__ == importlib.metadata.version("coordgen-rs")
    for name in errors.__all__:
        assert getattr(errors, name).__module__ == "coordgen_rs.errors"
    assert type(pickle.loads(pickle.dumps(errors.OptionError("no")))) is errors.OptionError


def test_exported_names_are_there_and_their_annotations_are_names_of_the_api():
    names = {name: getattr(coordgen_rs, name) for name in coordgen_rs.__all__}
    assert names.keys() <= set(dir(coordgen_rs))
    hints = []
    for value in names.values():
        methods = vars(value).values() if inspect.isclass(value) else ()
        for function in filter(inspect.isfunction, (value, *methods)):
            hints.append(typing.get_type_hints(function, localns=names))
    assert len(hints) > len(names), "functions and methods whose annotations were evaluated"


@pytest.mark.parametrize(
    ("code", "written"),
    [(ANSWER, ["coordgen_rs"]), ("import coordgen_rs.loading.directory", [])],
    ids=["answer", "first import"],
)
def test_onnx_runtime_neither_reports_its_use_nor_writes_into_the_home(
    tmp_path, bundle_of, code, written
):
    cache = tmp_path / "cache"
    cache.mkdir()
    bundle = bundle_of("embedded-draft", "fp32")
    silencers = ("CI", "GITHUB_ACTIONS", "TF_BUILD", "ORT_DISABLE_TELEMETRY")
    environment = {name: value for name, value in os.environ.items() if name not in silencers}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", f"import sys\n{code}", str(bundle)]
    subprocess.run(command, env=environment, timeout=600, check=True)
    assert [path.name for path in cache.iterdir()] == written
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
