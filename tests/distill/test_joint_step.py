"""A step in which the index's teacher trains along with a student, as the preset lead_joint has it: LEAD, Eq. 12."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorder import Recorder
from scoring_teachers import START
from sentence_transformers import SentenceTransformer
from stages import distill_params, run_distill
from torch import Tensor

import steps.distill.trainer as trainer
from slimtower.common.settings import read_mapping
from steps.distill.candidates import CandidateBatch
from steps.distill.layer_pairs import Pairs
from steps.distill.objective import Objective
from steps.distill.sources import Sources
from steps.distill.students import Student

pytestmark = pytest.mark.medium

LEAD = read_mapping(Path(__file__).parents[2] / "bench/expected.yaml")["presets"]["lead_joint"]
NAMES = ["label_softmax", "teacher_label_softmax", "mutual_kl", "layer_distillation"]


def redrawn(module: torch.nn.Module, seed: int) -> SentenceTransformer:
    """Give a tower random weights that tell texts apart; returns its copy in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for weight in module.parameters():
            if weight.ndim > 1:
                torch.nn.init.normal_(weight, std=0.2)
    copied: SentenceTransformer = copy.deepcopy(module).double().eval()
    return copied


def states(tower: Any, texts: Sequence[str], longest: int) -> Tensor:
    """Mean of each layer's states of the tokens, a text at a time: `(n, layers, width)`."""
    found = []
    for text in texts:
        tokens = tower.tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
        layers = tower[0].auto_model(**tokens, output_hidden_states=True).hidden_states[1:]
        found.append(torch.stack([layer[0].mean(dim=0) for layer in layers]))
    return torch.stack(found)


def log_shares(scores: Tensor) -> Tensor:
    return scores - torch.logsumexp(scores, dim=0)


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (log_shares(p).exp() * (log_shares(p) - log_shares(q))).sum()


def reference(
    student: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor], drawn: CandidateBatch, pairs: Pairs
) -> Tensor:
    """LEAD's four losses, Eq. 6 to 11, in the order of NAMES; of either model states of the texts and the documents.

    The preset's temperatures: 0.05 of cosines, 1 of layers, 10 of the layers' weights.
    """
    cosines = []
    for asked, held in (student, teacher):
        ends = [each[:, -1] / each[:, -1].norm(dim=1, keepdim=True) for each in (asked, held)]
        cosines.append(ends[0] @ ends[1].T / 0.05)
    total = torch.zeros(4, dtype=torch.float64)
    texts, labelled = len(drawn.label), drawn.label.any(axis=1).sum()
    for text, (s, t) in enumerate(zip(*cosines, strict=True)):
        counted = np.flatnonzero(drawn.counts[text])
        place = np.flatnonzero(drawn.label[text][counted])  # of its label; none without
        by_pair, by_label = [], []
        for theirs, ours in zip(pairs.teacher, pairs.student, strict=True):
            taught, learned = (held[:, layer] @ asked[text, layer] for (asked, held), layer in
                               ((teacher, theirs), (student, ours)))  # fmt: skip
            by_pair.append(kl(taught, learned))
            by_label.append(-log_shares(taught[counted])[place].sum().detach() / 10)
        weights = log_shares(-torch.stack(by_label)).exp()
        label_losses = [-log_shares(scores[counted])[place].sum() / labelled for scores in (s, t)]
        mutual, layers = kl(t, s) + kl(s, t), (weights * torch.stack(by_pair)).sum()
        total = total + torch.stack([*label_losses, mutual / texts, layers / texts])
    return total


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0, 1.0), (0.5, 3.0, 0.25, 2.0)], ids=["published", "weighted"])
def test_a_step_has_equation_12_and_its_gradients_in_both_models(
    embedded: Path, weights: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and gradients of a run's step against float64, from the networks' own states, over the whole batch."""
    backward = trainer._backward
    sources = Sources(*(embedded / "data" / each for each in ("ingest", "mine/relevance", "embed", "score")))
    first, second, *others = sorted(sources.positives)[:6]
    batch = np.array([first, second, *others, 100, 140])  # the last two have no label
    both = np.union1d(sources.positives[first], sources.positives[second])
    wanted: list[Tensor] = []

    def compared(student: Student, objective: Objective, data: Any, _: Any, params: Any, step: int) -> Any:
        assert objective.candidates is not None
        objective.candidates = replace(objective.candidates, positives=sources.positives | {first: both})
        [teacher] = objective.teachers.modules
        towers = [(module, redrawn(module, seed)) for seed, module in enumerate((student.tower, teacher))]
        terms = backward(student, objective, data, batch, params, step)
        drawn = objective.candidates.of(batch, step)
        assert drawn.label.any(axis=1).sum() == 6 and (~drawn.counts).sum() == 1
        asked = [sources.texts["text"][row].as_py() for row in batch.tolist()]
        held = [sources.document_texts()[row] for row in drawn.documents.tolist()]
        ours, theirs = ((states(tower, asked, 32), states(tower, held, 16)) for _, tower in towers)
        layers: Any = objective.providers["layer_distillation"]
        wanted.append(reference(ours, theirs, drawn, layers.pairs) * torch.tensor(weights))
        wanted[-1].sum().backward()
        for module, tower in towers:
            slopes, expected = (
                {key: weight.grad for key, weight in each.named_parameters() if weight.grad is not None}
                for each in (module, tower)
            )
            assert slopes.keys() == expected.keys() and len(slopes) > 20
            largest = max(float(slope.abs().max()) for slope in expected.values())
            for key, slope in slopes.items():
                np.testing.assert_allclose(slope, expected[key], rtol=1e-3, atol=1e-4 * largest, err_msg=key)
        return terms

    monkeypatch.setattr(trainer, "_backward", compared)
    [phase] = LEAD["then"]
    losses = [loss | {"weight": weight} for loss, weight in zip(phase["losses"], weights, strict=True)]
    short = {"start": START, "max_document_length": 16, "epochs": 0.01, "losses": losses, "then": []}
    known = distill_params().model_dump()["student"]
    run = Recorder()
    run_distill(embedded, "it", distill_params(student=known | {"it": LEAD | phase | short}), run)
    terms = wanted.pop().tolist()
    assert run.last["train_loss"] == pytest.approx(sum(terms), rel=1e-4)
    assert [run.last[f"train_loss.{name}"] for name in NAMES] == pytest.approx(terms, rel=1e-4)
