"""What drafts for a session: drafters by name and namespace, draft models, look-up tables."""
