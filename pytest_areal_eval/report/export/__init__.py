"""A saved run in the formats that other people and other tools read; each is one function from a run to a file."""

GITHUB_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Set by GitHub's runners to a file whose Markdown they show on the job's page."""
