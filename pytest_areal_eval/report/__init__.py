"""What a person and a machine see of a run: the scoreboard, the gates as tests, the table, the live line.

Contract: everything here is built from reports and from the session's groups; text is written through pytest's terminal
reporter alone, and model output is stripped of control characters first.
"""
