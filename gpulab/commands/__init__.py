"""The subcommands of `gpulab`, a file each: `add_arguments(parser)` and `run(args) -> exit code`."""
