"""What a learner's code calls of the course's, or of transformers': then it is no answer of its own."""

import contextlib
import dis
import inspect
import sys
import sysconfig

OWNERS = {
    "helpers": "the course's",
    "checks": "the course's",
    "explorers": "the course's",
    "beyond": "the course's",
    "transformers": "transformers'",
}  # by package
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
FREE = ("helpers.plots", "helpers.device", "transformers.utils.import_utils")  # a picture, or an import


def borrowed(function, allow):
    """What the learner's code names of the course's or of transformers' functions and classes, in words, or "".

    A reminder, no wall: it reads the names in the function, and in the learner's functions and classes that it leads
    to. It does not see what is handed over, nor what is found in another way, such as by getattr.

    Args:
        allow: names of functions, or of classes with their methods; or of a package, with a dot: all in it.
    """
    waiting, seen = [function], []
    with contextlib.suppress(Exception):  # of an object that cannot be looked at nothing is said
        for value in waiting:  # grows
            value = inspect.unwrap(getattr(value, "__func__", getattr(value, "func", value)))  # a method, a partial
            kind = value if isinstance(value, type) or inspect.isroutine(value) else type(value)
            if any(kind is one for one in seen):
                continue
            seen.append(kind)
            for one in kind.__mro__ if isinstance(kind, type) else (kind,):
                module = getattr(one, "__module__", None) or ""
                words = getattr(one, "__qualname__", "").rpartition("<locals>.")[2].split(".")
                if owner := OWNERS.get(module.partition(".")[0]):
                    if module not in FREE and not any(x in words or f"{module}.".startswith(x) for x in allow):
                        return f"{owner} {words[0] if words[-1] in ('forward', '__call__') else '.'.join(words)}"
                elif isinstance(one, type):
                    parts = filter(inspect.isfunction, vars(one).values())
                    waiting += [part for part in parts if part.__module__ == module]  # transformers patches torch's
                elif inspect.isfunction(one) and not one.__code__.co_filename.startswith((*LIBRARIES, "<frozen")):
                    waiting += _named_by(one)
    return ""


def _named_by(function):
    """The functions, classes and callable objects that the code of a function names, also inside of it."""
    codes, found = [function.__code__], [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    around = inspect.getclosurevars(function).nonlocals
    for code in codes:  # grows
        codes += [inner for inner in code.co_consts if inspect.iscode(inner)]
        value = None
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):  # of what was named before
                look_up = getattr if inspect.ismodule(value) else inspect.getattr_static
                value = look_up(value, step.argval, None)
                continue
            found.append(value)
            value = None
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):  # a name of the function's own is no global one
                value = function.__globals__.get(step.argval)
            elif step.opname == "LOAD_DEREF":
                value = around.get(step.argval)
            elif step.opname == "IMPORT_NAME":
                value = sys.modules.get(step.argval)
        found.append(value)
    return [value for value in found if callable(value) or hasattr(value, "__func__")]
