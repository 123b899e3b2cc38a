"""`lifelabel tune`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lifelabel.cli.cluster import DryRun, On, Place, SbatchOptions
from lifelabel.cli.common import (
    CONTEXT,
    check_file,
    make_display,
    parse_methods,
    parse_seeds,
)
from lifelabel.cli.completion import complete_list, method_names
from lifelabel.cli.console import print_line
from lifelabel.cli.flags import Plugins, Settings, given_options, with_option_flags
from lifelabel.config.run_options import SET_BY_TUNE
from lifelabel.utils.processes import start_fork_server

__all__ = ["commands"]

commands = typer.Typer(rich_markup_mode="markdown", context_settings=CONTEXT)


@commands.command(
    "tune",
    epilog="""
Examples:

`lifelabel tune --method er --out runs/tune-er`

`lifelabel train --config runs/tune-er/preset.yaml --out runs/er`

`lifelabel tune --method agcn,lwf --trials 20 --seeds 0-2 --jobs 4 --out runs/tune`

`lifelabel tune --method all --stream split-coco --root DIR --words glove.6B.300d.txt --out runs/tune-coco`

`lifelabel tune --method agcn --stream photos.csv --root DIR --set lr=1e-3 --out runs/tune-mine`

`lifelabel tune --method er --stream split-coco --root DIR --proxy --proxy-images 8000 --out runs/tune-proxy`

`lifelabel tune --method er,lwf --on slurm --slurm partition=gpu --device cuda --out runs/tune-cluster`
""",
)
@with_option_flags(without=SET_BY_TUNE, stream_argument=True)
def _tune(
    method: Annotated[
        str,
        typer.Option(
            help="all, or names of `lifelabel list methods`, as er,lwf,agcn.",
            autocompletion=complete_list(method_names),
        ),
    ],
    out_folder: Annotated[
        Path,
        typer.Option("--out", help="Folder for the trials and preset.yaml; with several methods, one folder each."),
    ],
    trials: Annotated[int, typer.Option(help="Configurations to try, the same number for every method.")] = 12,
    first_tasks: Annotated[
        int | None, typer.Option(help="Number of tasks to train on, from the first. [default: 3; with --proxy all]")
    ] = None,
    hold_out: Annotated[float, typer.Option(help="Share of the training images that is scored, not learned.")] = 0.2,
    proxy: Annotated[
        bool,
        typer.Option("--proxy", help="Train on a proxy stream: as many tasks, with classes that the stream lacks."),
    ] = False,
    proxy_images: Annotated[
        int | None, typer.Option(help="Largest number of images of the proxy stream. [default: all]")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of every trial, as 0 or 0-2; the score is their mean.")] = "0",
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time [default: one on each GPU, or on each core; on a cluster 256].")
    ] = None,
    on: On = "local",
    slurm: SbatchOptions = None,
    dry_run: DryRun = False,
    config: Annotated[Path | None, typer.Option(help="A YAML file of options: the start of the search.")] = None,
    set_: Settings = None,
    plugin: Plugins = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the last line.")] = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Choose the options of a method on held-out training images, and write them as a preset.

    Trains on the first tasks and scores training images that were held out. No test image, no later task and no hidden
    label is used. With --proxy, trains on all tasks of a proxy stream, which has other classes: no label of the stream
    is used. Options are searched one after the other, from the defaults or a file: lr, the method's own, backbone_lr,
    later_backbone_lr, batch_norm. Options that are given by their flag or with --set are not searched. If the same
    command is given again, finished trials are not repeated.
    """
    place = Place(on, slurm or (), dry_run)
    start_fork_server("lifelabel.search.scheduler")
    from lifelabel.config.config import Config, merge
    from lifelabel.registry import loaded_plugins
    from lifelabel.search import tuner as search
    from lifelabel.search.comparison import folder_name
    from lifelabel.search.scheduler import WorkerPool
    from lifelabel.utils.yaml_reader import read_yaml

    if first_tasks is None and not proxy:
        first_tasks = 3
    from_file = read_yaml(config) if config else {}
    given = given_options(flags, set_, plugin)
    names = parse_methods(method)
    start = merge(from_file, given)
    arguments: dict[str, Any] = {
        "stream": start.get("stream", Config.stream), "config": config, **flags, "trials": trials,
        "first_tasks": first_tasks, "hold_out": hold_out, "proxy": proxy or None, "proxy_images": proxy_images,
        "seeds": seeds, "jobs": jobs, "on": on if place.is_cluster else None,
    }  # fmt: skip
    repeated = {"set": set_ or [], "plugin": loaded_plugins(), "slurm": slurm or []}
    seed_list = tuple(dict.fromkeys(parse_seeds(seeds)))
    device = start.get("device", "auto")
    num_jobs = place.check_jobs(jobs, device)
    for name in names:
        check_file(config, from_file, {"method": name, "stream": flags.get("stream")})
    continue_command = _command_line({"method": method, **arguments, "out": out_folder, **repeated})
    with WorkerPool() as pool:
        for name in names:
            folder = out_folder / folder_name(name) if len(names) > 1 else out_folder
            command = _command_line({"method": name, **arguments, "out": folder, **repeated})
            task = search.Search(
                name,
                start,
                given,
                folder,
                trials,
                first_tasks,
                hold_out,
                seed_list,
                num_jobs,
                command,
                continue_command,
                proxy,
                proxy_images,
            )
            if dry_run:
                place.print_script(search.first_runs(task), num_jobs, folder, device)
                continue
            runner = place.runner(folder, device) if place.is_cluster else None
            print_line(str(search.tune(task, make_display(quiet), pool, runner)))


def _command_line(arguments: Mapping[str, Any]) -> str:
    """The command of a search. An argument is a value, True for a flag without a value, or a list for a repeated flag.

    >>> _command_line({"method": "er", "strict": True, "root": None, "hold_out": 0.2, "set": ["lr=1", "seed=2"]})
    'lifelabel tune --method er --strict --hold-out 0.2 --set lr=1 --set seed=2'
    """
    words = ["lifelabel", "tune"]
    for name, argument in arguments.items():
        for value in argument if isinstance(argument, list) else [argument]:
            if value is not None:
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)
