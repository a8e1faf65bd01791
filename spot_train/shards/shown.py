"""A URL as it may be shown and written down. Pure."""

from __future__ import annotations

import re


def without_secrets(url: str) -> str:
    """A URL without user, password and query; anything else as it is."""
    return re.sub(r"(?<=://)[^/]*@", "", url).split("?", 1)[0] if "://" in url else url


def quoted(error: Exception, url: str) -> str:
    """What a library says of a URL, without what `without_secrets` leaves out of it."""
    said, place = str(error).replace(url, without_secrets(url)), url.split("://", 1)[-1]
    authority, mark, query = place.partition("?")
    for secret in (mark + query, authority.split("/", 1)[0].rpartition("@")[0] + "@"):
        said = said.replace(secret, "") if len(secret) > 1 else said
    return said
