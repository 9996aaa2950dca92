"""A guard against programs that start an audit at their top level: each worker, which imports them, would start it again."""

import ast
import inspect
from pathlib import Path
from types import FrameType

IN_A_WORKER = "__mp_main__"
"""What ``multiprocessing`` calls the program in a worker."""


def require_guard(what: str, setting: str) -> None:
    """Raise ``RuntimeError`` for a call of ``what`` at the top level of a program; ``setting`` is one that needs no workers."""
    top = [info.frame for info in inspect.stack(0) if info.function == "<module>"]
    again = any(frame.f_globals.get("__name__") == IN_A_WORKER for frame in top)
    main = next((frame for frame in reversed(top) if frame.f_globals.get("__name__") == "__main__"), None)
    if again or (main is not None and not _guarded(main)):
        raise RuntimeError(
            f"{what} is called at the top level of the program, which each worker, a process of its own, imports: it would begin "
            f"again there; put the call below `if __name__ == '__main__':`, or set {setting}"
        )


def _guarded(main: FrameType) -> bool:
    """Whether the program asks for its name at or before the line that runs, or has no file, as then no worker imports it."""
    try:
        statements = ast.parse(Path(main.f_code.co_filename).read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return True
    names = (
        node
        for statement in statements
        if isinstance(statement, ast.If) and statement.lineno <= main.f_lineno
        for node in ast.walk(statement.test)
    )
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in names)
