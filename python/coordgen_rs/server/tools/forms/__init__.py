"""The forms in which models write calls of functions, and which of them a chat template is for."""

from coordgen_rs.server.tools.forms import (
    deepseek,
    function_gemma,
    gemma,
    granite,
    harmony,
    hermes,
    lfm2,
    llama,
    mistral,
    phi,
    qwen_xml,
)
from coordgen_rs.server.tools.forms.form import CallForm

FORMS: tuple[CallForm, ...] = (
    harmony.FORM,
    gemma.FORM,
    function_gemma.FORM,
    qwen_xml.FORM,
    mistral.NAMED,
    mistral.LISTED,
    lfm2.FORM,
    phi.FORM,
    granite.FORM,
    deepseek.FORM,
    hermes.FORM,
    llama.FORM,
)
"""All of them; the first that a template is for is its model's."""


def form_of(template: str) -> CallForm:
    """The form in which the model of a chat template writes calls; Hermes' if it has none.

    Args:
        template: The template's source.
    """
    return next((form for form in FORMS if form.is_of(template)), hermes.FORM)
