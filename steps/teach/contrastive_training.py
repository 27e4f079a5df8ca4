"""InfoNCE training of the tower on triplets, resumable from its last checkpoint."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import BatchSamplers
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback

from steps.core.errors import UserError
from steps.core.params.teach import TeachParams
from steps.core.progress import progress
from steps.core.towers import resolve_precision
from steps.core.tracking import Run
from steps.teach.training_triplets import TextTriplet


def info_nce(tower: SentenceTransformer, temperature: float) -> MultipleNegativesRankingLoss:
    """`-mean_i log softmax_j(s(q_i, d_j) / temperature)[i]` over the batch's positives and mined negatives.

    s is the tower's own similarity, in fp32 whatever the network computes in: bf16 keeps 8 bits of a logit near 20.

    | texts | labels | embeddings |
    |---|---|---|
    | (query, positive, negative) | none | 3 x `(batch, dim)`, scores `(batch, 2 * batch)` |
    """

    def similarity(queries: Tensor, documents: Tensor) -> Tensor:
        with torch.autocast(queries.device.type, enabled=False):
            return tower.similarity(queries.float(), documents.float())

    return MultipleNegativesRankingLoss(tower, scale=1 / temperature, similarity_fct=similarity)


def train_tower(
    tower: SentenceTransformer, triplets: list[TextTriplet], params: TeachParams, checkpoints: Path, run: Run
) -> None:
    """Train the tower in place for `params.epochs`; a checkpoint left in `checkpoints` is continued, then removed.

    UserError when the loss stops being a finite number.
    """
    dataset = Dataset.from_dict(
        {
            "query": cut_to_tokens(tower, [triplet.query for triplet in triplets], params.max_query_length),
            "positive": [triplet.positive for triplet in triplets],
            "negative": [triplet.negative for triplet in triplets],
        }
    )
    tower.model_card_data.generate_widget_examples = False
    trainer = SentenceTransformerTrainer(
        model=tower,
        args=_arguments(tower, params, checkpoints),
        train_dataset=dataset,
        loss=info_nce(tower, params.temperature),
        callbacks=[LossLog(run)],
    )
    for callback in (trainer.model_card_callback_class, PrinterCallback):
        trainer.remove_callback(callback)
    set_dropout(tower, params.dropout)
    resume = last_checkpoint(checkpoints)
    if resume is not None:
        print(f"teach: continues from {resume}")
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    shutil.rmtree(checkpoints, ignore_errors=True)
    tower.eval()


def set_dropout(tower: SentenceTransformer, share: float) -> None:
    """Set the dropout of every layer for this training; the saved configuration keeps the base's values."""
    for module in tower.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = share


def cut_to_tokens(tower: SentenceTransformer, texts: list[str], limit: int) -> list[str]:
    """Each text cut, at a token's end, to at most `limit` tokens (special tokens not counted)."""
    encoded = tower.tokenizer(
        texts, add_special_tokens=False, truncation=True, max_length=limit, return_offsets_mapping=True
    )
    return [
        text[: offsets[-1][1]] if len(offsets) == limit else text
        for text, offsets in zip(texts, encoded["offset_mapping"], strict=True)
    ]


def last_checkpoint(folder: Path) -> Path | None:
    """Newest whole checkpoint below a folder; one that a kill left half-written is removed."""
    for path in sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]), reverse=True):
        if (path / "trainer_state.json").is_file():  # the last file that a checkpoint gets
            return path
        shutil.rmtree(path)
    return None


class LossLog(TrainerCallback):
    """Sends loss and learning rate of every step to the run, and stops at the first loss that is no number."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.bar: Iterator[int] = iter(())

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Called once, also when a checkpoint is continued."""
        left = state.max_steps - state.global_step
        self.bar = progress(range(left), left, "teacher")
        next(self.bar, None)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Called after each step."""
        next(self.bar, None)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **rest: Any) -> None:
        """Called by the trainer after each step, before it saves anything."""
        if not logs or "loss" not in logs:
            return
        if not math.isfinite(logs["loss"]):
            raise UserError(
                f"teach: the loss is {logs['loss']} at step {state.global_step}; lower teach.learning_rate"
                f" ({args.learning_rate:g}), raise teach.temperature or set teach.precision: fp32"
            )
        self.run.metrics({"loss": logs["loss"], "learning_rate": logs["learning_rate"]}, step=state.global_step)


def _arguments(
    tower: SentenceTransformer, params: TeachParams, checkpoints: Path
) -> SentenceTransformerTrainingArguments:
    query_prompt, document_prompt = (tower.prompts.get(role) or "" for role in ("query", "document"))
    return SentenceTransformerTrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=params.epochs,
        per_device_train_batch_size=params.batch_size,
        batch_sampler=BatchSamplers.NO_DUPLICATES,  # a text twice in a batch would be its own negative
        prompts={"query": query_prompt, "positive": document_prompt, "negative": document_prompt},
        learning_rate=params.learning_rate,
        warmup_steps=params.warmup_ratio,  # below 1 it is a share of all steps
        lr_scheduler_type="linear",
        bf16=resolve_precision(params.precision) == "bf16",
        use_cpu=not torch.cuda.is_available(),
        seed=params.seed,
        data_seed=params.seed,
        save_strategy="steps",
        save_steps=params.checkpoint_steps,
        save_total_limit=1,
        logging_steps=1,
        logging_nan_inf_filter=False,  # by default the trainer hides a NaN loss behind the mean of the others
        report_to="none",
        disable_tqdm=True,
    )
