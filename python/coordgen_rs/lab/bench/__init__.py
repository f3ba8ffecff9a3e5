"""Measuring: everything with a real model (`sections/`), and drafters on recorded answers."""
