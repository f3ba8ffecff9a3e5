"""Shapes of known models, by name, as `shapes.toml` has them."""

import tomllib
from pathlib import Path

SHAPES = tomllib.loads((Path(__file__).parents[1] / "shapes.toml").read_text("utf-8"))


def of_families(*families: str) -> dict[str, dict]:
    """The shapes of some families, by name."""
    return {name: shape for name, shape in SHAPES.items() if shape["family"] in families}
