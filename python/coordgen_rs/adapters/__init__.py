"""Our drafts in other engines: one module each, which imports its engine only when it is used."""
