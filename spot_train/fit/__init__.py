"""Shards to examples to a trained order model, its accuracy and its checkpoint (sections 4.2 and 5.1, algorithm 1)."""
