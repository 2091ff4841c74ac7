"""`noetl replay`: what an execution was at any point, what changed, and what another release makes of it."""
