"""From the options to a controller: which engine, how many replicas, started by which scheduler or attached to.

Invariant: what cannot work is said before a server starts.
"""
