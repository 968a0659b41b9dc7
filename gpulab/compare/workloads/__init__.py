"""The workloads that come with gpulab: data, backends and the check of each."""
