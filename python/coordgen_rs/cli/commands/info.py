"""`coordgen info`: describe a bundle."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import Manifest, ModelShape
from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.cli.terminal.text import counted, printable
from coordgen_rs.loading.directory import KINDS, open_bundle, unconverted

EXAMPLES = """\
example:
  coordgen info bundle
"""


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(option.BUNDLE, option.JSON.help("print the manifest as JSON instead"))


def run(options: argparse.Namespace) -> int:
    """Print what the manifest says, or the head of a checkpoint that is not converted yet."""
    head = unconverted(options.bundle)
    if head is not None:
        facts = _head_facts(head)
        print(json.dumps(facts, indent=2) if options.json else "\n".join(_head_lines(facts)))
        return 0
    with progress() as on_progress:
        bundle = open_bundle(options.bundle, on_progress=on_progress)
    manifest = bundle.manifest
    if options.json:
        print(manifest.to_json(), end="")
        return 0
    model, blocks = manifest.model, manifest.blocks
    num_bytes = sum(record.num_bytes for record in manifest.files.values())
    print(_sizes(model))
    if manifest.described_layers is not None:
        print(f"layers: {manifest.described_layers}")
    if manifest.experts is not None:
        print(f"experts: {manifest.experts.described(model.num_layers)}")
    if (table := manifest.per_layer) is not None:
        size = manifest.files[table.file].num_bytes
        print(
            f"embeddings of layers: {table.size} numbers each, {table.dtype}, "
            f"{size / 1e6:.1f} MB that stay on disk"
        )
    if manifest.mtp is not None:
        print(f"further tokens: a head (MTP) that scores {manifest.mtp.num_scored:,} tokens")
    if (assistant := manifest.assistant) is not None:
        print(f"further tokens: {assistant.described}")
    chip = f", {printable(manifest.qnn.soc)}" if manifest.qnn else ""
    print(f"provider: {manifest.provider}{chip}")
    print(f"weights: {manifest.weights}")
    print(f"size: {num_bytes / 1e6:.1f} MB in {len(manifest.files)} files")
    for line in kept_lines(manifest):
        print(line)
    print(f"blocks: {len(blocks)}, widths: {', '.join(map(str, manifest.widths))}")
    print(f"context: {manifest.context} tokens")
    print(f"requests: {_requests(bundle)}")
    if manifest.recommended is not None:
        told = (f"{name} {value:g}" for name, value in manifest.recommended.told().items())
        print(f"recommended sampling: {', '.join(told)}")
    print(f"written by: {printable(manifest.tool)}")
    return 0


def kept_lines(manifest: Manifest) -> list[str]:
    """What became of a checkpoint's weights: lines such as `kept: 210 Q4_0 tensors, exactly`."""
    return [
        f"kept: {counted(kept.num_tensors, f'{printable(kept.type)} tensor')}, "
        f"{'exactly' if kept.is_exact else 'as the nearest 8-bit integers'}"
        for kept in manifest.kept or []
    ]


def _head_facts(head: Any) -> dict[str, Any]:
    """What the head of a checkpoint tells of a model, as JSON."""
    config = head.config
    return {
        "is_converted": False,
        "model": {field.name: getattr(config, field.name) for field in fields(ModelShape)},
        "tensors": Counter(it.stored_type or "float32" for it in head.tensors.values()),
        "context": config.max_positions,
        "has_chat_template": bool(head.read_chat().sources),
    }


def _head_lines(facts: dict[str, Any]) -> Iterator[str]:
    yield _sizes(ModelShape(**facts["model"]))
    types = (f"{number} {printable(kind)}" for kind, number in facts["tensors"].items())
    yield f"tensors: {', '.join(types)}"
    yield f"context: up to {facts['context']} tokens"
    yield f"chat template: {'yes' if facts['has_chat_template'] else 'none'}"
    yield "not converted yet: that is done when it is first opened"


def _sizes(model: ModelShape) -> str:
    ffn = f"FFN {model.ffn_size}, " if model.ffn_size else ""
    heads = f"{model.num_heads} heads, " if model.num_heads else ""
    return (
        f"model: {printable(model.family)}, {model.num_layers} layers, hidden {model.hidden_size}, "
        f"{ffn}{heads}{model.num_kv_heads} KV heads, vocabulary {model.vocab_size}"
    )


def _requests(bundle: Bundle) -> str:
    """How requests run that come together, as far as files tell."""
    if bundle.manifest.provider != "cpu":
        return f"take turns, as all do on {bundle.manifest.provider}"
    if KINDS[bundle.form].is_foreign:
        return "take turns, as all do in other tools' folders"
    return "several in one step (--parallel), where the test on first opening finds that exact"
