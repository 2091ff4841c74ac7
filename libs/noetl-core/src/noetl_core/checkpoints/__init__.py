"""How far an execution is known to have been projected, told in its own history now and then."""
