"""Energy of a run, measured if the machine can, and None if it cannot.

In: a source (see `sources.py`), or an object of zeus or codecarbon. Out: joules between
`start` and `stop`. A value is never guessed: without a source, with a charger
plugged in meanwhile, or if the run is too short for the source, it is None.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from coordgen_rs.errors import CallOrderError
from coordgen_rs.errors.process import OpenedHere
from coordgen_rs.lab.energy.sources import EnergySource, Reading, find_source

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
        self._readings: list[Reading] = []
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
        self._times_s, self._readings, self._is_measuring = [], [], True
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
        return self._source.joules(self._times_s, self._readings)

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
        self._readings.append(reading)


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
