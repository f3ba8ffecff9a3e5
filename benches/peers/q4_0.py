"""A Q4_0 file of a GGUF file, by llama.cpp's own quantiser, for peers that run it faster.

    python benches/peers/q4_0.py MODEL.gguf OUT.gguf

Needs cyllama (`pip install --group peers`). What was rounded in MODEL.gguf is rounded once more.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from support.script import run_script

_FTYPE = 2
"""`LLAMA_FTYPE_MOSTLY_Q4_0` of llama.h."""


def quantize(model, out):
    """Write the Q4_0 form of a GGUF file; `out` appears when it is complete."""
    from cyllama.llama import llama_cpp

    llama_cpp.disable_logging()
    params = llama_cpp.LlamaModelQuantizeParams()
    params.ftype, params.allow_requantize = _FTYPE, True
    part = out.with_name(f"{out.name}.part")
    try:
        llama_cpp.model_quantize(str(model), str(part), params)
        part.rename(out)
    finally:
        part.unlink(missing_ok=True)


def main(arguments=None):
    """Make the file; 2 and one line where that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    options = parser.parse_args(arguments)
    if not options.model.is_file():
        print(f"q4_0.py: there is no file {options.model}", file=sys.stderr)
        return 2
    try:
        quantize(options.model, options.out)
    except ModuleNotFoundError as error:
        print(f"q4_0.py: no module named {error.name}: pip install --group peers", file=sys.stderr)
        return 2
    except Exception as error:  # whatever cyllama raises
        print(f"q4_0.py: {options.model} cannot be quantised: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run_script(main)
