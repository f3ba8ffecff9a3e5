"""Measuring: drafters on recorded answers, and what each part adds."""
