"""A stand-in for an inference server, for tests and benchmarks: fast, scripted, and faithful in its shapes."""
