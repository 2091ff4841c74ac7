"""Between core values and contract messages; the only place that knows both."""
