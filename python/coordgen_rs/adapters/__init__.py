"""Our drafts in other engines: one file each, which imports its engine only when it is used."""
