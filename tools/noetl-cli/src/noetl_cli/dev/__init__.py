"""The whole stack on one machine: embedded servers, supervised processes, one data directory."""
