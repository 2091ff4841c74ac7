"""The pure core: ids, canonical JSON, envelope, append rules, playbook language, fold and decide."""
