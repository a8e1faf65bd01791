"""`spot-train bench`: suites ask for cells and curves; this package runs each once and keeps their rows.

plan: what is asked; materials: targets, drafters, task; recorded: the control's trajectories; cells: the asking
answered, by replay or for real; run: the loop that resumes.
"""
