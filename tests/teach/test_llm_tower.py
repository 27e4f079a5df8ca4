"""The towers of a causal language model: which states they pool, how they train, and what survives being saved."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llm_fakes import END, LLM_PARAMS, TEXTS, TITLED, laid_out, states_before, write_llm, write_titled_world
from recorder import Recorder, killed_at
from safetensors import safe_open
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from teach_fakes import documents, queries, triplets, write_tower, write_world
from transformers import AutoModel

import steps.teach.contrastive_training as contrastive_training
from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.fingerprints import fingerprint
from slimtower.common.names import ROLES
from steps.distill.joint import TrainedTower, joint_documents
from steps.encoders.towers import encode, load_tower, route
from steps.teach.kinds.llm_dual_encoder import LlmDualEncoder, Prompt
from steps.teach.llm_tower import (
    PLACEHOLDERS,
    MasterAdamW,
    PlaceholderLoss,
    StatesBefore,
    _training_tower,
    check_prompt_length,
    llm_tower,
    train_llm_tower,
)
from steps.teach.run import run as teach
from steps.teach.training_triplets import TextTriplet
from steps.tracking.runs import NullRun, Run

LORA = {"rank": 4, "target_modules": ["q_proj", "v_proj", "up_proj"]}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llm(tmp_path_factory.mktemp("llm"))


@pytest.fixture(scope="module")
def saved(base: Path) -> Path:
    folder = base / "tower"
    llm_tower(str(base), 8, seed=1).save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.mark.medium
def test_the_saved_tower_pools_the_state_before_the_last_placeholder_not_at_it(base: Path, saved: Path) -> None:
    tower = SentenceTransformer(str(saved), device="cpu")
    documents = route(tower, "document")
    with torch.inference_mode():
        features = documents.preprocess(TEXTS)
        pooled = documents[1](documents[0](features))["sentence_embedding"]
        expected = torch.stack([states_before(base, tower, text)[2] for text in TEXTS])
        projected = documents[2].linear(expected)
    torch.testing.assert_close(pooled, expected, rtol=1e-4, atol=1e-5)
    unit = torch.nn.functional.normalize(projected, dim=1).numpy()
    np.testing.assert_allclose(tower.encode_document(TEXTS), unit, atol=1e-5)
    tokens = [documents.tokenizer.decode(ids[mask.bool()]) for ids, mask in zip(features["input_ids"],
              features["attention_mask"], strict=True)]  # fmt: skip
    assert "'title': }" in tokens[-1] and "'content': to add tables\n\nat once}" in tokens[-1]
    assert tokens == [laid_out(text).removesuffix('[EMB]".') for text in TEXTS]


TOPICAL = DocumentTemplate("{title}\nTopic: {topic}\n{content}")
ASKS = 'Predict a query term:"'
COMBINES = ', combine the predicted query terms, and compress the above content into one word:"'
CONTENT_ALONE = {"title_loss": False, "summarize": False}
TOPICS = [
    (("sums", "tables", "add\nall"), "'title': sums", "'topic': tables, 'content': add\nall"),
    (("sums", "", "add\nall"), "'title': sums", "'topic': , 'content': add\nall"),
    (("", "tables", "add"), "'title': ", "'topic': , 'content': tables\nadd"),
    (("", "", "add\nall"), "'title': ", "'topic': , 'content': add\nall"),
]
PROMPTS = [
    (
        {"title_loss": False},
        ("sums", "", "add\nall"),
        f"Document: {{'title': sums}}. Document: {{'content': add\nall}}. {ASKS}[CONTENT_QUERY]\"{COMBINES}",
    ),
    (
        {"summarize": False},
        ("sums", "", "add"),
        f"Document: {{'title': sums}}. {ASKS}[TITLE_QUERY]\". Document: {{'content': add}}. {ASKS}",
    ),
    (CONTENT_ALONE, ("", "", "add"), f"Document: {{'title': }}. Document: {{'content': add}}. {ASKS}"),
    *(
        (CONTENT_ALONE | {"topic": True}, fields, f"Document: {{{title}}}. Document: {{{rest}}}. {ASKS}")
        for fields, title, rest in TOPICS
    ),
]


@pytest.mark.medium
@pytest.mark.parametrize(("changes", "fields", "expected"), PROMPTS)
def test_a_prompt_leaves_out_what_it_is_told_to_or_names_the_topic(
    base: Path, changes: dict[str, bool], fields: tuple[str, str, str], expected: str
) -> None:
    """ScalingNote's two variants (Sec. 4.5.1), and its topic (Sec. 3.2): what is read, and which states train."""
    tower = llm_tower(str(base), 8, 1, Prompt.model_validate(changes)).eval()
    text = (TOPICAL if changes.get("topic") else TITLED).text(*fields)
    documents, training = route(tower, "document"), _training_tower(tower).eval()
    ids = documents.preprocess([text])["input_ids"]
    assert documents.tokenizer.decode(ids[0]) == expected
    with torch.inference_mode():
        trained = training(training.preprocess([text], task="document"))["sentence_embedding"]
        states = documents[0].auto_model(input_ids=ids).last_hidden_state[0]
        names = [name for name in PLACEHOLDERS if name in expected]
        placeholders = [int((ids[0] == documents.tokenizer.convert_tokens_to_ids(name)).nonzero()) for name in names]
        wanted = documents[2].linear(states[[*(position - 1 for position in placeholders), -1]])
    assert names == [name for name in PLACEHOLDERS if name in documents.tokenizer.get_added_vocab()]
    torch.testing.assert_close(trained[0], wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(encode(tower, [text], "document")[0], unit(wanted[-1:].numpy())[0], atol=1e-5)


@pytest.mark.medium
def test_a_query_is_its_text_and_an_end(base: Path, saved: Path) -> None:
    tower = SentenceTransformer(str(saved), device="cpu")
    queries = route(tower, "query")
    ids = queries.preprocess(["sum tables"])["input_ids"]
    assert queries.tokenizer.decode(ids[0]) == f"sum tables{END}"
    with torch.inference_mode():
        state = AutoModel.from_pretrained(str(base)).eval()(input_ids=ids).last_hidden_state[:, -1]
        expected = torch.nn.functional.normalize(queries[2].linear(state), dim=1).numpy()
    np.testing.assert_allclose(tower.encode_query(["sum tables"]), expected, atol=1e-5)
    assert queries.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"] == [0, 1]


@pytest.mark.medium
def test_a_fingerprint_tells_prompts_apart(saved: Path, tmp_path: Path) -> None:
    tower = load_tower(saved)
    route(tower, "document").tokenizer.chat_template += "!"
    tower.save_pretrained(str(tmp_path / "other"), create_model_card=False)
    assert fingerprint(tmp_path / "other").id != fingerprint(saved).id


@pytest.mark.medium
def test_no_student_lets_it_train_along_without_its_prompt(saved: Path) -> None:
    stored: Any = None
    with pytest.raises(UserError, match="the teacher of the index is a language model"):
        TrainedTower(saved, "fp32").tokenize("document", TEXTS, 32)
    with pytest.raises(UserError, match="the teacher of the index is a language model"):
        joint_documents(saved, TEXTS, 32, "fp32", stored)


@pytest.mark.medium
def test_padding_on_either_side_gives_the_same_embedding(saved: Path) -> None:
    tower = load_tower(saved)
    for role in ("query", "document"):
        right = encode(tower, TEXTS, role)  # type: ignore[arg-type]
        route(tower, role).tokenizer.padding_side = "left"  # type: ignore[arg-type]
        left_padded = encode(tower, TEXTS, role)  # type: ignore[arg-type]
        alone = np.concatenate([encode(tower, [text], role) for text in TEXTS])  # type: ignore[arg-type]
        np.testing.assert_allclose(left_padded, right, atol=1e-5)
        np.testing.assert_allclose(alone, right, atol=1e-5)


@pytest.mark.medium
def test_a_long_document_keeps_the_end_of_its_prompt(saved: Path) -> None:
    tower = load_tower(saved)
    tower.max_seq_length = 100
    documents = route(tower, "document")
    long, _ = documents.preprocess(["sum\n" + "to sum all tables " * 50, "sum"])["input_ids"]
    assert len(long) == 100
    assert documents.tokenizer.decode(long).endswith('compress the above content into one word:"')
    check_prompt_length(tower, 100)
    with pytest.raises(UserError, match=r"max_document_length is 40, but the prompt of a document alone has \d+ tok"):
        check_prompt_length(tower, 40)


@pytest.mark.medium
def test_both_towers_begin_alike_and_every_making_is_the_same(base: Path, saved: Path, tmp_path: Path) -> None:
    llm_tower(str(base), 8, seed=1).save_pretrained(str(tmp_path / "again"), create_model_card=False)
    assert fingerprint(tmp_path / "again").id == fingerprint(saved).id
    tower = load_tower(saved)
    weights = [route(tower, role)[2].linear.weight for role in ("query", "document")]  # type: ignore[arg-type]
    assert torch.equal(*weights)
    torch.testing.assert_close(weights[0] @ weights[0].T, torch.eye(8), rtol=0, atol=1e-5)


@pytest.mark.medium
def test_a_bf16_checkpoint_stays_bf16(tmp_path: Path) -> None:
    tower = llm_tower(str(write_llm(tmp_path / "llm", torch.bfloat16)), 8, seed=1)
    assert {weight.dtype for weight in tower.parameters()} == {torch.bfloat16}
    tower.save_pretrained(str(tmp_path / "tower"), create_model_card=False)
    for path in (tmp_path / "tower").rglob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    again = load_tower(tmp_path / "tower")
    np.testing.assert_allclose(encode(again, TEXTS, "document"), encode(tower, TEXTS, "document"), atol=0.05)


def test_a_network_that_reads_both_ways_is_refused(tmp_path: Path) -> None:
    write_tower(tmp_path / "model")
    with pytest.raises(UserError, match=r"bert: is not causal; give a causal language model, or set kind: dual_enc"):
        llm_tower(str(tmp_path / "model/bert"), 8, seed=1)
    with pytest.raises(UserError, match=r"model .*: cannot be loaded"):
        llm_tower(str(tmp_path / "nothing"), 8, seed=1)


def params(base: Path, **changes: Any) -> LlmDualEncoder:
    return LlmDualEncoder.model_validate(LLM_PARAMS.model_dump() | {"base": str(base)} | changes)


def world_triplets() -> list[TextTriplet]:
    texts = {row["doc_id"]: TITLED.text(row["title"], row["topic"], row["content"]) for row in documents()}
    texts_by_id = {row["query_id"]: row["text"] for row in queries()}
    return [
        TextTriplet(
            texts_by_id[row["query_id"]],
            texts[row["positive_id"]],
            texts[row["negative_id"]],
            "judged",
            row["positive_id"],
            row["negative_id"],
            "d",
        )
        for row in triplets()
    ]


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def contrastive(queries: np.ndarray, near: np.ndarray, far: np.ndarray, temperature: float, margin: float) -> float:
    """Half of Eq. 5 and half of Eq. 6, and half of Eq. 9, for one width and one embedding of a document."""
    scores = unit(queries) @ unit(near).T / temperature
    right = np.diag(scores)
    forward = (np.log(np.exp(scores).sum(axis=1)) - right).mean()
    backward = (np.log(np.exp(scores).sum(axis=0)) - right).mean()
    hard = np.maximum(0, margin - (unit(queries) * unit(near)).sum(1) + (unit(queries) * unit(far)).sum(1)).mean()
    return float((forward + backward) / 2 + 0.5 * hard)


@pytest.mark.medium
def test_the_loss_is_the_papers_sum_over_embeddings_and_widths(base: Path) -> None:
    random = np.random.default_rng(0)
    shared = random.normal(size=(5, 1, 8)).repeat(3, axis=1)
    positive, negative = random.normal(size=(2, 5, 3, 8))
    knobs = params(base, temperature=0.3)
    tower = SentenceTransformer(modules=[torch.nn.Identity()], device="cpu", similarity_fn_name="cosine")
    columns = [torch.from_numpy(array).requires_grad_() for array in (shared, positive, negative)]

    def loss(*embeddings: torch.Tensor) -> torch.Tensor:
        function = PlaceholderLoss(tower, knobs.temperature, knobs.loss)
        return function.compute_loss_from_embeddings(list(embeddings), torch.empty(0))

    expected = sum(
        contrastive(shared[:, which, :width], positive[:, which, :width], negative[:, which, :width], 0.3, 0.2)
        for which in range(3)
        for width in (8, 4)
    )
    assert loss(*columns).item() == pytest.approx(expected, rel=1e-9)
    assert torch.autograd.gradcheck(loss, columns)


@pytest.mark.medium
def test_three_states_train_and_the_last_is_that_of_the_saved_tower(base: Path) -> None:
    tower = llm_tower(str(base), 8, seed=1).eval()
    training = _training_tower(tower).eval()
    for side in ("right", "left"):
        route(training, "document").tokenizer.padding_side = side
        with torch.inference_mode():
            document_states = training(training.preprocess(TEXTS, task="document"))["sentence_embedding"]
            states = torch.stack([states_before(base, tower, text) for text in TEXTS])
            expected = route(tower, "document")[2].linear(states)
        torch.testing.assert_close(document_states, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(unit(document_states[:, 2].numpy()), encode(tower, TEXTS, "document"), atol=1e-5)
    with torch.inference_mode():
        query_states = training(training.preprocess(TEXTS, task="query"))["sentence_embedding"]
    assert torch.equal(query_states[:, 0], query_states[:, 1]) and torch.equal(query_states[:, 0], query_states[:, 2])
    np.testing.assert_allclose(unit(query_states[:, 0].numpy()), encode(tower, TEXTS, "query"), atol=1e-5)


def test_the_last_state_stands_for_a_placeholder_that_was_cut_off() -> None:
    ids = torch.tensor([[5, 7, 6, 8, 0], [0, 5, 6, 9, 9]])
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
    states = torch.arange(10.0).view(2, 5, 1)
    features = {"input_ids": ids, "attention_mask": mask, "token_embeddings": states}
    pooled = StatesBefore([7, 8, None])(features)["sentence_embedding"]
    assert pooled.squeeze(2).tolist() == [[0.0, 2.0, 3.0], [9.0, 9.0, 9.0]]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_weights_take_updates_that_they_cannot_hold(dtype: torch.dtype, decay: float) -> None:
    start = torch.linspace(0.5, 1.5, 7)
    weight, exact = (
        torch.nn.Parameter(start.to(dtype, copy=True).to(master_dtype)) for master_dtype in (dtype, torch.float32)
    )
    groups: list[dict[str, Any]] = [{"params": [weight], "weight_decay": decay}]
    ours, theirs = MasterAdamW(groups, lr=1e-4), torch.optim.AdamW([exact], lr=1e-4, weight_decay=decay)
    for step in range(100):
        if step == 50:
            state = ours.state_dict()
            ours = MasterAdamW(groups, lr=1e-4)
            ours.load_state_dict(state)
        for parameter in (weight, exact):
            parameter.grad = torch.ones_like(parameter)
        ours.step()
        theirs.step()
    assert weight.dtype == dtype
    assert (weight.float() < start - 0.005).all()
    assert torch.equal(weight, exact.to(dtype))


@pytest.mark.medium
@pytest.mark.parametrize("change", [{"gradient_checkpointing": True}, {"micro_batch": "3"}])
def test_less_memory_trains_the_same_weights(
    tmp_path: Path, base: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_weights = []
    for number in (0, 1):
        knobs = params(base, epochs=0.5, **(change if number and "micro_batch" not in change else {}))
        if number and "micro_batch" in change:
            monkeypatch.setenv("SLIMTOWER_MICRO_BATCH", change["micro_batch"])
        tower = llm_tower(knobs.base, knobs.dim, knobs.seed)
        train_llm_tower(tower, world_triplets(), {}, knobs, tmp_path / str(number), NullRun())
        trained_weights.append(tower.state_dict())
    for name, weight in trained_weights[0].items():
        torch.testing.assert_close(trained_weights[1][name], weight, rtol=0, atol=2e-4)


def run_teach(folder: Path, teacher_params: LlmDualEncoder, name: str = "teach", run: Run | None = None) -> Path:
    ingest, mine = write_titled_world(folder)
    teach(ingest, mine, folder / name, teacher_params, run or NullRun())
    return folder / name


@pytest.mark.usefixtures("dropout")
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_stage_leaves_a_tower_with_two_routes_and_goes_on_after_a_kill(
    tmp_path: Path, base: Path, own_cache: Path
) -> None:
    teacher_params = params(base, rounds=LLM_PARAMS.rounds.model_dump() | {"more": 1, "skip": 0, "margin": 0.0})
    expected = run_teach(tmp_path, teacher_params, "whole")
    report = read_json(expected / "report.json")
    assert report["kind"] == "llm_dual_encoder" and report["base"] == str(base)
    assert report["triplets"] == len(triplets()) and report["rounds"][0]["new_negatives"] > 0
    assert report["comparison"]["n"] == sum(row["split"] == "dev" for row in queries())
    assert report["fingerprint"] == fingerprint(expected / "tower").id
    tower, plain = load_tower(expected / "tower"), SentenceTransformer(str(expected / "tower"), device="cpu")
    for role, embed in zip(ROLES, (plain.encode_query, plain.encode_document), strict=True):
        vectors = encode(load_tower(expected / "tower", role), TEXTS, role)
        np.testing.assert_allclose(encode(tower, TEXTS, role), vectors, atol=1e-6)
        np.testing.assert_allclose(embed(TEXTS), vectors, atol=1e-6)
        assert vectors.shape == (5, 8)
        assert "[TITLE_QUERY]" not in route(tower, role).tokenizer.get_vocab() or role == "document"
    assert not list(own_cache.rglob("*.pt"))

    with killed_at(5, contrastive_training):
        run_teach(tmp_path, teacher_params, "killed")
    run = Recorder()
    resumed = run_teach(tmp_path, teacher_params, "killed", run)
    assert min(run.losses) == 5
    weights = sorted(path.relative_to(expected) for path in expected.rglob("*.safetensors"))
    assert len(weights) == 3 * 4  # the tower, its base, and what it was after the first round
    for path in weights:
        ones, twos = load_file(expected / path), load_file(resumed / path)
        assert all(torch.equal(twos[name], weight) for name, weight in ones.items())


@pytest.mark.medium
def test_low_rank_matrices_train_and_are_merged(tmp_path: Path, base: Path) -> None:
    pytest.importorskip("peft")
    teacher_params = params(base, epochs=6.0, learning_rate=1e-2, lora=LORA, checkpoint_steps=3)
    tower, run = llm_tower(teacher_params.base, teacher_params.dim, teacher_params.seed), Recorder()
    before = {name: weight.clone() for name, weight in tower.named_parameters()}
    train_llm_tower(tower, world_triplets(), {}, teacher_params, tmp_path / "checkpoints", run)
    after = dict(tower.named_parameters())
    assert after.keys() == before.keys() and all(weight.requires_grad for weight in after.values())
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    kinds = {name.split(".")[-2] for name in changed}
    assert kinds == {"q_proj", "v_proj", "up_proj", "linear"}
    assert np.mean([run.losses[step] for step in sorted(run.losses)[-5:]]) < run.losses[1]
    (checkpoint,) = (tmp_path / "checkpoints").glob("checkpoint-*")
    saved = torch.load(checkpoint / "trained.pt", weights_only=True)
    assert all("lora_" in name or ".linear." in name for name in saved)
    again = llm_tower(teacher_params.base, teacher_params.dim, teacher_params.seed)
    train_llm_tower(again, world_triplets(), {}, teacher_params, tmp_path / "checkpoints", Recorder())
    for name, weight in again.named_parameters():
        torch.testing.assert_close(weight, after[name], rtol=0, atol=1e-5)


def test_lora_without_peft_or_its_modules_is_an_error(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tower = llm_tower(str(base), 8, seed=1)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "peft", None)
        with pytest.raises(UserError, match=r"pip install peft.*lora: null"):
            train_llm_tower(tower, world_triplets(), {}, params(base, lora=LORA), tmp_path, NullRun())
    pytest.importorskip("peft")
    with pytest.raises(UserError, match=r"lora: .*nowhere"):
        teacher_params = params(base, lora=LORA | {"target_modules": ["nowhere"]})
        train_llm_tower(tower, world_triplets(), {}, teacher_params, tmp_path, NullRun())


def test_documents_without_a_line_break_behind_their_title_are_an_error(tmp_path: Path, base: Path) -> None:
    ingest, mine = write_world(tmp_path)
    with pytest.raises(UserError, match=r'ingest.document is "{title}. {content}": .*set it to "{title}\\n{content}"'):
        teach(ingest, mine, tmp_path / "teach", params(base), NullRun())
