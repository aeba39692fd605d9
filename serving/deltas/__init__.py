"""Deltas: what changed in an artifact since it was published, in numbered folders `<version>/deltas/<number>/`.

`files` opens and checks one, `changes` says what it does to a table and to a map of raw ids; `Artifact.with_delta` and `Engine.apply_delta` do it.
`watcher` looks for new ones beside a model that is served.
"""

from emberline.serving.deltas.changes import ChangedIds, ChangedRows, merge_ids
from emberline.serving.deltas.files import Delta, delta_path, find_deltas, find_strays, list_deltas, open_delta

__all__ = ["ChangedIds", "ChangedRows", "Delta", "delta_path", "find_deltas", "find_strays", "list_deltas", "merge_ids", "open_delta"]
