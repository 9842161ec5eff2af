"""What is measured under a patch: rows of perplexity, attention statistics and passkey retrieval.

A probe yields rows; it knows nothing of files, methods or sweeps.
"""
