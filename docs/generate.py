"""Writes docs/cli.md from the commands themselves, and docs/spaces.md from the schema.

python docs/generate.py            # a test fails when the files are not what this writes
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from evotune.cli.main import application
from evotune.cli.options import global_options
from evotune.space.counting.expansion import FULL, SHOWN_S
from evotune.space.reading.schema import schema_text

FOLDER = Path(__file__).parent
EXAMPLE = FOLDER / "complete_space.yaml"
"""A space with most keys."""
_GLOBAL = ("color", "quiet", "verbose", "help")
_SECTIONS = {
    "ProblemModel": "problem",
    "KernelModel": "kernels.NAME",
    "ArgumentModel": "kernels.NAME.arguments[]",
    "TensorMapModel": "kernels.NAME.arguments[], a tensor map",
    "FurtherArgumentsModel": "kernels.NAME.further_arguments",
    "WorkspaceModel": "kernels.NAME.workspace.NAME",
    "LaunchModel": "kernels.NAME.launches[]",
    "ParameterModel": "parameters.NAME",
    "ConstraintModel": "constraints[], after_compile[]",
    "SearchModel": "search",
    "BudgetModel": "budget",
    "StopModel": "stop",
    "TimeoutsModel": "timeouts",
    "RecordedModel": "recorded",
}


_EXIT_CODES = {
    0: "done",
    1: "no valid candidate, none confirmed, a refused kernel, a failed check, or a regression",
    2: "a mistake in the space, in the problem or in the command",
    3: "the machine lacks something",
    4: "a run's files are damaged",
    5: "another process uses the run or the GPU",
    6: "undecided: the machine is too noisy, or the time limit of `gate` ended",
    130: "interrupted; the run can be resumed",
}
_MANY = 4
"""As many commands share an option whose text stands once, at the top of the page."""
_HEAD = "| option | value | |\n|---|---|---|"


def cli_reference() -> str:
    """Tables of commands, exit codes and shared options; then each command with its own options."""
    context = click.Context(application, info_name="evotune")
    commands = {
        name: command
        for name in application.list_commands(context)
        if (command := application.get_command(context, name))
    }
    texts = Counter(each.help for one in commands.values() for each in _options(one))
    shared = {
        each.help: each
        for command in commands.values()
        for each in _options(command)
        if texts[each.help] >= _MANY
    }
    parts = [
        "# Commands\n",
        "<!-- written by docs/generate.py -->\n",
        "Data goes to stdout, progress to stderr.\n",
        "| command | what it does |\n|---|---|",
        *(f"| [`{name}`](#{name}) | {_cell(_first(one))} |" for name, one in commands.items()),
        "",
        "| exit code | meaning |\n|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in _EXIT_CODES.items()),
        "",
        "Every command takes these options, before or after its name:\n",
        _HEAD,
        *map(_row, global_options()),
        "| `-h, --help` |  | Show the command's help. |",
        "",
        "A command's section names which of these options it takes too:\n",
        _HEAD,
        *(_row(each, choices=False) for each in shared.values()),
        "",
    ]
    parts += (_command(name, one, context, shared) for name, one in commands.items())
    return "\n".join(parts)


def _command(
    name: str, command: click.Command, above: click.Context, shared: Container[str | None]
) -> str:
    context = click.Context(command, info_name=name, parent=above)
    pieces = [word for word in command.collect_usage_pieces(context) if word != "[OPTIONS]"]
    usage = " ".join(["evotune", name, "[OPTIONS]", *pieces])
    example = (command.epilog or "").replace("\b", "").replace("Example:", "").strip()
    lines = [f"## {name}\n", f"```\n{usage}\n{example}\n```\n", _paragraphs(command.help or ""), ""]
    own = [option for option in _options(command) if option.help not in shared]
    if own:
        lines += [_HEAD, *map(_row, own), ""]
    also = [_short(option) for option in _options(command) if option.help in shared]
    if also:
        lines += [f"{'Also' if own else 'Options'}: {', '.join(also)}.", ""]
    return "\n".join(lines)


def _options(command: click.Command) -> list[click.Option]:
    """Those that a command's help shows, without the global ones."""
    return [
        option
        for option in command.params
        if isinstance(option, click.Option)
        and option.name not in _GLOBAL
        and option.help
        and not option.hidden
    ]


def _row(option: click.Option, *, choices: bool = True) -> str:
    """A row of a table of options. Without `choices` it leaves out those of a command."""
    value, default = option.metavar or _choices(option), ""
    if isinstance(option.type, click.Choice) and not choices:
        value = ""
    elif option.show_default:
        taken = option.opts[0] if option.default is True else option.default
        default = f" Default: `{taken}`."
    names = ", ".join([*option.opts, *option.secondary_opts])
    return f"| `{names}` | {_cell(value)} | {_cell(option.help or '')}{default} |"


def _short(option: click.Option) -> str:
    """A shared option, with the values that only this command has."""
    if isinstance(option.type, click.Choice):
        return f"`{option.opts[-1]} {_choices(option)}` (default `{option.default}`)"
    return f"`{option.opts[0]}`"


def _first(command: click.Command) -> str:
    """The first sentence of a command's help, without its period."""
    return " ".join((command.help or "").split("\n\n")[0].split()).removesuffix(".")


def _choices(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.type.name.removesuffix(" range")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


_LIMITS = f"""\
Every number is below 2**63. An operation on numbers alone that has no value (too large, a
division by zero) is an error at its place. If a condition has no value for a configuration, it
does not hold for it; `evotune check` says for how many. `let` takes 256 names, nested to any
depth.

**Counting.** A space is counted in at most {FULL.steps:,} steps, which takes some seconds. A
search never looks at a clock, so it proposes the same on every machine. If a space takes more
steps, its size is an estimate, and a search draws from the configurations that were found. If
none was found, each command ends with exit code 2 and names the constraints. `evotune check`
takes {SHOWN_S:g} seconds more to count what each constraint removes; `?` marks what it could not
count in that time.

Every file that a space names must be a regular file: a pipe or a device is refused.
"""


def space_reference() -> str:
    """Every key of a space file."""
    schema = json.loads(schema_text())
    parts = [
        "# Space files\n",
        "<!-- written by docs/generate.py -->\n",
        "A space is one YAML file. [Your kernel](your-kernel.md) is the guide; this page lists "
        "every key. `evotune check SPACE` reports each mistake as `file:line:column`. `evotune "
        "schema` prints the schema, which editors use if the first line names it:\n",
        "```yaml\n# yaml-language-server: $schema=space.schema.json\n```\n",
        "Expressions are a small safe language: numbers, names, `+ - * / // % **`, comparisons, "
        "`and or not`, `a if b else c`, `min max abs ceil_div log2 is_pow2`. "
        "[Names](writing-a-kernel.md#names-in-expressions) are parameters, sizes of the problem, "
        "`let` and `device.*`.\n",
        _LIMITS,
        "## A complete space\n",
        f"```yaml\n{EXAMPLE.read_text()}```\n",
        "## The file\n",
        _keys(schema),
    ]
    for model, path in _SECTIONS.items():
        parts += [f"## `{path}`\n", _keys(schema["$defs"][model])]
    missing = set(schema["$defs"]) - set(_SECTIONS)
    assert not missing, f"say where {missing} stand in a file"
    return "\n".join(parts)


def _keys(model: Mapping[str, Any]) -> str:
    return "\n".join(["| key | value | |", "|---|---|---|", *_rows(model), ""])


def _rows(model: Mapping[str, Any]) -> Iterator[str]:
    required = model.get("required", ())
    for name, field in sorted(
        model["properties"].items(), key=lambda item: item[0] not in required
    ):
        default = field.get("default")
        note = " Required." if name in required else ""
        if default not in (None, "", [], {}) and not isinstance(default, dict):
            note = f" Default: `{json.dumps(default)}`."
        yield f"| `{name}` | {_cell(_type(field))} | {_cell(field['description'])}{note} |"


def _type(field: Mapping[str, Any]) -> str:
    """The value's kind in a few words."""
    if "$ref" in field:
        return "mapping"
    if "const" in field:
        return json.dumps(field["const"])
    if "enum" in field:
        return "|".join(map(str, field["enum"]))
    for key in ("anyOf", "oneOf"):
        if key in field:
            kinds = dict.fromkeys(_type(one) for one in field[key] if one.get("type") != "null")
            return "expression" if set(kinds) >= {"text", "integer", "number"} else ", ".join(kinds)
    kind = field.get("type", "value")
    return {"object": "mapping", "array": "list", "string": "text", "boolean": "true|false"}.get(
        kind, kind
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES = {"cli.md": cli_reference, "spaces.md": space_reference}


def main() -> None:
    for name, write in PAGES.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
