"""python -m bench.distill_speed: texts per second of the distillation loop and of sentence-transformers' own trainer.

Takes data/embed and models/teach/tower of a pipeline run in the present folder. Two of the teacher's layers learn the
same texts once, in batches of 128, by squared error against the teacher's stored embeddings: in the loop of
`steps.distill`, and in SentenceTransformerTrainer with MSELoss and the embeddings as labels. All take turns in one run.
Writes bench/results/distill_speed.json; exits 3 when the loop is less than 4 times as fast as the trainer as it comes,
or its student worse on held-out texts than any of the trainer's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MSELoss

from bench.machine import machine, recording, write_record
from bench.teacher import index_teacher
from pipeline.params import load_params
from slimtower.common.errors import UserError
from steps.core.cosines import cosines
from steps.core.tables import read_table
from steps.distill.checkpoints import Checkpoints
from steps.distill.initialisation import layer_subset
from steps.distill.losses.embedding import Embedding
from steps.distill.objective import Objective
from steps.distill.params import DistillParams, StudentParams
from steps.distill.sources import Sources
from steps.distill.starts import Layers
from steps.distill.students import TransformerStudent, untrained
from steps.distill.targets import StoredTeachers
from steps.distill.tokens import length_batches
from steps.distill.trainer import Alignment, Schedule, train
from steps.encoders.precision import device, resolve_precision
from steps.encoders.towers import encode
from steps.tracking.runs import NullRun
from steps.training.library_trainer import set_dropout

EMBED = Path("data/embed")
SOURCES = Sources(Path("data/ingest"), Path("data/mine/relevance"), EMBED, Path("data/score"))
RESULT = Path("bench/results/distill_speed.json")
LAYERS, BATCH = [0, -1], 128
RATE, WARMUP, DECAY = 4e-4, 0.05, 0.01
TRAINED, HELD_OUT = 10_240, 1000  # texts
ROUNDS = 2
SEED = 7
LEAST = 4.0  # times the trainer's texts per second
TOLERANCE = 0.002  # of the cosine, below which no difference is counted
LOOP, TRAINER = "loop", "trainer"
CHOSEN = StudentParams(
    start=Layers(layers=LAYERS), losses=[Embedding(kind="embedding", distance="squared_error")], epochs=1.0,
    batch_size=BATCH, learning_rate=RATE, warmup_ratio=WARMUP, weight_decay=DECAY,
)  # fmt: skip
SCHEDULE = Schedule(
    name=LOOP, epochs=CHOSEN.epochs, batch_size=BATCH, learning_rate=RATE, warmup_ratio=WARMUP, weight_decay=DECAY,
    embedding_lr_multiplier=CHOSEN.embedding_lr_multiplier,
)  # fmt: skip


class ByLength(DefaultBatchSampler):
    """The loop's batches of like length, as a batch sampler of sentence-transformers, which has none of that kind."""

    def __init__(self, dataset: Dataset, batch_size: int, **named: Any) -> None:
        super().__init__(dataset, batch_size, **named)
        self.lengths = np.array([len(text) for text in dataset["sentence"]])

    def __iter__(self) -> Iterator[list[int]]:
        for positions in length_batches(self.lengths, self.batch_size, (self.seed, self.epoch)):
            yield positions.tolist()


@dataclass(frozen=True)
class Setting:
    """What is changed of the trainer's defaults, beside the batch, the rates and the clipping that it is given."""

    says: str
    dropout: bool = True  # as the student's configuration has it; the loop trains without
    same_precision: bool = False  # as the loop computes; else float32
    plain_attention: bool = False  # as the loop has it in bf16 on a CPU; else PyTorch's fused one
    arguments: dict[str, Any] = field(default_factory=dict)


# An argument of transformers' trainer; sentence-transformers 6.2 takes it and batches at random all the same.
GROUPED = {"train_sampling_strategy": "group_by_length"}
SETTINGS = {
    TRAINER: Setting("as it comes"),
    "trainer.precision": Setting(
        "the loop's precision, grouping by length asked for", same_precision=True, arguments=GROUPED
    ),
    "trainer.dropout": Setting("the same, and no dropout", dropout=False, same_precision=True, arguments=GROUPED),
    "trainer.batches": Setting(
        "the same, and the loop's batches by a sampler of one's own",
        dropout=False, same_precision=True, arguments={"batch_sampler": ByLength},
    ),
    "trainer.attention": Setting(
        "the same, and plain attention",
        dropout=False, same_precision=True, plain_attention=True, arguments={"batch_sampler": ByLength},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What every contestant learns."""

    texts: list[str]
    vectors: np.ndarray  # (texts, dim), float32
    training: np.ndarray  # row numbers
    held_out: np.ndarray
    tower: Path
    params: DistillParams


def draw(embed: Path, tower: Path, params: DistillParams, trained: int, held_out: int) -> Task:
    """`trained` and `held_out` of the alignment texts; where there are fewer, a tenth of all is held out."""
    texts = read_table(embed, "alignment_texts")["text"]
    vectors = np.load(embed / "alignment.npy", mmap_mode="r")
    rows = np.random.default_rng(SEED).permutation(len(texts))[: trained + held_out]
    validation_count = held_out if len(rows) == trained + held_out else len(rows) // 10
    if len(rows) < 2 * BATCH:
        raise UserError(f"{embed}: {len(rows)} alignment texts are too few to time; run a larger pipeline")
    order = np.arange(len(rows))
    targets = np.asarray(vectors[rows], dtype=np.float32)
    return Task(
        texts.take(rows).to_pylist(), targets, order[validation_count:], order[:validation_count], tower, params
    )


def student(task: Task, seed: int = SEED) -> SentenceTransformer:
    """The untrained student, which reads as many tokens in every hand."""
    torch.manual_seed(seed)
    tower = layer_subset(task.tower, LAYERS)
    tower.max_seq_length = task.params.max_length
    return tower


def loop(task: Task, seed: int) -> tuple[SentenceTransformer, float]:
    """The student and the seconds from texts to its last step, tokenising included.

    The loop watches held-out texts and the trainer, as it is set here, does not: the loop is given one text to watch.
    """
    params = task.params.model_copy(update={"seed": seed, "repeats": {"train_queries": 1.0}})
    torch.manual_seed(seed)
    learner = untrained(CHOSEN, task.tower, SOURCES, np.arange(0), params)
    started = perf_counter()
    tokens = learner.tokenize(task.texts, params.max_length)
    tokenised = perf_counter() - started
    parts = np.full(len(task.texts), "train_queries")
    data = Alignment(tokens, task.vectors, parts, task.training, task.held_out[:1])
    no_documents = np.zeros((0, task.vectors.shape[1]), dtype=np.float32)
    objective = Objective(CHOSEN.losses, StoredTeachers(task.vectors, no_documents, cosine=True))
    with TemporaryDirectory(prefix="bench-distill.") as folder:
        report = train(learner, objective, data, SCHEDULE, params, NullRun(), Checkpoints(Path(folder)))
    return learner.tower, tokenised + report["seconds"]


def trainer(task: Task, seed: int, setting: Setting) -> tuple[SentenceTransformer, float]:
    """The student and the seconds of `train()`, which tokenises as it goes; its data set is made before.

    MSELoss is the loop's loss over the dimension, which Adam does not notice; the gradient's limit is divided as well.
    """
    tower = student(task, seed)
    if not setting.dropout:
        set_dropout(tower)
    if setting.plain_attention:
        network: Any = tower[0]
        network.auto_model.set_attn_implementation("eager")
    tower.model_card_data.generate_widget_examples = False
    texts = [task.texts[row] for row in task.training]
    with TemporaryDirectory(prefix="bench-distill.") as folder:
        work = SentenceTransformerTrainer(
            model=tower,
            args=SentenceTransformerTrainingArguments(
                output_dir=folder,
                num_train_epochs=1,
                per_device_train_batch_size=BATCH,
                learning_rate=RATE,
                warmup_steps=WARMUP,
                weight_decay=DECAY,
                max_grad_norm=1.0 / task.vectors.shape[1],
                bf16=setting.same_precision and resolve_precision(task.params.precision) == "bf16",
                seed=seed,
                save_strategy="no",
                report_to="none",
                use_cpu=device() == "cpu",
                **setting.arguments,
            ),
            train_dataset=Dataset.from_dict({"sentence": texts, "label": list(task.vectors[task.training])}),
            loss=MSELoss(tower),
        )
        started = perf_counter()
        work.train()
        return tower, perf_counter() - started


def cosine(task: Task, trained: SentenceTransformer) -> float:
    """Mean cosine to the teacher on the held-out texts, embedded in float32 whatever the training computed in."""
    tower = student(task)
    tower.load_state_dict(trained.state_dict())
    embedded = encode(tower, [task.texts[row] for row in task.held_out], "query")
    return float(cosines(embedded, task.vectors[task.held_out]).mean())


def measure(task: Task, rounds: int) -> dict[str, Any]:
    """Texts per second and held-out cosine of every contestant; the order is turned round from round to round."""
    contestants: dict[str, Callable[[Task, int], tuple[SentenceTransformer, float]]] = {LOOP: loop}
    contestants |= {name: partial(trainer, setting=setting) for name, setting in SETTINGS.items()}
    short = replace(task, training=task.training[: 2 * BATCH])
    for contend in contestants.values():
        contend(short, SEED)
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    cosines: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name in list(contestants)[:: -1 if number % 2 else 1]:
            trained, seconds = contestants[name](task, SEED + number)
            speeds[name].append(len(task.training) / seconds)
            cosines[name].append(cosine(task, trained))
            print(f"round {number + 1}: {name:18} {speeds[name][-1]:8.1f} texts/s", flush=True)
    first = student(task)
    lengths = TransformerStudent(first).tokenize(task.texts, task.params.max_length).lengths(task.training)
    says = {LOOP: "steps.distill"} | {name: setting.says for name, setting in SETTINGS.items()}
    return {
        "texts": len(task.training),
        "held_out": len(task.held_out),
        "mean_tokens": round(float(lengths.mean()), 1),
        "batch_size": BATCH,
        "layers": LAYERS,
        "precision": resolve_precision(task.params.precision),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "tolerance": TOLERANCE,
        "contestants": {
            name: {
                "setting": says[name],
                "texts_per_second": round(float(np.mean(speeds[name])), 1),
                "by_round": [round(speed, 1) for speed in speeds[name]],
                "cosine": round(float(np.mean(cosines[name])), 5),
                "cosine_by_round": [round(value, 5) for value in cosines[name]],
                "loop_is_faster": round(float(np.mean(np.divide(speeds[LOOP], speeds[name]))), 2),
            }
            for name in contestants
        },
    }


def judge(results: dict[str, Any]) -> None:
    """Print every contestant's figures; UserError when a promise is not kept."""
    rows = results["contestants"]
    for name, row in rows.items():
        print(
            f"{name:18} {row['texts_per_second']:8.1f} texts/s  cosine {row['cosine']:.4f}"
            f"  loop {row['loop_is_faster']:5.2f} x  {row['setting']}"
        )
    ratio = rows[TRAINER]["loop_is_faster"]
    slow = f"{ratio} times the trainer's texts per second, not {LEAST:g}; time it with nothing else running"
    broken = [slow] if ratio < LEAST else []
    broken += [
        f"held-out cosine {rows[LOOP]['cosine']:.4f}, {name} has {row['cosine']:.4f}"
        for name, row in rows.items()
        if rows[LOOP]["cosine"] < row["cosine"] - TOLERANCE
    ]
    if broken:
        raise UserError(f"bench.distill_speed: the loop reaches {'; '.join(broken)}")


def main() -> None:
    params = load_params().distill
    results = measure(draw(EMBED, index_teacher() / "tower", params, TRAINED, HELD_OUT), ROUNDS)
    versions = {"sentence_transformers": sentence_transformers.__version__, "transformers": transformers.__version__}
    write_record(RESULT, {"machine": machine() | versions, "seed": SEED, **results})
    judge(results)


if __name__ == "__main__":
    recording(main)
