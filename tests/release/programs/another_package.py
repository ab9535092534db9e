"""A package that replaces a method of DeepSpeed, as several public ones do."""

import functools


def unscale_and_clip_grads(self, sub_group_id, total_norm):
    return "another"


def take_over(cls, how):
    old = cls.unscale_and_clip_grads
    if how == "replace":
        cls.unscale_and_clip_grads = unscale_and_clip_grads
    elif how == "wrap":

        @functools.wraps(old)
        def wrapper(*args, **kwargs):
            return old(*args, **kwargs)

        cls.unscale_and_clip_grads = wrapper
    else:  # the code of the function behind DeepSpeed's decorator
        (cell,) = [c for c in old.__closure__ if getattr(c.cell_contents, "__name__", "") == "unscale_and_clip_grads"]
        cell.cell_contents.__code__ = unscale_and_clip_grads.__code__
