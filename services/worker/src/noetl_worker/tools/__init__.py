"""The tools that a step can name: each turns its config into an outcome, and raises for nobody's mistakes."""
