"""Energy of a run, from the machine's own meters; None where it cannot be measured.

In: the root of sysfs, which tells of a battery, RAPL or an INA power monitor; or an object of zeus
or codecarbon. Out: joules between `start` and `stop` of an `EnergyMeter`. A source that is missing
or unreadable is skipped. A value is never guessed: without a source, with a charger plugged in
meanwhile, or if the run is too short for the source, it is None.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from coordgen_rs.errors import CallOrderError
from coordgen_rs.store.background import OpenedHere

Sample = tuple[float, ...]
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

    def read(self) -> Sample:
        """Its current reading; raises OSError or ValueError if it cannot measure."""

    def joules(self, times_s: Sequence[float], samples: Sequence[Sample]) -> float | None:
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

    interval_s = 0.1  # as CoordGen, 4.1; fuel gauges update 1 to 6 times per second
    shortest_s = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = next(
            (names for names in _BATTERY_FILES if all((path / name).exists() for name in names)),
            ("current_now", "voltage_now"),
        )
        self.name = f"battery {path.name}, {' x '.join(self._files)}"

    def read(self) -> Sample:
        """Same as in `EnergySource`; no reading while anything else supplies the machine.

        Raises:
            ValueError: The battery is not discharging.
        """
        status = (self._path / "status").read_text().strip()
        if status != "Discharging":
            raise ValueError(f"{self._path}: status is {status!r}")
        return tuple(_number(self._path / name) for name in self._files)

    def joules(self, times_s: Sequence[float], samples: Sequence[Sample]) -> float | None:
        """Same as in `EnergySource`; None also where the current turned round meanwhile."""
        if self._files == ("energy_now",):
            return _drained([reading[0] for reading in samples])
        first = [reading[0] for reading in samples]
        if min(first) < 0 < max(first):
            return None
        if self._files == ("power_now",):
            return integral(times_s, [abs(power) * 1e-6 for power in first])
        amperes = 1e-6 if max(map(abs, first)) >= _LEAST_UA else 1e-3
        volts = [_volts(reading[1]) for reading in samples]
        watts = [
            abs(current) * amperes * volt
            for current, volt in zip(first, volts, strict=True)
            if volt is not None
        ]
        return integral(times_s, watts) if len(watts) == len(samples) else None


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

    def read(self) -> Sample:
        """Same as in `EnergySource`: microjoules of each package."""
        return tuple(_number(zone / "energy_uj") for zone in self._packages)

    def joules(self, times_s: Sequence[float], samples: Sequence[Sample]) -> float | None:
        """Same as in `EnergySource`; None also where no counter moved."""
        total_uj = 0.0
        for before, after in pairwise(samples):
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

    def read(self) -> Sample:
        """Same as in `EnergySource`: watts."""
        if self._power.exists():
            return (_number(self._power) * 1e-6,)
        millivolts, milliamperes = map(_number, self._volts_amperes)
        return (millivolts * milliamperes * 1e-6,)

    def joules(self, times_s: Sequence[float], samples: Sequence[Sample]) -> float | None:
        """Same as in `EnergySource`."""
        return integral(times_s, [watts for (watts,) in samples])


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


_JOULES_PER_KWH = 3.6e6
_WINDOW = "coordgen_rs"


class Meter(Protocol):
    """Measures energy for a benchmark; any object with these three members will do.

    Attributes:
        source: What is measured, and by what; shown next to the figures.
    """

    source: str

    def start(self) -> None:
        """Begin a run."""

    def stop(self) -> float | None:
        """End the run; return its joules, or None if unknown."""


class EnergyMeter:
    """Samples a source on a thread, from `start` to `stop`; any number of runs, one at a time.

        meter = EnergyMeter.find()
        if meter is not None:
            meter.start()
            ...
            joules = meter.stop()

    Args:
        source: Reports power or energy.
        clock: Seconds that only go forward.
    """

    def __init__(
        self, source: EnergySource, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.source = source.name
        self._source, self._clock = source, clock
        self._times_s: list[float] = []
        self._samples: list[Sample] = []
        self._is_measuring = False
        self._opened = OpenedHere()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def find(cls, root: Path = Path("/sys")) -> "EnergyMeter | None":
        """A meter of the first source that can measure now, or None.

        In this order: a battery that is discharging, RAPL, an INA chip under hwmon.

        Args:
            root: Where sysfs is mounted.
        """
        source = find_source(root)
        return None if source is None else cls(source)

    def start(self) -> None:
        """Begin a run.

        Raises:
            CallOrderError: A run is in progress.
            ForkedError: This process is a fork of the one that made the meter.
        """
        self._opened.check("energy meter")
        if self._thread is not None:
            raise CallOrderError("the energy meter is running: stop it before it starts again")
        self._times_s, self._samples, self._is_measuring = [], [], True
        self._ended.clear()
        self._thread = threading.Thread(target=self._sample_on, name="energy", daemon=True)
        self._sample()
        self._thread.start()

    def stop(self) -> float | None:
        """End the run.

        Returns:
            Joules; None if the run was too short for the source, or the source stopped
            measuring during it.

        Raises:
            CallOrderError: No run is in progress.
            ForkedError: This process is a fork of the one that made the meter.
        """
        self._opened.check("energy meter")
        if self._thread is None:
            raise CallOrderError("the energy meter is not running")
        self._ended.set()
        self._thread.join()
        self._thread = None
        self._sample()
        if not self._is_measuring:
            return None
        if self._times_s[-1] - self._times_s[0] < self._source.shortest_s:
            return None
        return self._source.joules(self._times_s, self._samples)

    def _sample_on(self) -> None:
        while not self._ended.wait(self._source.interval_s):
            self._sample()

    def _sample(self) -> None:
        try:
            reading = self._source.read()
        except (OSError, ValueError):
            self._is_measuring = False
            return
        self._times_s.append(self._clock())
        self._samples.append(reading)


class ZeusMeter:
    """A `ZeusMonitor` as a meter: GPUs, and CPUs and their memory where it reads them.

    Args:
        monitor: A `zeus.monitor.ZeusMonitor`. Its windows are drawn without waiting for GPUs,
            since ONNX Runtime's calls return when they are done.
    """

    source = "zeus"

    def __init__(self, monitor: Any) -> None:
        self._monitor = monitor

    def start(self) -> None:
        """Begin a window."""
        self._monitor.begin_window(_WINDOW, sync_execution=False)

    def stop(self) -> float | None:
        """End it; None if no counter moved. `total_energy` would only be that of GPUs."""
        window = self._monitor.end_window(_WINDOW, sync_execution=False)
        parts = (window.gpu_energy, window.cpu_energy, window.dram_energy)
        return sum(float(joules) for part in parts if part for joules in part.values()) or None


class CodecarbonMeter:
    """An `EmissionsTracker` as a meter.

    Its own `stop` gives kilograms of CO2 and works once, so each run is one of its tasks. Without a
    counter it estimates power from the processor's name and load, which is not a measurement; its
    `tracking_mode` says so.

    Args:
        tracker: A `codecarbon.EmissionsTracker` or `OfflineEmissionsTracker`.
    """

    source = "codecarbon"

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker

    def start(self) -> None:
        """Begin a task."""
        self._tracker.start_task()

    def stop(self) -> float | None:
        """End it; None if the tracker does not track, or no counter moved."""
        task = self._tracker.stop_task()
        return float(task.energy_consumed) * _JOULES_PER_KWH or None if task else None
