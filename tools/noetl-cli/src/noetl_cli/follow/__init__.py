"""Following an execution while it runs."""
