"""`coordgen export`: convert a checkpoint to a bundle, for CPU or for QNN."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import refuse_gone
from coordgen_rs.bundle.qnn import SOCS
from coordgen_rs.cli import option
from coordgen_rs.cli.commands.info import kept_lines
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.cli.terminal.text import counted, tell
from coordgen_rs.errors import OptionError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.loading.directory import PROVIDERS

EXAMPLES = """\
examples:
  coordgen export Llama-3.2-1B-Instruct bundle --weights int8 --context 4096
  coordgen export SmolLM2-135M-Instruct.Q4_0.gguf bundle
  coordgen export hf:Qwen/Qwen2.5-0.5B-Instruct bundle --weights int8
  coordgen export Qwen2.5-0.5B-Instruct bundle --weights int4 --blocks 6
  coordgen export hf:google/gemma-4-E2B-it bundle --assistant hf:google/gemma-4-E2B-it-assistant
  coordgen export stories260K bundle
  coordgen export Qwen2.5-0.5B bundle --provider qnn --soc 8-elite --calibration mails.jsonl
"""

_OF_BOTH = (
    *("checkpoint", "out", "blocks", "prefill_rows", "decode_rows", "context"),
    *("chat_template", "calibration"),
)


def add_arguments(parser: Parser) -> None:
    """Declare the options of the command."""
    parser.declare(
        option.path("checkpoint CHECKPOINT").help(
            "a Hugging Face directory, a GGUF file, hf:OWNER/NAME with /FILE.gguf or @REVISION "
            "behind it, or a llama2.c legacy checkpoint"
        ),
        option.path("out OUT").help("the bundle's directory; must not exist yet"),
        option.choice("--provider", PROVIDERS, default="cpu").help(
            "the provider that will run it; default %(default)s"
        ),
        option.choice("--weights", ["fp32", "int8", "int4", "keep"], check=refuse_gone).help(
            "default: for cpu keep, what the checkpoint holds, called fp32 where that is float32; "
            "for qnn int8, where activations have 16 bits"
        ),
        option.count("--blocks N", default=1).help(
            "parts to split the layers into; default %(default)s"
        ),
        option.count("--prefill-rows N", default=256).help(
            "tokens per chunk of a prompt; default %(default)s"
        ),
        option.count("--decode-rows N", default=32).help(
            "rows of the widest step; default %(default)s"
        ),
        option.count("--context N").help(
            "cache size in tokens; default: the model's, at most 4096 for cpu, 1024 for qnn"
        ),
        option.path("--chat-template FILE").help(
            "a chat template in Jinja; default: the checkpoint's own"
        ),
        option.path("--tokenizer FILE").help(
            "a tokenizer.json to use instead of the checkpoint's own (cpu)"
        ),
        option.path("--calibration FILE").help(
            "text similar to what the model will read: UTF-8, or JSON lines (.jsonl), for "
            "--weights int4 and for qnn; the default is four short English texts for qnn, and "
            "none for int4"
        ),
    )
    parser.declare(
        option.path("--assistant CHECKPOINT").help(
            "a drafter published for the checkpoint, which --draft mtp and auto then use: a "
            "Hugging Face directory or hf:OWNER/NAME of one of Gemma 4's assistants (cpu)"
        )
    )
    parser.declare_group(
        "options for qnn",
        option.word("--soc NAME").help(f"the chip: {', '.join(SOCS)}"),
        option.choice("--kv-cache", ["uint8", "uint16"]).help(
            "type of cached keys and values; default: uint8"
        ),
        option.count("--narrow-rows N").help("add a narrow decode graph, for short drafts"),
        option.JSON.help("print the report as JSON"),
    )


def run(options: argparse.Namespace) -> int:
    """Write the bundle, and print what was written.

    Raises:
        OptionError: Two options exclude each other, or a package is missing.
    """
    from_qnn = ("soc", "kv_cache", "narrow_rows", "json")
    given = [f"--{name.replace('_', '-')}" for name in from_qnn if getattr(options, name)]
    if options.provider == "cpu" and given:
        raise OptionError(f"{given[0]} is for --provider qnn")
    try:
        return _EXPORT[options.provider](options)
    except ModuleNotFoundError as error:
        raise OptionError(f"exporting needs {error.name}: {how_to_install('export')}") from error


def _for_both(options: argparse.Namespace) -> dict[str, Any]:
    """What both exporters are told by the same names."""
    return {name: getattr(options, name) for name in _OF_BOTH}


def _export_cpu(options: argparse.Namespace) -> int:
    from coordgen_rs.convert import export_checkpoint

    with progress() as on_progress:
        sizes = export_checkpoint(
            **_for_both(options),
            weights=options.weights,
            tokenizer=options.tokenizer,
            assistant=options.assistant,
            on_progress=on_progress,
        )
    manifest = Bundle.open(options.out).manifest
    for line in kept_lines(manifest):
        tell(line)
    megabytes = {kind: f"{num_bytes / 1e6:.1f}" for kind, num_bytes in sizes.items()}
    taken = megabytes.pop(manifest.weights)
    others = ", ".join(f"{kind} {size}" for kind, size in megabytes.items())
    tell(f"weights: {manifest.weights}, {taken} MB; others would take, in MB: {others}")
    tell(f"{options.out}: written")
    return 0


def _export_qnn(options: argparse.Namespace) -> int:
    from coordgen_rs.convert.qnn.exporter import export_qnn

    for_cpu = {
        "--tokenizer": options.tokenizer is not None,
        "--assistant": options.assistant is not None,
        "--weights keep": options.weights == "keep",
    }
    for name, is_given in for_cpu.items():
        if is_given:
            raise OptionError(f"{name} is for --provider cpu")
    if options.soc is None:
        raise OptionError("--provider qnn needs --soc NAME, the chip")
    with _stop_told(options.out), progress() as on_progress:
        report = export_qnn(
            **_for_both(options),
            soc=options.soc,
            weights=options.weights or "int8",
            cache_type=options.kv_cache or "uint8",
            narrow_rows=options.narrow_rows,
            on_progress=on_progress,
        )
    if options.json:
        print(json.dumps(report.to_json()))
    else:
        print("\n".join(report.lines()), file=sys.stderr)
    return 0


@contextmanager
def _stop_told(out: Path) -> Iterator[None]:
    """Say, where an export is interrupted, that the same command goes on.

    Raises:
        KeyboardInterrupt: It was interrupted.
    """
    from coordgen_rs.convert.qnn.resume import num_prepared

    try:
        yield
    except KeyboardInterrupt:
        if found := num_prepared(out):
            tell(f"{counted(found, 'graph')} kept: the same command goes on from here")
        raise


_EXPORT = {"cpu": _export_cpu, "qnn": _export_qnn}
