"""What a publisher does: publish a batch, and keep the right to do so."""
