"""Instances on a Ray cluster."""
