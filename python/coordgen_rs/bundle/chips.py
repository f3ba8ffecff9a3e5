"""Qualcomm's chips by name, as its compiler knows them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Soc:
    """A chip as Qualcomm's compiler knows it.

    Attributes:
        name: The name in `SOCS`.
        model: Number of the chip in QnnTypes.h, `QNN_SOC_MODEL_*`.
        htp_arch: Version of its Hexagon tensor processor.
        also_called: Part number and product name.
    """

    name: str
    model: int
    htp_arch: int
    also_called: str


SOCS = {
    soc.name: soc
    for soc in (
        Soc("8-gen-1", 36, 69, "SM8450, Snapdragon 8 Gen 1"),
        Soc("8-gen-2", 43, 73, "SM8550, Snapdragon 8 Gen 2"),
        Soc("8-gen-3", 57, 75, "SM8650, Snapdragon 8 Gen 3"),
        Soc("8s-gen-3", 68, 73, "SM8635, Snapdragon 8s Gen 3"),
        Soc("8-elite", 69, 79, "SM8750, Snapdragon 8 Elite"),
        Soc("8-elite-gen-5", 87, 81, "SM8850, Snapdragon 8 Elite Gen 5"),
        Soc("8-gen-5", 97, 81, "SM8845, Snapdragon 8 Gen 5"),
        Soc("x-elite", 60, 73, "SC8380XP, Snapdragon X Elite and X Plus"),
        Soc("x2-elite", 88, 81, "SC8480XP, Snapdragon X2 Elite"),
        Soc("qcs8300", 82, 75, "QCS8300, Dragonwing IQ-8"),
        Soc("qcs9100", 77, 73, "QCS9100, Dragonwing IQ-9"),
    )
}
"""Chips by name, with the numbers of QnnTypes.h (QAIRT 2.49) and ExecuTorch's qc_schema.py."""
