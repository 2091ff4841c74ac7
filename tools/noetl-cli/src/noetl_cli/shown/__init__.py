"""What NoETL answers, as lines for people and as documents for programs."""
