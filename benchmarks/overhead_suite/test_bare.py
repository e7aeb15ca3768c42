"""As many tests without an evaluation: what pytest itself costs."""


def test_bare(number):
    """Nothing."""
