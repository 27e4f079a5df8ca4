"""Can this environment run a step? `python -m steps.<name> --self-check`, the health check of its image."""

import argparse
import importlib
import os
import pkgutil
import platform
from importlib.metadata import packages_distributions, version
from typing import Any

from slimtower.common.errors import UserError, guarded
from slimtower.common.imports import uncollected_imports
from slimtower.common.settings import checked_name

PACKAGES = ("torch", "transformers", "sentence_transformers", "faiss", "onnxruntime", "mlflow", "dvc")


def step_parser(step: str, description: str | None) -> argparse.ArgumentParser:
    """The command line of a step, which always knows `--self-check`."""
    parser = argparse.ArgumentParser(prog=f"python -m steps.{step}", description=description)
    help_text = "import all that the step needs, say which versions they are, open nothing"
    parser.add_argument("--self-check", action=_SelfCheck, const=step, nargs=0, help=help_text)
    return parser


def cell_argument(step: str, description: str | None, option: str, known_as: str) -> str:
    """The cell that a step's command line names behind `option`, such as --student; it becomes a folder."""
    parser = step_parser(step, description)
    parser.add_argument(option, required=True, help=f"a name in {known_as}", dest="cell")
    return checked_name(option, parser.parse_args().cell)


class _SelfCheck(argparse.Action):
    """Check and exit as soon as the option is read, before an option that is required can be missed."""

    def __call__(self, parser: argparse.ArgumentParser, _: argparse.Namespace, __: Any, ___: str | None = None) -> None:
        def command() -> None:
            print(self_check(str(self.const)))

        guarded(command)
        parser.exit()


def self_check(step: str) -> str:
    """Import a step's modules; a line of versions. UserError if one fails, or SLIMTOWER_REQUIRE_CUDA finds no CUDA."""
    try:
        with uncollected_imports():
            package = importlib.import_module(f"steps.{step}")
            for module in pkgutil.iter_modules(package.__path__):
                if module.name != "__main__":
                    importlib.import_module(f"steps.{step}.{module.name}")
        require_cuda()
        device = cuda()
    except ImportError as error:
        raise UserError(f"steps.{step} cannot run here: {error}; install what requirements/run.lock names") from None
    distributions = packages_distributions()
    names = [distributions[package][0] for package in PACKAGES if package in distributions]
    versions = [f"{name} {version(name)}" for name in names]
    return f"{step}: ready; {', '.join([f'python {platform.python_version()}', *versions])}; CUDA: {device}"


def require_cuda() -> None:
    """UserError if SLIMTOWER_REQUIRE_CUDA is 1 and torch sees no CUDA device: engines may drop a GPU silently."""
    if os.environ.get("SLIMTOWER_REQUIRE_CUDA") != "1":
        return
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"SLIMTOWER_REQUIRE_CUDA is 1, but torch {torch.__version__} sees no CUDA device (CUDA: {cuda()}); give the"
            " container a GPU (docker run --gpus all, or the limit nvidia.com/gpu) and an image of `make images"
            " LOCK=gpu`, or unset SLIMTOWER_REQUIRE_CUDA"
        )


def cuda() -> str:
    """The CUDA devices that torch sees, or why it can see none."""
    import torch

    if torch.version.cuda is None:
        return "no, this is torch's CPU build"
    if not torch.cuda.is_available():
        return f"no, torch is built for CUDA {torch.version.cuda} and finds no device or driver"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"yes, {torch.version.cuda} on {', '.join(names)}"
