"""Child processes of tests start without what dask imports only because it is installed.

`import dask.array` imports xarray, pandas and parts of scipy where they are there, which takes more
than half of its time, and hundreds of processes do it. To dask, and while it is imported, they are
missing here. Everybody else finds them: this package, its optional readers, and the tests.

`conftest.py` puts this directory into ``PYTHONPATH`` for child processes. The processes in which
tests run have everything.
"""

import sys

OPTIONAL = ("pandas", "scipy", "xarray")
IMPORTERS = (
    "dask._compatibility",
    "dask.array.chunk_types",
    "dask.array.fft",
)


class _Missing:
    """A finder that finds nothing, and says so to the modules of dask that look at their start."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in OPTIONAL:
            return
        frame = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None and frame.f_globals.get("__name__") in IMPORTERS:
            raise ModuleNotFoundError(f"{name} takes long and is not needed here", name=name)
        return


sys.meta_path.insert(0, _Missing)
