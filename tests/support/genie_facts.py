"""A small bundle of Genie without contents: its texts alone, for tests that load no graph.

In: a directory. Out: a bundle of two parts with graphs for 1 and 8 tokens, as metadata.json of AI
Hub Models 0.65 describes it; the binaries are empty. A test then changes one thing.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFIG_NAME, METADATA_NAME = "genie_config.json", "metadata.json"
BACKEND_NAME = "htp_backend_ext_config.json"
WIDTHS, CONTEXT, PARTS = (1, 8), 32, 2
HEADS, SIZE, HIDDEN, VOCAB = 2, 4, 16, 24
HIDDEN_NAMES = ("_model_layers_0_add_output_0", "_model_layers_0_add_output_0")

Edit = Callable[[dict[str, Any]], None]


def write_described(out: Path) -> Path:
    """Write the bundle."""
    out.mkdir(parents=True)
    graphs = {
        f"ar{rows}_cl{CONTEXT}_{part}_of_{PARTS}": graph(rows, part)
        for part in range(1, PARTS + 1)
        for rows in WIDTHS
    }
    binaries = [f"part_{part}_of_{PARTS}.bin" for part in range(1, PARTS + 1)]
    for name in binaries:
        (out / name).write_bytes(b"")
    (out / "tokenizer.json").write_text("{}")
    write_texts(out, dialog(binaries), graphs, soc_model=69, htp_arch=79, qairt="2.45.0.260326")
    return out


def write_texts(
    out: Path,
    dialog: dict[str, Any],
    graphs: dict[str, Any] | None,
    *,
    soc_model: int,
    htp_arch: int,
    qairt: str,
) -> None:
    """Write all texts of a bundle; no metadata.json where there is None of `graphs`."""
    texts = _texts()
    config, backend, metadata = (texts[name] for name in (CONFIG_NAME, BACKEND_NAME, METADATA_NAME))
    config["dialog"] = dialog
    backend["devices"][0].update(soc_model=soc_model, dsp_arch=f"v{htp_arch}")
    metadata["model_files"] = graphs
    metadata["tool_versions"]["qairt"] = qairt
    metadata["genie"]["context_lengths"] = [dialog["context"]["size"]]
    metadata["chipset_attributes"].update(soc_model=soc_model, htp_version=htp_arch)
    for name, document in texts.items():
        if name != METADATA_NAME or graphs is not None:
            (out / name).write_text(json.dumps(document))


def dialog(binaries: list[str]) -> dict[str, Any]:
    """What the config tells of a bundle of such binaries."""
    said = _texts()[CONFIG_NAME]["dialog"]
    said["engine"]["model"]["binary"]["ctx-bins"] = binaries
    return said


def _texts() -> dict[str, Any]:
    """The texts of a bundle by name, which a test may change."""
    return json.loads(Path(__file__).with_name("genie_bundle.json").read_text())


def tensor(dtype: str, *shape: int, scale: float = 0.5, zero_point: int = 0) -> dict[str, Any]:
    said: dict[str, Any] = {"shape": list(shape), "dtype": dtype}
    if dtype != "int32":
        said["quantization_parameters"] = {"scale": scale, "zero_point": zero_point}
    return said


def graph(rows: int, part: int, context: int = CONTEXT) -> dict[str, Any]:
    """Inputs and outputs of a part with one layer."""
    past, layer = context - rows, part - 1
    inputs = {
        "attention_mask": tensor("uint16", 1, 1, rows, context, zero_point=65535),
        "position_ids_cos": tensor("uint16", 1, 1, rows, SIZE // 2, zero_point=32768),
        "position_ids_sin": tensor("uint16", 1, 1, rows, SIZE // 2, zero_point=32768),
        f"past_key_{layer}_in": tensor("uint8", HEADS, 1, SIZE, past, zero_point=128),
        f"past_value_{layer}_in": tensor("uint8", HEADS, 1, past, SIZE, zero_point=128),
    }
    outputs = {
        f"past_key_{layer}_out": tensor("uint8", HEADS, 1, SIZE, rows, zero_point=128),
        f"past_value_{layer}_out": tensor("uint8", HEADS, 1, rows, SIZE, zero_point=128),
    }
    if part == 1:
        inputs["input_ids"] = tensor("int32", 1, rows)
        outputs[HIDDEN_NAMES[0]] = tensor("uint16", 1, rows, HIDDEN)
    else:
        inputs[HIDDEN_NAMES[1]] = tensor("uint16", 1, rows, HIDDEN)
        outputs["logits"] = tensor("uint16", 1, rows, VOCAB)
    return {"inputs": inputs, "outputs": outputs}


def edit(folder: Path, name: str, change: Edit) -> Path:
    """Change one of the bundle's documents."""
    document = json.loads((folder / name).read_text())
    change(document)
    (folder / name).write_text(json.dumps(document))
    return folder
