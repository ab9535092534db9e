"""What patches change, as diffs against the last release that each is for."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Mapping, Sequence

from dsfix.catalogue import registry
from dsfix.cli.printing.edits import Unwritable, unified_diff
from dsfix.patch import Edit
from matrix.sdists import Index, Unavailable


def made(last: Mapping[str, str], index: Index) -> tuple[dict[str, str], str]:
    """Id -> diff, of patches and the last release of each, and why some are missing, "" if none is."""
    by_release: dict[str, list[str]] = {}
    for patch_id, release in last.items():
        by_release.setdefault(release, []).append(patch_id)
    work, missing = [], ""
    for release, ids in by_release.items():
        try:
            work.append((str(index.sources(release)), ids))
        except Unavailable as error:
            missing = str(error)
    # a process for each release, as what is read of DeepSpeed's source is cached
    with multiprocessing.get_context("fork").Pool(maxtasksperchild=1) as pool:
        per_release = pool.starmap(_of_release, work, chunksize=1)
    return {patch_id: diff for each in per_release for patch_id, diff in each.items()}, missing


def _of_release(sources: str, ids: Sequence[str]) -> dict[str, str]:
    sys.path.insert(0, sources)
    diffs = {}
    for patch_id in ids:
        edits = [change for change in registry.catalogue()[patch_id].patch.changes if isinstance(change, Edit)]
        try:
            diffs[patch_id] = unified_diff(edits)
        except Unwritable:  # an anchor within a line
            continue
    return diffs
