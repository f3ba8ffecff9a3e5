"""Documents that were added to draft from: source trees, templates, manuals."""
