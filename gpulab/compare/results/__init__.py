"""What a result holds, what may be said of it, and how it is shown; `gpulab.compare.result` is the door."""
