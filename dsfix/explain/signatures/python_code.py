"""Errors of Python, its libraries and services, which a job meets with and without DeepSpeed."""

from __future__ import annotations

from ..signature import Role, Signature

SIGNATURES = (
    Signature(
        id="name_not_bound",
        title="a variable is read on a path on which nothing was assigned to it",
        what="An error of the function in the last frame, whose branch for this case assigns nothing: a setting, a "
        "version or an empty input for which it was not written. Or an `except` swallowed the error that comes before.",
        remedy="Read the function of the last frame: which branch assigns it; or another release of its package.",
        pattern=r"UnboundLocalError: (?:local variable|cannot access local variable)",
        role=Role.FAMILY,
    ),
    Signature(
        id="recursion_too_deep",
        title="a function calls itself without an end",
        what="An attribute that looks itself up (a wrapper's __getattr__ before its module is set, often after "
        "unpickling or deepcopy), a method that is patched twice, or a structure that contains itself.",
        remedy="The frames that repeat in the traceback name the two functions; wrap or patch once.",
        pattern=r"RecursionError: maximum recursion depth exceeded",
        role=Role.FAMILY,
    ),
    Signature(
        id="yaml_invalid",
        title="a YAML file is not valid",
        what="A missing space after a colon, a tab, other indentation, or a value with a colon, # or braces that has "
        "no quotes. The message has line and column.",
        remedy="Mend that line; `accelerate config` writes a valid file.",
        pattern=r"yaml\.(?:scanner\.ScannerError|parser\.ParserError|composer\.ComposerError)",
    ),
    Signature(
        id="samples_not_padded",
        title="samples of unequal lengths cannot become one tensor",
        what="The collator or the tokenizer got lists of different lengths, or columns that are not numbers (text, "
        "nested lists).",
        remedy="padding=True and truncation=True, a collator that pads (DataCollatorForSeq2Seq pads labels, too), "
        "and remove_unused_columns or a map that removes the text.",
        pattern=r"Unable to create tensor, you should probably activate (?:truncation|padding)"
        r"|expected sequence of length \d+ at dim \d+ \(got \d+\)",
    ),
)
