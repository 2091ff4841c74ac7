"""Run user Python as the playbook language defines it: names in, one result or one exception out."""

import ast
import datetime
import importlib
import inspect
import json
import os
import sys
import types
import uuid
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

SOURCE_NAME = "<step code>"
"""The file name of user code in tracebacks; only frames of this file are shown to the user."""

_MODULE_NAME = "__playbook__"
_BODY_NAME = "__step__"
_NO_RETURN = "\0no return statement was reached"
_OWN_SCOPE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """What one call runs, and the names it may use."""

    source: str
    inputs: Mapping[str, object]
    context: Mapping[str, object]
    libs: Mapping[str, object]


def run_user_code(code: UserCode) -> object:
    """The value of the call; whatever the user's code raises comes out as it was raised."""
    compiled, is_function_body = _compiled(code.source)
    # A real module, since dataclasses and typing look names up through `sys.modules`.
    module = types.ModuleType(_MODULE_NAME)
    names = module.__dict__
    names |= {"os": os, "json": json, "datetime": datetime, "uuid": uuid}
    names |= {"input_data": dict(code.inputs), "args": dict(code.inputs), "context": code.context}
    names |= {alias: _imported(target) for alias, target in code.libs.items()}
    names |= code.inputs
    sys.modules[_MODULE_NAME] = module
    try:
        exec(compiled, names)  # noqa: S102 - running the user's code is what this is for
        if is_function_body:
            body: Callable[[], object] = names.pop(_BODY_NAME)
            returned = body()
            if not (isinstance(returned, str) and returned == _NO_RETURN):
                return names.get("result") if returned is None else returned
        return _result(names, code)
    finally:
        sys.modules.pop(_MODULE_NAME, None)


def _result(names: Mapping[str, object], code: UserCode) -> object:
    main = names.get("main")
    # An input that happens to be called `result` is not a result while there is a main to ask.
    untouched_input = "result" in code.inputs and names.get("result") is code.inputs["result"]
    if "result" in names and not (untouched_input and callable(main)):
        return names["result"]
    if not callable(main):
        return None
    value = _call_by_name(main, code)
    if inspect.isawaitable(value):
        import asyncio  # noqa: PLC0415 - 30 ms that most children never need

        async def awaited() -> object:
            return await value

        return asyncio.run(awaited())
    return value


def _call_by_name(main: Callable[..., object], code: UserCode) -> object:
    """Arguments by name: inputs, then the names that scripts also see, then the context."""
    all_inputs = dict(code.inputs)
    own_names: dict[str, object] = {"context": code.context, "input_data": all_inputs, "args": all_inputs}
    known = ChainMap(all_inputs, own_names, dict(code.context))
    positional: list[object] = []
    named: dict[str, object] = {}
    parameters = inspect.signature(main).parameters
    for name, parameter in parameters.items():
        match parameter.kind:
            case inspect.Parameter.VAR_POSITIONAL:
                pass
            case inspect.Parameter.VAR_KEYWORD:
                named |= {key: value for key, value in all_inputs.items() if key not in parameters}
            case inspect.Parameter.POSITIONAL_ONLY if name in known:
                positional.append(known[name])
            case _ if name in known:
                named[name] = known[name]
    return main(*positional, **named)


def _imported(target: object) -> object:
    """A `libs` entry: the name of a module, or `{from, import}`."""
    if isinstance(target, str):
        return importlib.import_module(target)
    if not isinstance(target, Mapping) or not isinstance(target.get("from"), str):
        raise ImportError(f"libs: {target!r} is neither a module nor {{from, import}}")
    package, name = target["from"], str(target.get("import"))
    module = importlib.import_module(package)
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(f"{package}.{name}")


@lru_cache(maxsize=64)
def _compiled(source: str) -> tuple[types.CodeType, bool]:
    """The code to execute, and whether it only defines the body as a function, because it returns."""
    tree = ast.parse(source, SOURCE_NAME)
    if not any(isinstance(node, ast.Return) for node in _own_nodes(tree)):
        return compile(tree, SOURCE_NAME, "exec", dont_inherit=True), False
    if any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Await) for node in _own_nodes(tree)):
        raise SyntaxError("'yield' and 'await' do not work outside functions")
    for node in _own_nodes(tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(node, field, [_without_annotation(child) for child in value])
    local_names = _bound_names(_body_function(tree, global_names=()))
    return _body_function(tree, global_names=local_names), True


def _body_function(tree: ast.Module, *, global_names: tuple[str, ...]) -> types.CodeType:
    """A module that defines the user's statements as a function whose names are nevertheless global."""
    # These two are allowed at module level only.
    hoisted = [node for node in tree.body if isinstance(node, ast.ImportFrom) and _is_module_only(node)]
    kept = [node for node in tree.body if node not in hoisted]
    scope: list[ast.stmt] = [ast.Global(names=list(global_names))] if global_names else []
    ending = ast.Return(value=ast.Constant(value=_NO_RETURN))
    (function,) = ast.parse(f"def {_BODY_NAME}(): ...").body
    assert isinstance(function, ast.FunctionDef)  # noqa: S101 - by the line above
    function.body = [*scope, *kept, ending]
    module = ast.Module(body=[*hoisted, function], type_ignores=[])
    return compile(ast.fix_missing_locations(module), SOURCE_NAME, "exec", dont_inherit=True)


def _bound_names(module: types.CodeType) -> tuple[str, ...]:
    """The compiler itself says which names the statements bind: imports, walruses, patterns and all."""
    body = next(constant for constant in module.co_consts if isinstance(constant, types.CodeType))
    return (*body.co_varnames, *body.co_cellvars)


def _is_module_only(node: ast.ImportFrom) -> bool:
    return node.module == "__future__" or any(alias.name == "*" for alias in node.names)


def _without_annotation(node: object) -> object:
    """`x: int = 1` may not be global in a function, `x = 1` may."""
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
        return node
    if node.value is None:
        return ast.copy_location(ast.Pass(), node)
    return ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)


def _own_nodes(tree: ast.Module) -> list[ast.AST]:
    """Every node outside nested functions and classes, which have a scope of their own."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, _OWN_SCOPE))
    return found
