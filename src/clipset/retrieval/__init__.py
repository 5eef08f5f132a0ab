"""Search in a run: videos and moments that are similar to examples or to a text."""

from clipset.retrieval.filters import VideoFilter
from clipset.retrieval.index import (
    QueryExample,
    SearchHit,
    SearchIndex,
    Unit,
    open_index,
)
from clipset.retrieval.query import QueryReader, SearchQuery, parse_query

__all__ = [
    "QueryExample", "QueryReader", "SearchHit", "SearchIndex", "SearchQuery", "Unit",
    "VideoFilter", "open_index",
    "parse_query",
]  # fmt: skip
