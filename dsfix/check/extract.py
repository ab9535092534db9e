"""Extracts the keys that DeepSpeed reads from its config out of its source, without importing or running it.

The config dictionary is followed from `DeepSpeedConfig.__init__` and `deepspeed.initialize` through calls, assignments
and `param_dict[KEY]`, `.get(KEY)`, `KEY in …`; if part of it is unpacked into a pydantic model, the model's fields are
the keys. The block `pipeline` is copied key by key: its keys are those that PipelineEngine looks up in the copy. The
config of `deepspeed.init_inference` is a pydantic model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

from .keys import Key, KnownKeys

Place = tuple[str, ...]  # path of a value in the config; () is the config itself
Definition = Union[ast.FunctionDef, ast.ClassDef]

_MODELS = ("DeepSpeedConfigModel", "BaseModel")
_GETTERS = ("get_scalar_param", "get_list_param", "get_dict_param")
_COPIES = ("copy", "deepcopy")
KINDS = ("int", "float", "bool")


class UnreadableSource(Exception):
    """The source is missing, or is not DeepSpeed's."""


def extract_keys(package: Path) -> KnownKeys:
    """The keys read by the DeepSpeed in this directory, the one with its __init__.py. Raises UnreadableSource."""
    source = _Source(package)
    config = source.module("runtime.config")
    if config is None or not isinstance(config.names.get("DeepSpeedConfig"), ast.ClassDef):
        raise UnreadableSource(f"{package} has no DeepSpeedConfig in runtime/config.py")
    reader = _Reader(source)
    reader.follow(config, config.names["DeepSpeedConfig"], {"config": {()}})
    top = source.module("")
    if top is not None and "initialize" in top.names:
        reader.follow(top, top.names["initialize"], {"config": {()}})
    for name, above in (("_REMOVED_TOP_LEVEL_CONFIG_KEYS", ()), ("_REMOVED_ZERO_CONFIG_KEYS", ("zero_optimization",))):
        for key in config.mapping(name):
            reader.root.at(*above, key).removed = True
    schedules = source.module("runtime.lr_schedules") or _Module("")
    optimizers = tuple(source.strings(config, "DEEPSPEED_OPTIMIZERS"))
    lost = [f"{(name or '__init__').replace('.', '/')}.py" for name, module in source.parsed.items() if module is None]
    if lost:
        raise UnreadableSource(f"{package} lacks {', '.join(lost)}")
    _pipeline(source, reader.root)
    return KnownKeys(
        reader.root, optimizers, tuple(source.strings(schedules, "VALID_LR_SCHEDULES")), _inference(source)
    )


def _pipeline(source: _Source, root: Key) -> None:
    engine = source.module("runtime.pipe.engine")
    owner = engine.names.get("PipelineEngine") if engine is not None else None
    if not isinstance(owner, ast.ClassDef):
        return
    for node in ast.walk(owner):
        held, key = None, None
        if isinstance(node, ast.Subscript):
            held, key = node.value, node.slice
        elif isinstance(node, ast.Call) and _last(node.func) == "get" and isinstance(node.func, ast.Attribute):
            held, key = node.func.value, node.args[0] if node.args else None
        if held is not None and _dotted(held).endswith("_config.pipeline") and isinstance(key, ast.Constant):
            root.at("pipeline", str(key.value))


def _inference(source: _Source) -> Key:
    reader = _Reader(source)
    module = source.module("inference.config")
    model = module.names.get("DeepSpeedInferenceConfig") if module is not None else None
    if module is not None and isinstance(model, ast.ClassDef):
        reader.model(module, model, ())
    return reader.root


@dataclass
class _Module:
    """One file: its top-level definitions and values by name, and its imports."""

    name: str
    names: dict[str, Definition | ast.expr] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    def mapping(self, name: str) -> list[str]:
        node = self.names.get(name)
        keys = node.keys if isinstance(node, ast.Dict) else []
        return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


class _Source:
    """The modules of one package, parsed on demand."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.parsed: dict[str, _Module | None] = {}

    def module(self, name: str) -> _Module | None:
        """Returns a module; `name` is relative to the package, e.g. runtime.config."""
        if name not in self.parsed:
            self.parsed[name] = None  # an import cycle ends here
            self.parsed[name] = self._parse(name)
        return self.parsed[name]

    def _parse(self, name: str) -> _Module | None:
        path = self.package.joinpath(*name.split(".")) if name else self.package
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        try:
            tree = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return None
        if not tree.body and file.name != "__init__.py":  # what is left of an installation that was interrupted
            return None
        module = _Module(name)
        inside = name.split(".") if name else []
        within = inside if file.name == "__init__.py" else inside[:-1]
        for node in _flat(tree.body):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                module.names[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                module.names[node.targets[0].id] = node.value
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node, within)
                for alias in node.names if origin is not None else ():
                    if alias.name == "*":
                        module.stars.append(origin or "")
                    else:
                        module.imports[alias.asname or alias.name] = (origin or "", alias.name)
        return module

    def _origin(self, node: ast.ImportFrom, within: list[str]) -> str | None:
        parts = node.module.split(".") if node.module else []
        if node.level:
            return ".".join([*within[: len(within) - node.level + 1], *parts])
        return ".".join(parts[1:]) if parts and parts[0] == self.package.name else None

    def resolve(self, module: _Module, name: str) -> tuple[_Module, Definition | ast.expr] | None:
        """Returns the module that defines a name used in `module`, and its definition."""
        if name in module.names:
            return module, module.names[name]
        if name in module.imports:
            origin, original = module.imports[name]
            there = self.module(origin)
            return self.resolve(there, original) if there is not None else None
        for star in module.stars:
            there = self.module(star)
            definition = self.resolve(there, name) if there is not None else None
            if definition is not None:
                return definition
        return None

    def string(self, module: _Module, node: ast.expr | None) -> str | None:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            definition = self.resolve(module, node.id)
            if definition is not None and isinstance(definition[1], ast.expr):
                return self.string(definition[0], definition[1])
        return None

    def strings(self, module: _Module, name: str) -> Iterator[str]:
        definition = self.resolve(module, name)
        for item in definition[1].elts if definition is not None and isinstance(definition[1], ast.List) else ():
            text = self.string(module, item)
            if text is not None:
                yield text

    def is_model(self, module: _Module, node: object) -> bool:
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            name = _last(base)
            if name in _MODELS:
                return True
            definition = self.resolve(module, name)
            if definition is not None and self.is_model(*definition):
                return True
        return False


class _Reader:
    """Follows the config through the source and collects the keys read from it in `root`."""

    def __init__(self, source: _Source) -> None:
        self.source = source
        self.root = Key()
        self.seen: set[tuple[object, ...]] = set()

    def follow(self, module: _Module, node: object, bound: dict[str, set[Place]]) -> None:
        """Follows a function, or a class's __init__; `bound` maps its parameters to parts of the config."""
        owner, function = _called(node)
        if function is not None:
            self.function(module, owner, function, _Bindings(bound))

    def function(self, module: _Module, owner: ast.ClassDef | None, node: ast.FunctionDef, held: _Bindings) -> None:
        mark = (id(node), *sorted(map(repr, held.places.items())), *sorted(map(repr, held.names.items())))
        if mark not in self.seen:
            self.seen.add(mark)
            _Body(self, module, owner, held).visit(node)

    def model(self, module: _Module, node: ast.ClassDef, place: Place, closed: bool = True) -> None:
        """Adds a pydantic model's fields as the keys at that place."""
        for base in node.bases:
            definition = self.source.resolve(module, _last(base))
            if definition is not None and isinstance(definition[1], ast.ClassDef) and self.source.is_model(*definition):
                self.model(definition[0], definition[1], place, closed)
        here = self.root.at(*place)
        here.closed = here.closed or closed
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                for name in filter(None, [each.target.id, _alias(each.value)]):
                    self._field(module, each.annotation, (*place, name))
            elif isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant):  # a field in pydantic 1
                for target in each.targets:
                    if isinstance(target, ast.Name):
                        kind = type(each.value.value).__name__
                        self.root.at(*place, target.id).kind = kind if kind in KINDS else ""

    def _field(self, module: _Module, annotation: ast.expr, place: Place) -> None:
        key = self.root.at(*place)
        names = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]
        plain = [name for name in names if name in KINDS]
        if len(plain) == 1 and set(names) <= {"Optional", *plain}:
            key.kind = plain[0]
        for name in names:
            definition = self.source.resolve(module, name)
            if definition is not None and isinstance(definition[1], ast.ClassDef) and self.source.is_model(*definition):
                self.model(definition[0], definition[1], place)


class _Bindings:
    """What the variables of one function may hold: parts of the config, or names of keys."""

    def __init__(self, places: dict[str, set[Place]], names: dict[str, set[str]] | None = None) -> None:
        self.places = {name: set(several) for name, several in places.items() if several}
        self.names = {name: set(several) for name, several in (names or {}).items() if several}


class _Body(ast.NodeVisitor):
    """Visits one function's body in statement order."""

    def __init__(self, reader: _Reader, module: _Module, owner: ast.ClassDef | None, held: _Bindings) -> None:
        self.reader, self.source, self.module, self.owner, self.held = reader, reader.source, module, owner, held

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        places, name = self.places(node.value), _dotted(node.targets[0])
        if places and name:
            self.held.places.setdefault(name, set()).update(places)

    def visit_For(self, node: ast.For) -> None:
        self.bind(node.target, node.iter)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.note(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        self.generic_visit(node)
        if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            container = node.comparators[0]
            if (
                isinstance(container, ast.Call)
                and isinstance(container.func, ast.Attribute)
                and container.func.attr == "keys"
            ):
                container = container.func.value
            self.collect(self._below(container, node.left))

    def visit_DictComp(self, node: ast.DictComp) -> None:
        """``{key: param_dict.get(key, {}) for key in ("tensorboard", ...)}``"""
        for generator in node.generators:
            self.bind(generator.target, generator.iter)
        self.generic_visit(node)

    def bind(self, target: ast.expr, items: ast.expr) -> None:
        if isinstance(target, ast.Name):
            names = {name for each in getattr(items, "elts", ()) for name in self.names(each)}
            self.held.names.setdefault(target.id, set()).update(names)

    def visit_Call(self, node: ast.Call) -> None:
        self.note(node)
        name = _dotted(node.func)
        if name.startswith("self.") and self.owner is not None:
            method = _method(self.owner, name[len("self.") :])
            if method is not None:
                bindings = self.bound(node, method)
                bindings.places.update({key: of for key, of in self.held.places.items() if key.startswith("self.")})
                self.reader.function(self.module, self.owner, method, bindings)
            return
        definition = self.source.resolve(self.module, name)
        if definition is None or name in _GETTERS:
            return
        module, callee = definition
        if self.source.is_model(module, callee) and isinstance(callee, ast.ClassDef):
            for keyword in node.keywords:
                for place in self.places(keyword.value) if keyword.arg is None else ():
                    self.reader.model(module, callee, place, closed=bool(place))
        elif not name.endswith("Engine"):
            owner, function = _called(callee)
            if function is not None and (bindings := self.bound(node, function)).places:
                self.reader.function(module, owner, function, bindings)

    def bound(self, call: ast.Call, callee: ast.FunctionDef) -> _Bindings:
        parameters = [argument.arg for argument in callee.args.args if argument.arg != "self"]
        defaults = callee.args.defaults
        defaults_by_name: dict[str, ast.expr] = dict(zip(parameters[len(parameters) - len(defaults) :], defaults))
        defaults_by_name.update(zip(parameters, call.args))
        defaults_by_name.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
        return _Bindings(
            {name: self.places(value) for name, value in defaults_by_name.items()},
            {name: self.names(value) for name, value in defaults_by_name.items()},
        )

    def note(self, node: ast.expr) -> None:
        self.generic_visit(node)
        self.collect(self.places(node))

    def collect(self, places: set[Place]) -> None:
        for place in places:
            self.reader.root.at(*place)

    def names(self, node: ast.expr) -> set[str]:
        """Returns the strings that an expression may evaluate to."""
        if isinstance(node, ast.Name) and node.id in self.held.names:
            return self.held.names[node.id]
        text = self.source.string(self.module, node)
        return set() if text is None else {text}

    def places(self, node: ast.expr) -> set[Place]:
        """Returns the parts of the config that an expression may evaluate to."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self.held.places.get(_dotted(node), set())
        if isinstance(node, ast.Subscript):
            return self._below(node.value, node.slice)
        if isinstance(node, ast.Call):
            name = _last(node.func)
            if name in _GETTERS and len(node.args) > 1:
                return self._below(node.args[0], node.args[1])
            if name == "get" and isinstance(node.func, ast.Attribute) and node.args:
                return self._below(node.func.value, node.args[0])
            if name in _COPIES and node.args:
                return self.places(node.args[0])
            return self._returned(node)
        if isinstance(node, ast.DictComp) and isinstance(node.value, ast.Call):  # its keys are the config's
            return self.places(node.value.func.value) if isinstance(node.value.func, ast.Attribute) else set()
        return set()

    def _returned(self, call: ast.Call) -> set[Place]:
        """Returns the parts of the config that a function returns as they are."""
        definition = self.source.resolve(self.module, _dotted(call.func))
        module, callee = definition or (self.module, None)
        if not isinstance(callee, ast.FunctionDef):
            return set()
        bound = self.bound(call, callee)
        if not bound.places:
            return set()
        inside = _Body(self.reader, module, None, bound)
        returned = (node.value for node in ast.walk(callee) if isinstance(node, ast.Return))
        lookups = (value for value in returned if isinstance(value, ast.Call) and _last(value.func) == "get")
        return {place for lookup in lookups for place in inside.places(lookup)}

    def _below(self, held: ast.expr, key: ast.expr) -> set[Place]:
        return {(*place, name) for place in self.places(held) for name in self.names(key)}


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements of a module, including those under a top-level `if` or `try`."""
    for node in body:
        yield node
        for part in ("body", "orelse", "handlers"):
            if isinstance(node, (ast.If, ast.Try)):
                yield from _flat([each for each in getattr(node, part, []) if isinstance(each, ast.stmt)])


def _called(node: object) -> tuple[ast.ClassDef | None, ast.FunctionDef | None]:
    """Returns the class that is called, if it is one, and its __init__ or the function."""
    if isinstance(node, ast.ClassDef):
        return node, _method(node, "__init__")
    return None, node if isinstance(node, ast.FunctionDef) else None


def _method(owner: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((each for each in owner.body if isinstance(each, ast.FunctionDef) and each.name == name), None)


def _alias(value: ast.expr | None) -> str | None:
    for keyword in value.keywords if isinstance(value, ast.Call) else ():
        if keyword.arg == "alias" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return None


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        above = _dotted(node.value)
        return f"{above}.{node.attr}" if above else ""
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
