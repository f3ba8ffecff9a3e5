"""`coordgen bench`: measuring with a real model, section by section."""
