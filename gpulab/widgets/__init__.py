"""Live widgets in the notebook: traits and one thread. No NVML and no arithmetic in here."""
