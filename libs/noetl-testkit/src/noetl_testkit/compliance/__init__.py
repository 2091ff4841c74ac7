"""One suite for each port; every adapter runs it, and so does its in-memory twin."""
