"""Whether two runs of a playbook came to the same: what is told of them apart from ids, times and who did the work."""
