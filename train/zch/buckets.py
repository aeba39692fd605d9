"""How a table of a map by hashes is cut into buckets: parts of its rows, each for a part of the ids, however many ranks there are."""

from itertools import pairwise

LEAST_ROWS = 2
"""Of a bucket: one for an id, and its fallback row."""
ROOMY = 1024
"""Rows of a bucket that fill evenly: at 80 % of them, the fullest of 240 buckets is 3 standard deviations, 8 %, above the mean."""
_FINE = (240, 120, 60, 24)
_COARSE = (12, 6, 4, 3, 2, 1)


def default_buckets(rows: int) -> int:
    """Buckets of a table where the config does not say: as many numbers of ranks as can be can share them.

    240, 120, 60 or 24 where each has 1,024 rows, else 12, which 1, 2, 3, 4, 6 and 12 ranks can share; fewer in tables of less than 24 rows.
    """
    fine = next((count for count in _FINE if rows >= count * ROOMY), None)
    return fine or next(count for count in _COARSE if rows >= count * LEAST_ROWS)


def bucket_ends(rows: int, buckets: int) -> tuple[int, ...]:
    """The first row of each bucket, and the end; their sizes differ by one row at most."""
    ends = tuple(rows * bucket // buckets for bucket in range(buckets + 1))
    assert all(end - first >= LEAST_ROWS for first, end in pairwise(ends))
    return ends


def sharing_problem(buckets: int, world_size: int) -> str:
    """Why so many ranks cannot share so many buckets; empty where they can."""
    if buckets % world_size == 0:
        return ""
    able = [count for count in range(1, buckets + 1) if buckets % count == 0]
    enough = -(-buckets // world_size) * world_size
    return f"its {buckets} buckets can be shared by {', '.join(map(str, able))} ranks, not by {world_size}; with zch buckets: {enough} they could"
