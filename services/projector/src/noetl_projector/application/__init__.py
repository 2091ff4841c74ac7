"""What a projector does: fold events onto stored state, find what was not delivered, answer queries."""
