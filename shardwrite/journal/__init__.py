"""State of a run on disk: plan, journals and leases beside the array, and the receipt in it.

The plan, the journals and the leases lie in ``<array>.shardwrite/`` and are removed when the run
ends. The receipt lies in the array and stays.
"""
