"""From collected tests to the exit status: hand items to a controller, report what comes back, decide, leave.

Invariant: what is reported is what was rolled out, once, in one process or in many.
"""
