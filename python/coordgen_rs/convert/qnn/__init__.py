"""Graphs for Qualcomm's HTP: float graphs, ranges on real text, fixed point."""
