"""The inside of the simulated machine; its doors are hardware.scenario and hardware.simulated."""
