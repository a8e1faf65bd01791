"""Prompts to trajectories to shards: draft-free or drafted, in one process or many, whatever is killed."""
