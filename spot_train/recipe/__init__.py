"""The typed recipe of a run."""
