"""Speed and memory of ropewalk beside the plain forward pass and the usual way of doing it."""
