"""The build hook that pyproject.toml names: bundles the front end before a wheel or sdist is made."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class FrontEndHook(BuildHookInterface[Any]):
    """Runs for `pip install .`, `pip install -e .` and `python -m build` alike."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's
        """Called by hatchling before it collects the files; `version` is standard or editable."""
        spec = spec_from_file_location("gpulab_bundle", Path(__file__).with_name("bundle.py"))
        if spec is None or spec.loader is None:
            raise RuntimeError("frontend/bundle.py is missing; unpack the sources again.")
        module = module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        module.bundle()
