"""`import deepspeed` fails on Python 3.14: Target parameter "qkv_w" not found in this layer.

Why: the classes of inference v2 declare their parameters by annotations, which a metaclass reads from the class's
    namespace. Python 3.14 stores a function there that evaluates the annotations on demand, so the metaclass finds none
    and rejects the first mapping to a parameter. `import deepspeed` imports these classes, also for training.
How: evaluates the annotations of such a class as it is made, as Python before 3.14 does.
Workaround: None in the script; Python 3.13 or earlier helps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsfix.patch import RAN, Edit, Patch, Severity, Source

if TYPE_CHECKING:
    from dsfix.lab import Lab

_MODELS = "deepspeed.inference.v2.model_implementations"
_READ = 'annotations = attrs.get("__annotations__", {})'
_LAYER = f"{_MODELS}.layer_container_base:LayerMetaclass.__new__"
_PARAMETER = f"{_MODELS}.parameter_base:ParameterMetaclass.__new__"


def evaluate_annotations(namespace: dict[str, Any]) -> None:
    """Store the annotations of a class in the making as `__annotations__`, unless they are there."""
    import annotationlib  # type: ignore[import-not-found,unused-ignore]

    annotate = annotationlib.get_annotate_from_class_namespace(namespace)
    if annotate is not None and "__annotations__" not in namespace:
        value = annotationlib.Format.VALUE
        namespace["__annotations__"] = annotationlib.call_annotate_function(annotate, value)


PATCH = Patch(
    title='import deepspeed fails on Python 3.14: Target parameter "qkv_w" not found in this layer',
    severity=Severity.IMPORT,
    # through 0.12.3 `import deepspeed` does not import these classes, which only FastGen uses
    affects={"deepspeed": ">=0.12.4,<0.18.6", "python": ">=3.14.0.dev0"},
    changes=tuple(
        Edit(target, before=_READ, code="evaluate_annotations(attrs)", uses=(evaluate_annotations,), effect=RAN)
        for target in (_PARAMETER, _LAYER)
    ),
    symptom=r"Target parameter \"[^\"\n]+\" not found in this layer\. Valid targets are \[\]",
    upstream={"https://github.com/deepspeedai/DeepSpeed/pull/7831": "fixed in 0.18.6"},
    fixed_in="0.18.6",
    fixed=(
        Source(_LAYER, "annotations = get_annotations_from_namespace(attrs)"),
        Source(_PARAMETER, "annotations = get_annotations_from_namespace(attrs)"),
    ),
    device="cpu",
)


def reproduce(lab: Lab) -> str:
    import ast
    import importlib
    import inspect
    import textwrap

    imported = f"deepspeed {lab.import_deepspeed(PATCH.symptom).__version__} was imported"
    base = importlib.import_module(f"{_MODELS}.layer_container_base").LayerContainer
    for layer in base.__subclasses__():
        [body] = ast.parse(textwrap.dedent(inspect.getsource(layer))).body
        assert isinstance(body, ast.ClassDef)
        declared = sorted(ast.unparse(line.target) for line in body.body if isinstance(line, ast.AnnAssign))
        assert sorted(layer._annotation_attrs) == declared, (layer, layer._annotation_attrs, declared)
    return f"{imported}, and the {len(base.__subclasses__())} kinds of layers have the parameters that they declare"
