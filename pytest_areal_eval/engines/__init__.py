"""Inference backends: what starts a server, and what speaks to it."""
