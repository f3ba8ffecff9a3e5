"""The APIs that clients speak: what each may be asked, parsed once, and how it is answered."""
