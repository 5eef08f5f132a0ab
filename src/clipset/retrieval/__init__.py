"""Search in a run: videos and moments that are similar to examples or to a text."""

from clipset.retrieval.filters import VideoFilter
from clipset.retrieval.index import (
    QueryExample,
    SearchHit,
    SearchIndex,
    SearchResult,
    Unit,
    open_index,
)
from clipset.retrieval.query import QueryReader, SearchQuery, parse_query
from clipset.retrieval.search import FoundVideo, SearchAnswer, VideoSearch

__all__ = [
    "FoundVideo", "QueryExample", "QueryReader", "SearchAnswer", "SearchHit", "SearchIndex",
    "SearchQuery", "SearchResult", "Unit", "VideoFilter", "VideoSearch", "open_index",
    "parse_query",
]  # fmt: skip
