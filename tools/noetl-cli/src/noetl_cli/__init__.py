"""The noetl command: run and watch playbooks, and the whole stack on one machine."""
