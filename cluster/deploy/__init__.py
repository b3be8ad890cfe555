"""Bringing a configuration up on a Ray of our own, and down again."""
