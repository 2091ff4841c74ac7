"""The execution surface: how a playbook run proceeds and ends."""
