"""What the user asked for: every option declared once, its spellings and precedence, the values as read.

Invariant: each value is checked before anything starts, and a wrong one is one usage error that names it.
"""
