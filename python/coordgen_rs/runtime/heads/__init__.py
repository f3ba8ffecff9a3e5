"""Networks that draft from a target's own states: MTP heads, drafters beside a model."""
