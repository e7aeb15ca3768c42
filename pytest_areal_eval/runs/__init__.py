"""The run folder: what is kept of this session, and the earlier runs that it goes on from or is held against.

Invariant: nothing of an earlier run is reused that today would come out otherwise.
"""
