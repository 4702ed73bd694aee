"""Texts, invented and published, by size and kind: what models learn from, and what aspects are found in."""
