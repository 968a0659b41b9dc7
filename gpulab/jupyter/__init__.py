"""The doors of Jupyter: kernels, the extension, the server."""
