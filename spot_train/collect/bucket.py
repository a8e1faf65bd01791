"""A set behind a URL while one command collects it: decoded in a folder, every finished shard uploaded whole.

The folder is the set and the URL its image: drafters that were fitted on the way, the files of a shard, its root last,
then a manifest that lists it. So a reader of the URL sees finished shards only, whatever was killed when. Knows nothing
about decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spot_infer.atomic import write_file
from spot_train.collect.batch_size import with_batch_of
from spot_train.collect.collect import Progress, Tally
from spot_train.collect.drafters import DRAFTERS, copy_drafters
from spot_train.collect.plan import Plan
from spot_train.collect.run import refuse_recipe
from spot_train.output_lock import Interrupted, OutputLock
from spot_train.recipe.recipe import Recipe
from spot_train.shards.claim import WRITER, Claim, new_mark
from spot_train.shards.copy import Place, Unreachable, copy_shards, find_manifest, read_manifest
from spot_train.shards.fetch import folder_of
from spot_train.shards.store import MANIFEST


class Bucket:
    """The set behind `url`, collected in `folder`, which lies in `cache`. As the progress of a run it uploads as shards
    are finished; what it hears goes on to `progress`. A failed upload is told to `say` and tried again with the next
    shard; the last one raises.

    `several` processes of one job that see one cache have a bucket each: the first to come downloads, one, which alone
    has its bucket as its progress, uploads on the way, and the last to go uploads the rest.
    """

    def __init__(
        self, url: str, cache: Path, progress: Progress, say: Callable[[str], None], several: bool = False
    ) -> None:
        self._there, self._progress, self._say = Place(url), progress, say
        self._several = several
        self.folder = folder_of(self._there, cache)
        self._here = Place(str(self.folder))
        self._uploaded: dict[str, str] | None = None
        self._seen: list[int] = []

    @contextmanager
    def written(self, recipe: Recipe, take_over: str | None, lock: OutputLock) -> Iterator[None]:
        """Be the only job that writes behind the URL, with the folder's `lock` held; first the folder takes on the
        shards and drafters that are there already, at the end what was finished goes up.

        Raises SpotError where another folder is being collected for the URL (whose claim `take_over` breaks, by name),
        or the set there is another recipe's.
        """
        self._claim = self._claim_of_folder()
        try:
            if lock.first:
                self._claim.take(take_over)
                self._download(recipe)
            yield
            self._finish(lock)
        except Interrupted:
            self._finish(lock)
            raise
        finally:
            if self._last(lock):
                self._claim.release()

    def sentence(self) -> str:
        """What is behind the URL."""
        return f"{self._there.name}: {len(self._uploaded or {})} shards"

    def upload(self) -> None:
        """Bring the folder's drafters and what its manifest lists behind the URL. Raises Unreachable where that fails,
        SpotError where another folder has taken the URL over."""
        self._claim.check()
        copy_drafters(self._here, self._there)
        data, manifest = read_manifest(self._here)
        if self._uploaded is None:
            found = find_manifest(self._there)
            self._uploaded = {} if found is None else _digests(found[1])
        digests = _digests(manifest)
        new = {name: manifest["shards"][name] for name in digests if self._uploaded.get(name) != digests[name]}
        if new:
            copy_shards(self._here, self._there, new)
            self._claim.check()
            self._there.write(MANIFEST, data)
        self._uploaded = digests

    def started(self, plan: Plan) -> None:
        self._progress.started(plan)

    def fitting(self, lease: int) -> None:
        self._progress.fitting(lease)

    def advanced(self, tally: Tally) -> None:
        """Upload where the folder's manifest is another than before, or a drafter came."""
        self._progress.advanced(tally)
        places = (self.folder / MANIFEST, self.folder / DRAFTERS)
        changed = [place.stat().st_mtime_ns for place in places if place.exists()]
        if changed != self._seen:
            self._seen = changed
            try:
                self.upload()
            except Unreachable as error:
                self._say(f"{error}; uploading again with the next shard")

    def _download(self, recipe: Recipe) -> None:
        found = find_manifest(self._there)
        if found is None:
            return
        data, manifest = found
        refuse_recipe(self._there.name, manifest, with_batch_of(recipe, manifest["attributes"]))
        copy_drafters(self._there, self._here)
        copy_shards(self._there, self._here, manifest["shards"])
        if self._here.read(MANIFEST) is None:
            self._here.write(MANIFEST, data)

    def _finish(self, lock: OutputLock) -> None:
        if self._last(lock):
            self.upload()

    def _last(self, lock: OutputLock) -> bool:
        return not self._several or lock.alone()

    def _claim_of_folder(self) -> Claim:
        """The claim of the folder, which keeps its name in a file."""
        file = self.folder / WRITER
        if not file.exists():
            write_file(file, new_mark())
        return Claim(self._there, file.read_bytes())


def _digests(manifest: Mapping[str, Any]) -> dict[str, str]:
    return {name: record["sha256"] for name, record in manifest["shards"].items()}
