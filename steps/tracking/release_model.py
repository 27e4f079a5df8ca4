"""A release as an MLflow model: its folder, the file that answers queries from it, and the packages which that needs.

Models from code: what is saved holds no pickle.
"""

import shutil
import tempfile
from importlib.metadata import packages_distributions, version
from pathlib import Path

import slimtower
from slimtower.common.files import read_json, sha256_file, sha256_text
from steps.tracking.runs import Run

_LIBRARY = Path(slimtower.__file__).parent
SERVED_MODEL = _LIBRARY / "serving/served_model.py"
_CARRIED = ("common", "lexical", "serving")  # packages of the library
_REQUIRED = ("mlflow", "numpy", "onnxruntime", "pandas", "pyarrow", "pydantic", "tokenizers")


def log_release(run: Run, release: Path, name: str, *, once: bool = False) -> None:
    """Attach a release folder to a run as a model that `mlflow models serve` serves.

    With `once`, an equal model of this name that was logged before is attached instead of a copy.
    """
    run.built_model(name, content(release), lambda target: save_model(release, target), once=once)


def content(release: Path) -> str:
    """Digest of all that the model is made from; the release's manifest holds the digests of its files."""
    carried = (path for package in _CARRIED for path in sorted((_LIBRARY / package).rglob("*.py")))
    files = [release / "manifest.json", release / "report.json", *carried]
    return sha256_text("\n".join([*map(sha256_file, files), *requirements(release)]))


def requirements(release: Path) -> list[str]:
    """Packages that answering queries from a release needs, at the versions that are installed here."""
    faiss = packages_distributions()["faiss"][0]  # faiss-cpu or one of its siblings
    lexical = ["bm25s"] * ("lexical" in read_json(release / "manifest.json"))
    return [f"{name}=={version(name)}" for name in (*_REQUIRED, faiss, *lexical)]


def save_model(release: Path, target: Path) -> None:
    import mlflow.pyfunc
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    text = read_json(release / "manifest.json")["probes"][0]["text"]
    output = [("ids", "string"), ("scores", "double"), ("titles", "string")]
    signature = ModelSignature(
        inputs=Schema([ColSpec("string", "query"), ColSpec("long", "k", required=False)]),
        outputs=Schema([ColSpec(Array(kind), name) for name, kind in output]),
        params=ParamSchema([ParamSpec("k", "long", 10), ParamSpec("dataset", "string", "")]),
    )
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch) / "slimtower"
        package.mkdir()
        shutil.copyfile(_LIBRARY / "__init__.py", package / "__init__.py")
        for name in _CARRIED:
            shutil.copytree(_LIBRARY / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
        mlflow.pyfunc.save_model(
            target,
            python_model=SERVED_MODEL,
            code_paths=[str(package)],
            artifacts={"release": str(release)},
            signature=signature,
            input_example={"query": [text], "k": [5]},
            pip_requirements=requirements(release),
        )
