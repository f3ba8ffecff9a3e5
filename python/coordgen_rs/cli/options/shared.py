"""The options that several commands share: each is declared here alone, and read."""

import argparse

from coordgen_rs.cli.options import option
from coordgen_rs.cli.options.option import Option
from coordgen_rs.loading.directory import PROVIDERS, ProviderChoice
from coordgen_rs.loading.options import OPEN_OPTIONS
from coordgen_rs.store.history.store import DEFAULT_MAX_TOKENS

BUNDLE_HELP = (
    "from `coordgen export`, or a folder with genai_config.json or genie_config.json; a GGUF file, "
    "a Hugging Face directory or hf:OWNER/NAME is converted when it is first opened"
)

EXPORTED_BUNDLE = option.path("bundle BUNDLE").help("from `coordgen export`")
BUNDLE = option.path("bundle BUNDLE").help(BUNDLE_HELP)
THREADS = option.of(OPEN_OPTIONS, "threads")
KV_CACHE = option.of(OPEN_OPTIONS, "kv_cache")
JSON = option.flag("--json").help("print one JSON object instead")

QNN_OPTION = option.word("--qnn-option NAME=VALUE", action="append", default=[]).help(
    "an option of the QNN provider: performance_mode, vtcm_mb, finalization_mode, "
    "context_priority, shared_memory, spill_fill, offload_io_quantization, profiling, "
    "profiling_file, or any other by the provider's own name"
)
PROVIDER = (
    option.choice("--provider", PROVIDERS).help("require a bundle made for this provider"),
    option.word("--soc NAME").help("require a bundle made for this chip"),
    option.flag("--recompile").help(
        "compile again if context binaries are for another version or chip"
    ),
    QNN_OPTION,
)
"""What runs a bundle, and how."""


def chosen_provider(options: argparse.Namespace) -> ProviderChoice:
    """What `PROVIDER` asks for.

    Raises:
        OptionError: An option of QNN is unknown or has a wrong value.
    """
    from coordgen_rs.runtime.qnn.options import parse_options

    qnn_options = parse_options(options.qnn_option) if options.qnn_option else None
    return ProviderChoice(options.provider, options.soc, qnn_options, options.recompile)


def history_max_tokens(shown: str) -> Option:
    """The option that caps a history, under a name."""
    return option.count(shown).help(
        "evict the oldest requests of all namespaces beyond this; the history keeps the number; "
        f"at first {DEFAULT_MAX_TOKENS}"
    )
