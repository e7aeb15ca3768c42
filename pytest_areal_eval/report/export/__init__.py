"""A saved run in the formats that other people and other tools read; each is one function from a run to a file."""
