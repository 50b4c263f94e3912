"""Imports that are delayed until they are needed.

A package that calls `attach` states in which modules its names are defined. A module is imported
only when one of its names is first used (PEP 562). Type checkers read the same names from the
imports below ``if TYPE_CHECKING``; `tests/test_architecture.py` compares the two lists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import dropwhile
from types import ModuleType
from typing import Any


def attach(
    package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the functions ``__getattr__`` and ``__dir__`` of a package with delayed imports.

    If a name of the package is also the name of a submodule, the package must import the submodule
    itself and delete the attribute. Otherwise a later import of the submodule would bind it to that
    name.
    """
    homes = {name: module for module, given in names.items() for name in given}
    whole = {module.rpartition(".")[2]: module for module in modules}

    def __getattr__(name: str) -> Any:  # noqa: N807 (the name that PEP 562 asks for)
        value: Any
        if name in homes:
            value = getattr(import_module(homes[name]), name)
        elif name in whole:
            value = import_module(whole[name])
        else:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package]
            )
        setattr(sys.modules[package], name, value)  # later lookups do not call this function
        return value

    def __dir__() -> list[str]:  # noqa: N807 (the name that PEP 562 asks for)
        return sorted({*vars(sys.modules[package]), *homes, *whole})

    return __getattr__, __dir__


def if_loaded(module: str, name: str) -> tuple[type[Any], ...]:
    """A class in a tuple for `isinstance`, which is empty if its module was not imported yet.

    Then there is no object of the class, and nothing is imported. The same holds while another
    thread imports the module.
    """
    kind = getattr(sys.modules.get(module), name, None)
    return () if kind is None else (kind,)


class LateMethod:
    """A method whose function is taken from a package each time the method is looked up."""

    def __init__(self, package: str, name: str) -> None:
        self._package = package
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind the function to an instance."""
        return getattr(sys.modules[self._package], self._name).__get__(instance, owner)


def when_imported(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call a function with a module as soon as the module has been imported.

    If the module has been imported already, the function is called at once.

    - `action`: function to call with the module. It is called again if the module is reloaded.
    """
    # The finder is never removed, since a removal could hide the next finder from another thread.
    sys.meta_path.insert(0, _Finder(name, action))
    if name in sys.modules:
        # `import_module` waits if another thread is in the middle of the import.
        action(import_module(name))


class _Finder(MetaPathFinder):
    """Finder of one module: it asks the finders after it, and has `_Loader` load the module."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See :meth:`importlib.abc.MetaPathFinder.find_spec`."""
        if fullname != self._name:
            return None
        for finder in dropwhile(lambda other: other is not self, sys.meta_path):
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._action)
                return spec
        return None


class _Loader(Loader):
    """Loader that has another loader load a module, then calls an action with the module."""

    def __init__(self, loader: Loader, action: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._action = action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See :meth:`importlib.abc.Loader.create_module`."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """See :meth:`importlib.abc.Loader.exec_module`. The module refers to the other loader."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._action(module)
