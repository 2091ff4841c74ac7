"""What a reaper does: have silent work given up, so that somebody else can do it."""
