"""Requests: what each endpoint may be asked, parsed once into a record that can be answered."""
