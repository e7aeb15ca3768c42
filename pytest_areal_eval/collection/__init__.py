"""From a decorated function to its tests: what it evaluates, on which items, with which settings.

Invariant: a dataset is loaded and checked once a session, and nothing heavy is imported for it.
"""
