"""What api does: appends, reads, the catalog and executions, apart from how it is asked."""
