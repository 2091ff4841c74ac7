"""What an execution looks like to whoever queries, compares or proves it: six surfaces of rows, made by one function.

Live rows and replayed ones come from the same `changes`, so that a difference between them is a fault and no opinion.
"""
