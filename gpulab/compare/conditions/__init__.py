"""Under what circumstances it was measured: the machine, its limits, and who else used it meanwhile."""
