"""`coordgen plan`: plans of a prompt's prefill from a profile, and simulations."""
