"""Earlier text to draft from: finished requests, documents, and a fleet's requests."""
