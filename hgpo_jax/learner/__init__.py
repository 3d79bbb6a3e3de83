"""From recorded steps to new parameters: packing, losses, one jitted update on a mesh, checkpoints."""
