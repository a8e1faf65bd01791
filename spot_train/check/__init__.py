"""`spot-train check`: whether "lossless" holds for a target, in a dtype, on a machine (`docs/check.md`)."""
