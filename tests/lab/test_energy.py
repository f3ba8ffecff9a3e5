"""The energy meter, on fake trees of sysfs."""

import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.errors import CallOrderError
from coordgen_rs.lab.energy import (
    Battery,
    CodecarbonMeter,
    EnergyMeter,
    Rapl,
    ZeusMeter,
    find_source,
    integral,
)

FOUR_WATTS = {"current_now": "1000000", "voltage_now": "4000000"}


class Clock:
    """Time that passes only when told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def write(directory, **files):
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_text(f"{content}\n")
    return directory


def battery(root, name="battery", **files):
    facts = {"type": "Battery", "status": "Discharging"}
    return write(root / "class/power_supply" / name, **facts | files)


def package(root, number, energy_uj, span=1_000_000_000):
    zone = root / f"class/powercap/intel-rapl:{number}"
    write(zone, name=f"package-{number}", energy_uj=energy_uj, max_energy_range_uj=span)
    return zone


def run_of(root, seconds, change=lambda: None):
    """Joules of a run in which something changes; its two samples are the first and the last."""
    clock = Clock()
    source = find_source(root)
    assert source is not None
    meter = EnergyMeter(source, clock)
    meter.start()
    change()
    clock.now = seconds
    return meter.stop()


@pytest.mark.parametrize(
    ("seconds", "files", "joules"),
    [
        (10, {"current_now": 1_000_000, "voltage_now": 4_000_000}, 40),  # as documented: uA, uV
        (10, {"current_now": -1_000_000, "voltage_now": 4_000_000}, 40),  # while discharging
        (10, {"current_now": 1000, "voltage_now": 4_000_000}, 40),  # mA
        (10, {"current_now": -1000, "voltage_now": 4000}, 40),  # mA, mV
        (2, FOUR_WATTS | {"power_now": 7_000_000, "energy_now": 50_000_000}, 14),  # power first
        (1, FOUR_WATTS, 4),
        (0.5, FOUR_WATTS, None),  # too short for the source
        (5, {"current_now": 1_000_000, "voltage_now": 4}, None),  # of no battery
    ],
)
def test_battery_tells_watts_in_any_unit_and_sign(tmp_path, seconds, files, joules):
    battery(tmp_path, **files)
    assert run_of(tmp_path, seconds) == pytest.approx(joules)


def test_unit_of_a_current_is_that_of_the_whole_run(tmp_path):
    source = Battery(battery(tmp_path, **FOUR_WATTS))
    idle_then_busy = [(15_000, 4_000_000), (1_000_000, 4_000_000)]
    assert source.joules([0.0, 2.0], idle_then_busy) == pytest.approx(4.06)


def test_battery_that_only_counts_needs_some_of_its_steps(tmp_path):
    source = Battery(battery(tmp_path, energy_now=50_000_000))
    drained = [(50_000_000 - 10_000 * step,) for step in range(21)]
    assert source.joules(range(21), drained) == pytest.approx(200_000 * 3600e-6)
    assert source.joules(range(9), drained[:9]) is None
    assert source.joules(range(21), drained[::-1]) is None


@pytest.mark.parametrize("status", ["Charging", "Full", "Not charging", "Unknown"])
def test_battery_that_is_not_the_only_supply_is_no_source(tmp_path, status):
    path = battery(tmp_path, **FOUR_WATTS)
    assert run_of(tmp_path, 5.0, lambda: write(path, status=status)) is None
    assert EnergyMeter.find(tmp_path) is None


def test_current_that_turns_round_is_no_measurement(tmp_path):
    path = battery(tmp_path, **FOUR_WATTS)
    assert run_of(tmp_path, 5.0, lambda: write(path, current_now=-1_000_000)) is None


def test_batteries_of_other_devices_chargers_and_several_rails_without_a_total_are_no_source(
    tmp_path,
):
    assert EnergyMeter.find(tmp_path) is None
    battery(tmp_path, "mouse", scope="Device", **FOUR_WATTS)
    battery(tmp_path, "usb", type="USB", **FOUR_WATTS)
    for number, chip in enumerate(("ina226", "ina226", "coretemp")):
        write(tmp_path / f"class/hwmon/hwmon{number}", name=chip, power1_input=1_000_000)
    assert EnergyMeter.find(tmp_path) is None


def test_two_batteries_at_once_may_be_one_told_twice(tmp_path):
    battery(tmp_path, "BAT0", **FOUR_WATTS)
    second = battery(tmp_path, "BAT1", **FOUR_WATTS)
    assert EnergyMeter.find(tmp_path) is None
    write(second, status="Not charging")
    assert run_of(tmp_path, 10.0) == pytest.approx(40.0)


def test_packages_are_summed_without_what_holds_them_or_what_they_hold(tmp_path):
    zones = [package(tmp_path, number, 1_000_000) for number in (0, 1)]
    others = [
        write(zones[0] / "intel-rapl:0:0", name="core"),
        write(tmp_path / "class/powercap/intel-rapl:0:0", name="core"),
        write(tmp_path / "class/powercap/intel-rapl:2", name="psys"),
        write(tmp_path / "class/powercap/intel-rapl-mmio:0", name="package-0"),
    ]
    for other in others:
        write(other, energy_uj=0, max_energy_range_uj=1_000_000_000)

    def advance():
        for zone, joules in zip([*zones, *others], (3, 5, 100, 100, 100, 100), strict=True):
            write(zone, energy_uj=1_000_000 + joules * 1_000_000)

    assert run_of(tmp_path, 60.0, advance) == pytest.approx(8.0)


def test_counter_that_wraps_goes_on_and_one_that_does_not_move_tells_nothing(tmp_path):
    zone = package(tmp_path, 0, 999_000_000)
    assert run_of(tmp_path, 1.0, lambda: write(zone, energy_uj=2_000_000)) == pytest.approx(3.0)
    assert run_of(tmp_path, 1.0) is None


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20))
def test_wraps_lose_nothing(tmp_path_factory, drawn):
    root = tmp_path_factory.mktemp("rapl")
    source = Rapl([package(root, 0, 0, span=1000)])
    counts = [sum(drawn[:end]) % 1000 for end in range(len(drawn) + 1)]
    joules = source.joules(range(len(counts)), [(float(count),) for count in counts])
    assert (joules or 0.0) == pytest.approx(sum(drawn) * 1e-6)


def test_source_that_may_not_be_read_gives_way_to_the_next(tmp_path):
    path = battery(tmp_path, voltage_now=4_000_000)
    (path / "current_now").mkdir()  # reading it fails, also for root
    zone = package(tmp_path, 0, 0)
    (zone / "energy_uj").unlink()
    (zone / "energy_uj").mkdir()
    assert EnergyMeter.find(tmp_path) is None
    write(tmp_path / "class/hwmon/hwmon3", name="ina226", power1_input=2_500_000)
    assert run_of(tmp_path, 4.0) == pytest.approx(10.0)


def test_battery_comes_before_packages_before_rails(tmp_path):
    def source():
        meter = EnergyMeter.find(tmp_path)
        return "" if meter is None else meter.source

    write(tmp_path / "class/hwmon/hwmon0", name="ina219", power1_input=1)
    assert source() == "hwmon ina219, rail 1"
    package(tmp_path, 0, 0)
    assert source() == "RAPL, 1 package"
    battery(tmp_path, **FOUR_WATTS)
    assert source() == "battery battery, current_now x voltage_now"


def test_jetson_total_is_taken_of_several_rails(tmp_path):
    chip = tmp_path / "class/hwmon/hwmon1"
    for channel, label in enumerate(("VDD_CPU_GPU_CV", "VDD_IN", "VDD_SOC"), 1):
        rail = {f"in{channel}_input": 5000, f"curr{channel}_input": 1000 * channel}
        write(chip, name="ina3221", **rail, **{f"in{channel}_label": label})
    assert run_of(tmp_path, 1.0) == pytest.approx(10.0)


def test_integral_of_a_ramp_is_its_triangle():
    assert integral([0.0, 1.0, 4.0], [0.0, 2.0, 8.0]) == pytest.approx(16.0)


class Beating:
    """One watt, and an event after some samples."""

    name, interval_s, shortest_s = "beating", 1e-3, 0.0

    def __init__(self, samples):
        self.left, self.done = samples, threading.Event()

    def read(self):
        self.left -= 1
        if self.left == 0:
            self.done.set()
        return (1.0,)

    def joules(self, times_s, readings):
        return float(len(readings))


def test_a_battery_is_read_every_tenth_of_a_second_as_in_coordgen(tmp_path):
    assert Battery(battery(tmp_path, **FOUR_WATTS)).interval_s == 0.1


def test_samples_are_taken_while_the_run_goes_on():
    source = Beating(5)
    meter = EnergyMeter(source)
    meter.start()
    assert source.done.wait(600)
    joules = meter.stop()
    assert joules is not None
    assert joules >= 5


def test_runs_follow_one_another_and_do_not_overlap(tmp_path):
    zone, clock = package(tmp_path, 0, 0), Clock()
    meter = EnergyMeter(Rapl([zone]), clock)
    with pytest.raises(CallOrderError):
        meter.stop()
    for joules in (1, 5):
        meter.start()
        with pytest.raises(CallOrderError):
            meter.start()
        write(zone, energy_uj=int((zone / "energy_uj").read_text()) + joules * 1_000_000)
        clock.now += 1
        assert meter.stop() == pytest.approx(joules)


class FakeZeus:
    """The calls of zeus 0.16's `ZeusMonitor`."""

    def begin_window(self, key, sync_execution=True):
        self.key = key

    def end_window(self, key, sync_execution=True):
        assert key == self.key
        return SimpleNamespace(gpu_energy={}, cpu_energy={0: 2.5, 1: 1.0}, dram_energy=None)


class FakeCodecarbon:
    """The calls of codecarbon 3.3's `EmissionsTracker`."""

    def start_task(self, task_name=None):
        self.is_running = True

    def stop_task(self, task_name=None):
        return SimpleNamespace(energy_consumed=1e-6) if self.is_running else None


@pytest.mark.parametrize(
    ("meter", "joules"), [(ZeusMeter(FakeZeus()), 3.5), (CodecarbonMeter(FakeCodecarbon()), 3.6)]
)
def test_objects_of_zeus_and_codecarbon_plug_in(meter, joules):
    meter.start()
    assert meter.stop() == pytest.approx(joules)
