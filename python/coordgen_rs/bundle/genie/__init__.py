"""Bundles of Genie, as Qualcomm AI Hub makes them, read as they are."""
