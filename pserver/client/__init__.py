"""The client side: from keys of a batch to requests, and back."""
