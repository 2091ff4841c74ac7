"""Folds events, evaluates playbooks, issues commands and grants claims."""
