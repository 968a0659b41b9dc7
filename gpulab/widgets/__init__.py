"""Live views for notebooks: traits only, no NVML, no arithmetic."""
