"""What GPUs there are. Everything above reads frozen values and never NVML."""
