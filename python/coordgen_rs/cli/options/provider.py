"""The options that choose what runs a bundle, and how: `--provider`, `--kv-cache`, those of QNN."""

import argparse

from coordgen_rs.cli.options import option
from coordgen_rs.loading.directory import PROVIDERS
from coordgen_rs.loading.options import OPENING
from coordgen_rs.loading.provider import ProviderChoice

QNN_OPTION = option.word("--qnn-option NAME=VALUE", action="append", default=[]).help(
    "an option of the QNN provider: performance_mode, vtcm_mb, finalization_mode, "
    "context_priority, shared_memory, spill_fill, offload_io_quantization, profiling, "
    "profiling_file, or any other by the provider's own name"
)

KV_CACHE = option.of(OPENING, "kv_cache")

OPTIONS = (
    option.choice("--provider", PROVIDERS).help("require a bundle made for this provider"),
    option.word("--soc NAME").help("require a bundle made for this chip"),
    option.flag("--recompile").help(
        "compile again if context binaries are for another version or chip"
    ),
    QNN_OPTION,
)


def chosen(options: argparse.Namespace) -> ProviderChoice:
    """What the options ask for.

    Raises:
        OptionError: An option of QNN is unknown or has a wrong value.
    """
    from coordgen_rs.runtime.qnn.options import parse_options

    qnn_options = parse_options(options.qnn_option) if options.qnn_option else None
    return ProviderChoice(options.provider, options.soc, qnn_options, options.recompile)


def given(options: argparse.Namespace) -> list[str]:
    """The options as they were typed, to pass on to another command."""
    given = [f"--qnn-option={setting}" for setting in options.qnn_option]
    given += ["--recompile"] if options.recompile else []
    return given + [
        f"--{name}={value}"
        for name, value in (("provider", options.provider), ("soc", options.soc))
        if value is not None
    ]
