"""The options that several commands share: each is declared here alone."""

from coordgen_rs.cli.options import option
from coordgen_rs.loading.options import OPENING

BUNDLE_HELP = (
    "from `coordgen export`, or a folder with genai_config.json or genie_config.json; a GGUF file, "
    "a Hugging Face directory or hf:OWNER/NAME is converted when it is first opened"
)

EXPORTED_BUNDLE = option.path("bundle BUNDLE").help("from `coordgen export`")
BUNDLE = option.path("bundle BUNDLE").help(BUNDLE_HELP)
THREADS = option.of(OPENING, "threads")
JSON = option.flag("--json").help("print one JSON object instead")
