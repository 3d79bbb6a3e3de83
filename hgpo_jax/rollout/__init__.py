"""From environments and a policy to a batch: memory, collector."""
