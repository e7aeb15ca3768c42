"""What starts servers: on this machine, on a Ray cluster, through Slurm.

Contract: :mod:`.base`; nothing here knows a model, an engine or pytest.
"""
