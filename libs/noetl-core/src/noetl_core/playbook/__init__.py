"""The playbook language: read and check a document, evaluate its templates, know its graph."""
