"""The kind `cross_encoder`, on a tiny encoder: what it learns, its reconstruction loss, and that it can be killed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cross_encoders import CROSS, DUAL, POOLED
from rank_fakes import liked, write_encoder
from recorder import Recorder, killed_at
from safetensors.torch import load_file
from teach_fakes import documents, queries, table, write_world
from torch import Tensor

import steps.teach.cross_encoder as teaching
import steps.training.ranker as training
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.fingerprints import fingerprint
from steps.core.tables import write_table
from steps.retrieval.rankers import dual_pooled, is_dual_pooled, load_ranker
from steps.teach.kinds.cross_encoder import CrossEncoder
from steps.teach.params import TeachParams
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun, Run
from steps.training.ranker import WithReconstruction, reconstruction


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "model")


def train(folder: Path, base: Path, run: Run | None = None, name: str = "cross", **changes: Any) -> Path:
    """Teach on a world in which all documents about rows are relevant to every query, and BM25 finds all documents."""
    mined, judged = liked()
    ingest, mine = write_world(folder, mined=mined)
    dev_queries = [row | {"text": f"{row['text']} at once"} for row in queries()]
    write_table(ingest, "queries", table("queries", dev_queries))
    write_table(ingest, "qrels", table("qrels", judged))
    params = CrossEncoder.model_validate(CROSS | {"base": str(base)} | changes)
    teach(ingest, mine, folder / name, params, run or NullRun())
    return folder / name


@pytest.mark.medium
@pytest.mark.parametrize(
    "changes",
    [{"loss": "lambda"}, POOLED, POOLED | {"pooling": "special_tokens", "loss": "lambda"}],
    ids=["cls", "segments", "special_tokens"],
)
def test_it_learns_to_rank(tmp_path: Path, base: Path, own_cache: Path, changes: dict[str, Any]) -> None:
    run = Recorder()
    output = train(tmp_path, base, run, epochs=5.0, learning_rate=5e-3, checkpoint_steps=50, **changes)
    report = read_json(output / "report.json")
    assert report["kind"] == "cross_encoder" and report["pooling"] == changes.get("pooling", "cls")
    assert report["fingerprint"] == fingerprint(output / "tower").id
    assert report["quality"]["n"] == 5 and report["quality"]["ndcg"] > 0.9 > report["quality"]["ndcg_random"]
    assert report["quality"]["ndcg"] > report["quality"]["ndcg_bm25"]
    assert report["lists"] > 0 and sorted(run.losses) == list(range(1, len(run.losses) + 1))
    ranker = load_ranker(output / "tower")
    assert is_dual_pooled(ranker) == ("pooling" in changes) and ranker.max_seq_length == 32
    assert read_json(output / "earlier/towers.json") == []
    assert not list(own_cache.rglob("checkpoint-*"))


def reconstruction_reference(states: np.ndarray, ids: list[int], rows: np.ndarray) -> float:
    """Mean of `log sum_v exp(e_v h_t) - e_id h_t` over tokens t."""
    logits = states @ rows.T
    return float(np.mean([np.log(np.exp(logits[at]).sum()) - logits[at, token_id] for at, token_id in enumerate(ids)]))


def test_reconstruction_is_the_likelihood_of_each_token_by_its_own_state() -> None:
    by_hand = reconstruction(torch.tensor([[1.0, 0], [0, 2]]), torch.tensor([0, 1]), torch.eye(2))
    expected = (np.log(1 + np.exp(-1)) + np.log(1 + np.exp(-2))) / 2  # own logits 1 and 2, the other's 0
    assert by_hand.item() == pytest.approx(expected, rel=1e-6)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(5, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    rows = torch.randn(7, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    ids = torch.tensor([3, 0, 6, 3, 1])
    loss = reconstruction(states, ids, rows)
    expected = reconstruction_reference(states.detach().numpy(), ids.tolist(), rows.detach().numpy())
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda h, e: reconstruction(h, ids, e), (states, rows))
    assert reconstruction(states[:0], ids[:0], rows).item() == 0


@pytest.mark.medium
@pytest.mark.parametrize("loss", ["bce", "softmax", "lambda"])
def test_the_term_is_of_the_tokens_of_queries_and_documents_of_the_same_batch(
    tmp_path: Path, base: Path, loss: str
) -> None:
    ranker = dual_pooled(str(base), "segments", 0.1, 32).eval()
    params: Any = CrossEncoder.model_validate(DUAL | {"base": str(base), "loss": loss})
    ranking = training.objective(ranker, params, 2.0)
    both_losses = WithReconstruction(ranker, ranking, 0.5)
    pairs = [("how to add", "sum rows at once"), ("show", "plot images"), ("show", "sum rows")]
    texts: list[Any] = [[query for query, _ in pairs], [document for _, document in pairs]]
    labels: Any = torch.tensor([1.0, 0, 0])
    if loss != "bce":
        texts, labels = (
            [["how to add", "show"], [["sum rows at once"], ["plot images", "sum rows"]]],
            [torch.tensor([1.0]), torch.tensor([1.0, 0])],
        )
    terms = both_losses(texts, labels)
    assert terms["ranking"].item() == pytest.approx(ranking(texts, labels).item(), rel=1e-6)
    states: list[np.ndarray] = []
    ids: list[int] = []
    tokenizer = ranker.tokenizer
    for pair in pairs:
        features = ranker[0](ranker[0].preprocess([pair]))
        for at, token in enumerate(features["input_ids"][0].tolist()):
            if token not in (tokenizer.cls_token_id, tokenizer.sep_token_id):
                states.append(features["token_embeddings"][0, at].detach().double().numpy())
                ids.append(token)
    rows = both_losses.table.detach().double().numpy()
    assert terms["reconstruction"].item() == pytest.approx(
        0.5 * reconstruction_reference(np.stack(states), ids, rows), rel=1e-5
    )
    assert not ranker[-1]._forward_hooks


@pytest.mark.usefixtures("dropout")
@pytest.mark.slow
@pytest.mark.parametrize("changes", [pytest.param({}, marks=pytest.mark.nightly), POOLED], ids=["cls", "segments"])
def test_a_killed_training_continues_to_the_same_weights(
    tmp_path: Path, base: Path, own_cache: Path, changes: dict[str, Any]
) -> None:
    def weights(name: str) -> dict[str, Tensor]:
        state: dict[str, Tensor] = load_file(tmp_path / name / "tower/model.safetensors")
        return state

    train(tmp_path, base, name="whole", **changes)
    with killed_at(5, training):
        train(tmp_path, base, name="killed", **changes)
    assert not (tmp_path / "killed").exists()
    assert [path.name for path in own_cache.rglob("checkpoint-*")] == ["checkpoint-4"]
    assert list(own_cache.glob("teach/*/checkpoint-4"))
    run = Recorder()
    train(tmp_path, base, run, name="killed", **changes)
    assert min(run.losses) == 5
    expected, resumed = weights("whole"), weights("killed")
    for name, tensor in expected.items():
        torch.testing.assert_close(resumed[name], tensor, rtol=0, atol=1e-6)


@pytest.mark.medium
def test_a_cross_encoder_is_kept_untrained_and_an_encoder_is_not(tmp_path: Path, base: Path) -> None:
    with pytest.raises(UserError, match=r"^teach\.teacher: base .*epochs"):
        train(tmp_path, base, epochs=0.0)
    load_ranker(base, 32, seed=9).save_pretrained(str(tmp_path / "ready"), create_model_card=False)
    output = train(tmp_path, tmp_path / "ready", epochs=0.0)
    expected, copied = (load_file(tmp_path / name / "model.safetensors") for name in ("ready", "cross/tower"))
    assert all(torch.equal(tensor, copied[name]) for name, tensor in expected.items())
    assert read_json(output / "report.json")["quality"]["n"] == 5
    assert read_json(train(tmp_path, tmp_path / "ready", epochs=0.0, dev_queries=0) / "report.json")["quality"] is None


@pytest.mark.medium
def test_what_cannot_train_is_named(tmp_path: Path, base: Path) -> None:
    with pytest.raises(UserError, match=r"^teach\.teacher: max_length is 65, .* 64 positions"):
        train(tmp_path, base, max_length=65)
    ranker = dual_pooled(str(base), "segments", 1.0, 32)
    ranker.model.config.hidden_size = 8  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"tiny .*16 dimensions, .*set pooling: cls"):
        WithReconstruction(ranker, torch.nn.Identity(), 1.0, "tiny")


def bm25(query: str, text: str, texts: list[str]) -> float:
    """Robertson and Zaragoza's formula with Lucene's idf, k1 = 1.5 and b = 0.75, without stop words."""
    lengths = [len(document.split()) for document in texts]
    total, mean = 0.0, sum(lengths) / len(lengths)
    for word in query.split():
        frequency, count = sum(word in document.split() for document in texts), text.split().count(word)
        rarity = np.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
        total += rarity * count / (count + 1.5 * (0.25 + 0.75 * len(text.split()) / mean))
    return float(total)


@pytest.mark.parametrize("better", [True, False])
def test_it_is_compared_with_bm25_over_what_that_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], better: bool
) -> None:
    """In a corpus of two data sets, by the formula; relevant documents that BM25 does not find are lost to both."""
    random, words = np.random.default_rng(2), [f"word{number}" for number in range(12)]
    texts = {f"d/{at}": " ".join(random.choice(words, size=random.integers(3, 12))) for at in range(12)}
    dev_queries = {f"d/q{at}": " ".join(random.choice(words, size=2, replace=False)) for at in range(6)}
    qrels = {query_id: {f"d/{at}": 1, f"d/{at + 1}": 2, f"d/{at + 5}": 0} for at, query_id in enumerate(dev_queries)}
    document = {"dataset": "d", "title": "", "topic": "", "content": ""}
    corpus = [document | {"doc_id": doc_id, "content": text} for doc_id, text in texts.items()]
    foreign = document | {"doc_id": "e/0", "dataset": "e", "content": " ".join(words)}
    write_table(tmp_path, "corpus", table("corpus", [*corpus, foreign]))
    judged = {"dataset": "d", "split": "dev"}
    asking = [judged | {"query_id": query_id, "text": text} for query_id, text in dev_queries.items()]
    grades = [
        judged | {"query_id": query_id, "doc_id": doc_id, "grade": grade}
        for query_id, query_grades in qrels.items()
        for doc_id, grade in query_grades.items()
    ]
    write_table(tmp_path, "queries", table("queries", asking))
    write_table(tmp_path, "qrels", table("qrels", grades))
    by_text = {text: qrels[query_id] for query_id, text in dev_queries.items()}
    monkeypatch.setattr(
        teaching,
        "pair_scores",
        lambda _, pairs, **knobs: np.array(
            [
                (1.0 if better else -1.0) * by_text[query].get(next(name for name in texts if texts[name] == text), 0)
                for query, text in pairs
            ]
        ),
    )
    params = CrossEncoder.model_validate(CROSS | {"base": "b", "dev_queries": 6, "dev_documents": 4})
    figures: Any = teaching.quality(None, tmp_path, params)  # type: ignore[arg-type]
    by_bm25, by_teacher = [], []
    for query_id, query in dev_queries.items():
        scores = {doc_id: round(bm25(query, text, list(texts.values())), 6) for doc_id, text in texts.items()}
        hits = sorted((doc_id for doc_id in texts if scores[doc_id] > 0), key=lambda doc_id: -scores[doc_id])[:4]
        ideal = dcg(sorted(qrels[query_id].values(), reverse=True))
        gains = {doc_id: qrels[query_id].get(doc_id, 0) for doc_id in hits}
        in_order = sorted(sorted(hits, reverse=True), key=lambda doc_id: -scores[doc_id])  # ties as in trec_eval
        by_bm25.append(dcg([gains[doc_id] for doc_id in in_order]) / ideal)
        by_teacher.append(dcg(sorted(gains.values(), reverse=True)) / ideal)
    assert figures["ndcg_bm25"] == pytest.approx(np.mean(by_bm25), abs=1e-6)
    assert figures["n"] == 6 and figures["documents"] == 4
    assert not better or figures["ndcg"] == pytest.approx(np.mean(by_teacher), abs=1e-6)
    assert figures["beats_bm25"] == better and figures["ndcg"] < 1
    teaching.tell(figures, NullRun())
    stderr = capsys.readouterr().err
    assert ("beats BM25" in stderr) == better and (
        "WARNING: the cross encoder does not rank better" in stderr
    ) != better


def dcg(gains: list[int]) -> float:
    """Of the first ten."""
    return float(sum(gain / np.log2(at + 2) for at, gain in enumerate(gains[:10])))


@pytest.mark.parametrize("query_texts", [[], ["unknown"]])
def test_without_dev_queries_or_hits_nothing_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], query_texts: list[str]
) -> None:
    ingest, _ = write_world(tmp_path)
    dev_queries = [{"query_id": f"d/{text}", "dataset": "d", "text": text, "split": "dev"} for text in query_texts]
    graded = [
        {"query_id": row["query_id"], "dataset": "d", "doc_id": documents()[0]["doc_id"], "grade": 1, "split": "dev"}
        for row in dev_queries
    ]
    write_table(ingest, "queries", table("queries", dev_queries))
    write_table(ingest, "qrels", table("qrels", graded))
    params = CrossEncoder.model_validate(CROSS | {"base": "b"})
    assert teaching.quality(None, ingest, params) is None  # type: ignore[arg-type]
    teaching.tell(None, NullRun())
    assert "how the cross encoder ranks is not known" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reconstruction_weight": 1.0}, "is of dual pooling; set it to 0"),
        ({"scale": 0.1}, "is of dual pooling, whose inner product it multiplies"),
        ({"pooling": "segments", "epochs": 0.0}, "pooling: segments ranks nothing untrained"),
        ({"pooling": "segments"}, "collapse without reconstruction"),
        ({"base": "models/teach/dense/tower"}, "would be made of its own judgements"),
    ],
)
def test_knobs_that_contradict_each_other_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CrossEncoder.model_validate(CROSS | changes)


def test_it_cannot_make_the_index() -> None:
    section = {"teachers": ["cross"], "index": "cross", "teacher": {"cross": CROSS | {"base": "b"}}}
    with pytest.raises(ValueError, match="index is 'cross', a cross_encoder"):
        TeachParams.model_validate(section)
