"""What the GPUs did, for every reader from one sampler."""
