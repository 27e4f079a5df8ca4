"""What the code may not do: load what runs code, leave a folder, run a shell; and how its containers run."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from slimtower.common.names import inner_path, plain_name

pytestmark = pytest.mark.faults("security")

ROOT = Path(__file__).parents[2]
FOLDERS = ("steps", "pipeline", "dags", "containers", "bench", "slimtower")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
MODULES = {
    "pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "tarfile", "jsonpickle"
}  # fmt: skip
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
    "pd.read_pickle", "shutil.unpack_archive", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter",
}  # fmt: skip
NEEDED = {"torch.load": ("weights_only", True)}  # what a call must say
ONLY = {"allow_pickle": False, "trust_remote_code": False, "shell": False, "weights_only": True}  # what a word may say
FROM_OUTSIDE = {"SentenceTransformer", "CrossEncoder", "MultiVectorEncoder", "from_pretrained"}


def dotted(node: ast.AST) -> str:
    """`torch.load` of such an expression, `?.name` of an attribute of something else."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value) or '?'}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def faults(source: str) -> Iterator[str]:
    """What a module does that it may not."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            if isinstance(node, ast.ImportFrom) and node.module == "pickle" and node.names[0].name == "UnpicklingError":
                continue  # what torch raises
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            if bad := MODULES & {name.split(".")[0] for name in names}:
                yield f"{node.lineno}: imports {bad}"
            if isinstance(node, ast.ImportFrom) and node.module in ("torch", "yaml", "os"):
                yield from (
                    f"{node.lineno}: {node.module}.{alias.name} must be called by that name"
                    for alias in node.names
                    if f"{node.module}.{alias.name}" in CALLS | NEEDED.keys()
                )
        if not isinstance(node, ast.Call):
            continue
        name, keywords = dotted(node.func), {word.arg: word.value for word in node.keywords}
        if name in CALLS or name.endswith((".extractall", ".extract")):
            yield f"{node.lineno}: calls {name}"
        for word, value in ONLY.items():
            if word in keywords and not (isinstance(keywords[word], ast.Constant) and keywords[word].value is value):
                yield f"{node.lineno}: {name} with another {word} than {value}"
        if name in NEEDED and NEEDED[name][0] not in keywords:
            yield f"{node.lineno}: {name} without {NEEDED[name][0]}"
        outside = name.rpartition(".")[2] in FROM_OUTSIDE and node.args and "modules" not in keywords
        if outside and "trust_remote_code" not in keywords:
            yield f"{node.lineno}: {name} without trust_remote_code"


@pytest.mark.medium
def test_nothing_is_loaded_that_could_run_code() -> None:
    assert len(FILES) > 200
    complaints = [
        f"{path.relative_to(ROOT)}:{fault}" for path in FILES for fault in faults(path.read_text(encoding="utf-8"))
    ]
    assert complaints == []


def test_the_search_finds_what_it_is_for() -> None:
    for source in (
        "import pickle", "from joblib import load", "import torch\ntorch.load(x)", "torch.load(x, weights_only=False)",
        "np.load(x, allow_pickle=True)", "np.load(x, allow_pickle=flag)", "yaml.load(x)", "eval(x)",
        "from torch import load", "subprocess.run(x, shell=True)", "SentenceTransformer(x)", "archive.extractall(x)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)", "f().extractall(x)",
    ):  # fmt: skip
        assert list(faults(source)), source


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/x", "a/../b", "a\\b", "a\0b", "a\nb", "a/", "//a", "a//b"])
def test_no_name_leads_out_of_its_folder(name: str) -> None:
    for check in (plain_name, inner_path):
        with pytest.raises(ValueError):
            check(name)
    with pytest.raises(ValueError):
        plain_name("a/b")


def test_images_and_the_served_pod_run_with_no_rights() -> None:
    for path in (ROOT / "containers").glob("*ontainerfile"):
        users = re.findall(r"^USER (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert users and users[-1] not in ("0", "root"), path
    (deployment, *_) = yaml.safe_load_all((ROOT / "containers/kubernetes/serve.yaml").read_text(encoding="utf-8"))
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    services = yaml.safe_load((ROOT / "containers/compose.yaml").read_text(encoding="utf-8"))["services"]
    assert services["serve"]["read_only"] and services["serve"]["cap_drop"] == ["ALL"]
    assert not any(service.get("privileged") or service.get("cap_add") for service in services.values())
    assert {name for name, service in services.items() if "docker.sock" in str(service)} == {"airflow-scheduler"}
    tasks_get = services["airflow-scheduler"]["environment"]["TASK_PGPASSWORD"]
    assert "POSTGRES_PASSWORD" not in tasks_get  # of the databases of Airflow and MLflow
