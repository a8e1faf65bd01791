"""Methods side by side in one process, by decoding."""
