"""Frameworks that nothing from outside can cap: said plainly, with what to do."""

from __future__ import annotations

from gpulab.limits.framework import Framework, Outcome
from gpulab.limits.state import Cap
from gpulab.units import format_bytes

__all__ = ["OnnxRuntime", "XgBoost"]


class OnnxRuntime(Framework):
    """Each session has an arena of its own, limited when the session is made."""

    name = "onnxruntime"
    title = "ONNX Runtime"
    module = "onnxruntime"
    takes_cap = False

    def cap(self, cap: Cap) -> Outcome:
        limit = f"'gpu_mem_limit': {cap.pool_bytes}, " if cap.pool_bytes is not None else ""
        return Outcome(
            "not capped",
            remedy="ONNX Runtime takes a limit for each session only; "
            "give its CUDAExecutionProvider the options "
            f"{{{limit}'arena_extend_strategy': 'kSameAsRequested'}}.",
        )


class XgBoost(Framework):
    """No limit at all, unless it was built with RMM."""

    name = "xgboost"
    title = "XGBoost"
    module = "xgboost"
    takes_cap = False

    def cap(self, cap: Cap) -> Outcome:
        remedy = "XGBoost has no limit; give it QuantileDMatrix or external memory so that it needs less"
        if self.loaded.build_info().get("USE_RMM"):
            remedy = "XGBoost has no limit of its own; train within xgboost.config_context(use_rmm=True)"
        size = "" if cap.pool_bytes is None else f", and keep an eye on the {format_bytes(cap.memory_bytes)}"
        return Outcome("not capped", remedy=f"{remedy}{size}.")
