"""The workloads that gpulab compares."""
