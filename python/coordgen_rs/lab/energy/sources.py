"""Energy sources of a Linux machine: battery, RAPL, and INA power monitors, through sysfs.

In: the root of sysfs. Out: the sources that can measure now, and the joules between samples of one.
A source that is missing or unreadable is skipped; a run during which it stopped measuring has no
energy. Nothing here waits or starts threads (see `meter.py`).
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

Reading = tuple[float, ...]
"""A source's reading at one moment, in its own units."""

_PACKAGE = re.compile(r"intel-rapl:\d+")
_JOULES_PER_UWH = 3600e-6
_BATTERY_FILES = (("power_now",), ("current_now", "voltage_now"), ("energy_now",))
"""Files of a battery with its power or energy, the best first."""
_LEAST_STEPS = 10
"""Least steps of a counter in a run: its error is up to one step at either end."""
_LEAST_UA = 20_000
"""A machine that computes draws more than 20 mA, and no battery gives 20 A: in a run whose largest
figure is below, the unit is milliamperes, not the microamperes that the kernel documents."""
_LEAST_UV, _LEAST_MV = 1_000_000, 1_000
"""A battery has 1 to 1,000 V."""
_JETSON_TOTAL = "VDD_IN"


class EnergySource(Protocol):
    """What a meter samples.

    Attributes:
        name: What is measured, and by what.
        interval_s: Seconds between two samples.
        shortest_s: Shortest run in seconds; within less, the source does not update.
    """

    name: str
    interval_s: float
    shortest_s: float

    def read(self) -> Reading:
        """Its current reading; raises OSError or ValueError if it cannot measure."""

    def joules(self, times_s: Sequence[float], readings: Sequence[Reading]) -> float | None:
        """Energy between the first and the last of at least two samples, or None."""


class Battery:
    """The output of a battery that is the only supply: the whole machine, screen included.

    The power is `power_now` (uW), else `current_now` times `voltage_now`; without these there is
    `energy_now` (uWh), a counter with coarse steps; a run must last several of them. Kernels
    disagree on the sign of a discharging current, and some report milliamperes, contrary to
    Documentation/ABI/testing/sysfs-class-power.

    Args:
        path: A power supply of type Battery.
    """

    interval_s = 0.25  # fuel gauges update 1 to 6 times per second
    shortest_s = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = next(
            (names for names in _BATTERY_FILES if all((path / name).exists() for name in names)),
            ("current_now", "voltage_now"),
        )
        self.name = f"battery {path.name}, {' x '.join(self._files)}"

    def read(self) -> Reading:
        """Same as in `EnergySource`; no reading while anything else supplies the machine.

        Raises:
            ValueError: The battery is not discharging.
        """
        status = (self._path / "status").read_text().strip()
        if status != "Discharging":
            raise ValueError(f"{self._path}: status is {status!r}")
        return tuple(_number(self._path / name) for name in self._files)

    def joules(self, times_s: Sequence[float], readings: Sequence[Reading]) -> float | None:
        """Same as in `EnergySource`; None also where the current turned round meanwhile."""
        if self._files == ("energy_now",):
            return _drained([reading[0] for reading in readings])
        first = [reading[0] for reading in readings]
        if min(first) < 0 < max(first):
            return None
        if self._files == ("power_now",):
            return integral(times_s, [abs(power) * 1e-6 for power in first])
        amperes = 1e-6 if max(map(abs, first)) >= _LEAST_UA else 1e-3
        volts = [_volts(reading[1]) for reading in readings]
        watts = [
            abs(current) * amperes * volt
            for current, volt in zip(first, volts, strict=True)
            if volt is not None
        ]
        return integral(times_s, watts) if len(watts) == len(readings) else None


class Rapl:
    """The processor packages' own counters (powercap); memory and the rest are outside.

    Subzones (`intel-rapl:0:0`, cores) are parts of their package, `intel-rapl-mmio` is the same
    package again, and the zone `psys` holds the packages: none of them is counted.

    Args:
        packages: Zones whose name begins with "package".
    """

    interval_s = 30.0  # only to see each wrap: a counter lasts minutes
    shortest_s = 0.01  # it is renewed every millisecond

    def __init__(self, packages: Sequence[Path]) -> None:
        self._packages = packages
        self._ranges = [_number(zone / "max_energy_range_uj") for zone in packages]
        self.name = f"RAPL, {len(packages)} package{'s' if len(packages) > 1 else ''}"

    def read(self) -> Reading:
        """Same as in `EnergySource`: microjoules of each package."""
        return tuple(_number(zone / "energy_uj") for zone in self._packages)

    def joules(self, times_s: Sequence[float], readings: Sequence[Reading]) -> float | None:
        """Same as in `EnergySource`; None also where no counter moved."""
        total_uj = 0.0
        for before, after in pairwise(readings):
            for start, end, span in zip(before, after, self._ranges, strict=True):
                total_uj += end - start if end >= start else end - start + span
        return total_uj * 1e-6 or None


class PowerMonitor:
    """A power rail measured by an INA chip (hwmon), as on Jetson and other boards.

    Args:
        rail: A chip's directory and its channel.
    """

    interval_s = 0.05
    shortest_s = 0.05

    def __init__(self, rail: tuple[Path, int]) -> None:
        path, channel = rail
        self._power = path / f"power{channel}_input"
        self._volts_amperes = path / f"in{channel}_input", path / f"curr{channel}_input"
        self.name = f"hwmon {_text(path / 'name')}, {_label(path, channel) or f'rail {channel}'}"

    def read(self) -> Reading:
        """Same as in `EnergySource`: watts."""
        if self._power.exists():
            return (_number(self._power) * 1e-6,)
        millivolts, milliamperes = map(_number, self._volts_amperes)
        return (millivolts * milliamperes * 1e-6,)

    def joules(self, times_s: Sequence[float], readings: Sequence[Reading]) -> float | None:
        """Same as in `EnergySource`."""
        return integral(times_s, [watts for (watts,) in readings])


def find_source(root: Path) -> EnergySource | None:
    """The first source that can measure now, closest to the whole machine first."""
    for find in (_battery, _rapl, _power_monitor):
        try:
            source = find(root / "class")
            if source is not None:
                source.read()
                return source
        except (OSError, ValueError):
            continue
    return None


def integral(times_s: Sequence[float], watts: Sequence[float]) -> float:
    """Joules under the power, by trapezoids."""
    samples = pairwise(zip(times_s, watts, strict=True))
    return sum((end - start) * (a + b) / 2 for (start, a), (end, b) in samples)


def _battery(classes: Path) -> Battery | None:
    """The battery that is discharging. Two at once may be the same one, reported twice."""
    discharging = [
        path
        for path in sorted(classes.glob("power_supply/*"))
        if _text(path / "type") == "Battery"
        and _text(path / "scope") != "Device"  # the battery of a mouse
        and _text(path / "status") == "Discharging"
    ]
    return Battery(discharging[0]) if len(discharging) == 1 else None


def _rapl(classes: Path) -> Rapl | None:
    packages = [
        zone
        for zone in sorted(classes.glob("powercap/intel-rapl:*"))
        if _PACKAGE.fullmatch(zone.name) and _text(zone / "name").startswith("package")
    ]
    return Rapl(packages) if packages else None


def _power_monitor(classes: Path) -> PowerMonitor | None:
    """The total's rail, or the only one; of several, one may feed another."""
    rails = [
        (chip, channel)
        for chip in sorted(classes.glob("hwmon/*"))
        if _text(chip / "name").startswith("ina")
        for channel in _channels(chip)
    ]
    total = [rail for rail in rails if _label(*rail) == _JETSON_TOTAL]
    chosen = total or rails
    return PowerMonitor(chosen[0]) if len(chosen) == 1 else None


def _channels(chip: Path) -> Iterator[int]:
    """Channels with a power, or with a voltage and a current that has the same number."""
    for channel in range(1, 4):
        powered = (chip / f"power{channel}_input").exists()
        if powered or all((chip / f"{kind}{channel}_input").exists() for kind in ("in", "curr")):
            yield channel


def _label(chip: Path, channel: int) -> str:
    return _text(chip / f"in{channel}_label")


def _drained(counts_uwh: Sequence[float]) -> float | None:
    """Joules by a counter that goes down, if it did so in enough steps."""
    drained = counts_uwh[0] - counts_uwh[-1]
    is_fine = len(set(counts_uwh)) > _LEAST_STEPS
    return drained * _JOULES_PER_UWH if drained > 0 and is_fine else None


def _volts(figure: float) -> float | None:
    if figure >= _LEAST_UV:
        return figure * 1e-6
    return figure * 1e-3 if figure >= _LEAST_MV else None


def _number(path: Path) -> float:
    return float(int(path.read_text()))


def _text(path: Path) -> str:
    """A file's text; nothing if it is missing or unreadable."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
