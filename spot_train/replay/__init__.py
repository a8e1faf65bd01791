"""Target forwards of any method, counted from recorded trajectories."""
