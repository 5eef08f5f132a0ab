"""Search in a run: videos and moments that are similar to examples or to a text."""

from clipset.retrieval.index import (
    QueryExample,
    SearchHit,
    SearchIndex,
    SearchResult,
    Unit,
    open_index,
)
from clipset.retrieval.search import FoundVideo, SearchAnswer, VideoSearch

__all__ = [
    "FoundVideo", "QueryExample", "SearchAnswer", "SearchHit", "SearchIndex", "SearchResult",
    "Unit", "VideoSearch", "open_index",
]  # fmt: skip
