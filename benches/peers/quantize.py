"""A GGUF file in another type, by llama.cpp's own quantiser.

    python benches/peers/quantize.py MODEL.gguf OUT.gguf --type Q4_K_M

Needs cyllama (`pip install --group peers`). What was rounded in MODEL.gguf is rounded once more;
`perplexity.py` compares the files.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from coordgen_rs.errors import OptionError
from support.script import parser_of, reports_errors, run_script

TYPES = {"F32": 0, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18}
"""Names of files' types, and numbers of `enum llama_ftype` in llama.h."""


def quantize(model, out, file_type="Q4_0"):
    """Write a GGUF file in a type; `out` appears when it is complete."""
    from cyllama.llama import llama_cpp

    llama_cpp.disable_logging()
    params = llama_cpp.LlamaModelQuantizeParams()
    params.ftype, params.allow_requantize = TYPES[file_type], True
    part = out.with_name(f"{out.name}.part")
    try:
        llama_cpp.model_quantize(str(model), str(part), params)
        part.rename(out)
    finally:
        part.unlink(missing_ok=True)


@reports_errors
def main(arguments=None):
    """Make the file; 2 and one line where that fails."""
    parser = parser_of(__doc__)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("out", type=Path, metavar="OUT.gguf")
    parser.add_argument("--type", choices=TYPES, default="Q4_0", help="default %(default)s")
    options = parser.parse_args(arguments)
    if not options.model.is_file():
        raise OptionError(f"there is no file {options.model}")
    try:
        quantize(options.model, options.out, options.type)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # whatever cyllama raises
        raise OptionError(f"{options.model} cannot be quantised: {error}") from error


if __name__ == "__main__":
    run_script(main)
