"""The words that everything else speaks: turns, trajectories, groups, samples, batches.

Only `batch` needs torch; the rest is plain Python and numpy, so that an environment server starts at once.
"""
