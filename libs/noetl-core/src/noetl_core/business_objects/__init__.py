"""The business-object surface: what an execution says about things of its users' world."""
