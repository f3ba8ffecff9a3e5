"""Options of Qualcomm's provider: the chip, and how to compile and run.

In: names and numbers that a user chooses. Out: the strings that ONNX Runtime takes. Everything is
checked here, before any session is made: the provider itself only warns about unknown options.
It does not touch the provider (`onnx_runtime.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from coordgen_rs.bundle.qnn import SOCS as SOCS
from coordgen_rs.bundle.qnn import Soc as Soc
from coordgen_rs.errors import OptionError, arguments

PerformanceMode = Literal[
    "default",
    "burst",
    "balanced",
    "high_performance",
    "high_power_saver",
    "low_balanced",
    "low_power_saver",
    "power_saver",
    "extreme_power_saver",
    "sustained_high_performance",
]
ContextPriority = Literal["low", "normal", "normal_high", "high"]
ProfilingLevel = Literal["off", "basic", "detailed", "optrace"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "performance_mode": get_args(PerformanceMode),
    "context_priority": get_args(ContextPriority),
    "profiling": get_args(ProfilingLevel),
}
_RANGES = {"vtcm_mb": (1, 64), "finalization_mode": (0, 3)}

_EXTRA = frozenset(
    (
        *("device_id", "rpc_control_latency", "enable_htp_fp16_precision", "extended_udma"),
        *("enable_block_quant_weight_optimization", "enable_htp_graph_splitting"),
        *("enable_htp_monolithic_lstm", "enable_htp_fp16_clamp_overflow", "op_packages"),
        *("enable_htp_prepare_only", "dump_json_qnn_graph", "json_qnn_graph_dir"),
        *("dump_qnn_ir_dlc", "dump_qnn_ir_dlc_dir", "enable_framework_op_trace"),
        *("framework_op_trace_dir", "qnn_ir_backend_path", "qnn_saver_path"),
        *("skip_qnn_version_check", "num_graph_prepare_threads", "disable_file_mapped_weights"),
        *("htp_share_resource_optimization", "htp_bf16_enable"),
    )
)
"""Options of the provider that have no field here (its document, version 2.7)."""


@dataclass(frozen=True)
class QnnOptions:
    """How the provider compiles and runs; None leaves the provider's own default.

    Attributes:
        performance_mode: Clock and power of the HTP.
        vtcm_mb: Megabytes of its fast memory that a graph may take.
        finalization_mode: Effort of compiling, 0 to 3 (3 takes longest, and runs fastest).
        context_priority: Priority over other users of the HTP.
        shared_memory: Inputs and outputs in memory that CPU and HTP share; needs libcdsprpc.
        spill_fill: Contexts share the buffer for what does not fit into VTCM; for context binaries.
        offload_io_quantization: Whether the CPU converts float inputs and outputs.
        profiling: How much is profiled, to `profiling_file` (CSV).
        profiling_file: Where a profile goes; needs `profiling`.
        extra: Further options by the provider's own names.
        on_cpu: Whether ONNX Runtime's own kernels compute the graphs in place of the provider,
            with the same encodings: for comparing, without onnxruntime-qnn. Their rounding
            depends on slots and widths, so drafts may change tokens: SmolLM2's do.

    Raises:
        OptionError: A value outside its range, an unknown name in `extra`, one that has a field
            here, or options that contradict each other.
    """

    performance_mode: PerformanceMode | None = None
    vtcm_mb: int | None = None
    finalization_mode: int | None = None
    context_priority: ContextPriority | None = None
    shared_memory: bool | None = None
    spill_fill: bool | None = None
    offload_io_quantization: bool | None = None
    profiling: ProfilingLevel | None = None
    profiling_file: Path | None = None
    extra: dict[str, str] = field(default_factory=dict)
    on_cpu: bool = False

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) is not None:
                arguments.one_of(name, getattr(self, name), choices)
        for name, (least, most) in _RANGES.items():
            if getattr(self, name) is not None:
                arguments.count(name, getattr(self, name), least=least, most=most)
        if self.profiling_file is not None and self.profiling in (None, "off"):
            raise OptionError(f"profiling_file is {self.profiling_file}, but profiling is off")
        taken = {*_NAMES.values(), "backend_path", "backend_type", "htp_arch", "soc_model"}
        for name in self.extra:
            if name in taken:
                raise OptionError(f"extra holds {name}, which is set by an option of its own")
            if name not in _EXTRA:
                raise OptionError(f"extra holds {name}, which the QNN provider does not know")

    def provider_options(self, soc: Soc) -> dict[str, str]:
        """The options as the provider takes them, for a chip."""
        given = {
            _NAMES[item.name]: getattr(self, item.name)
            for item in fields(self)
            if item.name in _NAMES and getattr(self, item.name) is not None
        }
        chip = {"htp_arch": str(soc.htp_arch), "soc_model": str(soc.model)} | _IN_BLOCKS
        return chip | {name: _text(value) for name, value in given.items()} | self.extra


_NAMES = {
    "performance_mode": "htp_performance_mode",
    "vtcm_mb": "vtcm_mb",
    "finalization_mode": "htp_graph_finalization_optimization_mode",
    "context_priority": "qnn_context_priority",
    "shared_memory": "enable_htp_shared_memory_allocator",
    "spill_fill": "enable_htp_spill_fill_buffer",
    "offload_io_quantization": "offload_graph_io_quantization",
    "profiling": "profiling_level",
    "profiling_file": "profiling_file_path",
}


_IN_BLOCKS = {"enable_block_quant_weight_optimization": "1"}
"""4-bit weights in blocks are multiplied in integers; without it in floats, and slower."""


def parse_options(given: Sequence[str]) -> QnnOptions:
    """Options written as `name=value`, by the names of the fields or the provider's own.

    Raises:
        OptionError: One has no `=` or a malformed value, or `QnnOptions` rejects it.
    """
    own = {item.name: item.type for item in fields(QnnOptions) if item.name in _NAMES}
    values: dict[str, Any] = {}
    extra: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise OptionError(f"option {item!r} is not of the form name=value")
        if name in own:
            values[name] = _parsed(name, str(own[name]), value)
        else:
            extra[name] = value
    return QnnOptions(**values, extra=extra)


def _parsed(name: str, kind: str, value: str) -> Any:
    if "bool" in kind:
        if value not in ("0", "1"):
            raise OptionError(f"{name} is {value!r}, but must be 0 or 1")
        return value == "1"
    if "int" in kind:
        try:
            return int(value)
        except ValueError as error:
            raise OptionError(f"{name} is {value!r}, but must be a number") from error
    return Path(value) if "Path" in kind else value


def soc_named(name: str) -> Soc:
    """The chip of that name.

    Raises:
        OptionError: It is unknown.
    """
    return SOCS[arguments.one_of("soc", name, SOCS)]


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
