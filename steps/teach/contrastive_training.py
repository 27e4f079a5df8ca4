"""Contrastive training of the tower on triplets, resumable from its last checkpoint."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.data_loader import prepare_data_loader  # type: ignore[import-untyped]
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Router
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.base.sampler import BatchSamplers
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, TrainerCallback

from steps.core.errors import UserError
from steps.core.precision import resolve_precision
from steps.core.progress import progress
from steps.core.towers import route, trains_with_plain_attention
from steps.teach.cached_gradients import backward
from steps.teach.contrastive_loss import ContrastiveLoss
from steps.teach.training_triplets import TextTriplet
from steps.training.distributed import agreed_step, micro_batch, rank, world

if TYPE_CHECKING:  # how runs are tracked changes no weight: checkpoints outlive it
    from steps.core.tracking import Run
    from steps.teach.kinds.dual_encoder import DualEncoder

STAGING = "staging"  # where a checkpoint is written before it gets its name


def train_tower(
    tower: SentenceTransformer, triplets: list[TextTriplet], params: "DualEncoder", checkpoints: Path, run: "Run"
) -> None:
    """Train the tower in place for `params.epochs`, from the checkpoint in `checkpoints` if a killed run left one.

    Processes that torchrun started train it together, on the batches and to the weights of one process, up to the order
    of summation (with dropout 0). UserError when the loss stops being a finite number.
    """
    columns = {
        "query": cut_to_tokens(tower, [triplet.query for triplet in triplets], params.max_query_length),
        "positive": [triplet.positive for triplet in triplets],
    }
    if params.loss.hard_negatives != "none":
        columns["negative"] = [triplet.negative for triplet in triplets]
    tower.model_card_data.generate_widget_examples = False
    trainer = ContrastiveTrainer(
        model=tower,
        args=_arguments(tower, params, checkpoints),
        train_dataset=Dataset.from_dict(columns),
        loss=ContrastiveLoss(tower, params.temperature, params.loss),
        callbacks=[LossLog(run)],
    )
    for callback in (trainer.model_card_callback_class, PrinterCallback):
        trainer.remove_callback(callback)
    set_dropout(tower, params.dropout)
    if rank() == 0:
        shutil.rmtree(checkpoints / STAGING, ignore_errors=True)
    step = agreed_step(last_step(checkpoints), str(checkpoints))
    resume = checkpoints / f"checkpoint-{step}" if step else None
    if resume and rank() == 0:
        print(f"teach: continues from {resume}")
    networks = [module.auto_model for module in tower.modules() if isinstance(module, Transformer)]
    attentions = [network.config._attn_implementation for network in networks]
    if trains_with_plain_attention(params.precision, params.max_document_length):
        for network in networks:
            network.set_attn_implementation("eager")
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    for network, attention in zip(networks, attentions, strict=True):
        network.set_attn_implementation(attention)
    tower.eval()


class ContrastiveTrainer(SentenceTransformerTrainer):
    """The library's trainer, with checkpoints that appear whole and batches that pieces and processes can share."""

    def get_train_dataloader(self) -> DataLoader:
        """Whole batches for every process: of each it embeds its own rows."""
        if world() == 1:
            return super().get_train_dataloader()
        loader = self._build_dataloader(self.train_dataset, self.args.train_batch_size, dataset_kind="train")
        self._train_dataloader = prepare_data_loader(
            loader, self.accelerator.device, num_processes=1, process_index=0, put_on_device=True
        )
        return self._train_dataloader

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Gradients of one batch; with SLIMTOWER_MICRO_BATCH or several processes piece by piece."""
        if world() == 1 and micro_batch() is None:
            return super().training_step(model, inputs, num_items_in_batch)
        self.model.train()
        columns, _ = self.collect_features(self._prepare_inputs(inputs))
        loss = cast(ContrastiveLoss, self.loss)
        # the tower itself, not its DDP wrapper: that would average what has to be summed, and after every piece
        return backward(
            self.model,
            lambda embeddings: loss.compute_loss_from_embeddings(embeddings, torch.empty(0)),
            columns,
            micro_batch(),
        )

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write the checkpoint beside the others, then rename it: a kill leaves a whole one or none."""
        folder = Path(str(self.args.output_dir))
        self.args.output_dir = str(folder / STAGING)
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.output_dir = str(folder)
        self.accelerator.wait_for_everyone()
        if rank() == 0:
            publish_checkpoint(folder, self.state.global_step)


def set_dropout(tower: SentenceTransformer, share: float) -> None:
    """Set the dropout of every layer for this training; the saved configuration keeps the base's values."""
    for module in tower.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = share


def cut_to_tokens(tower: SentenceTransformer, texts: list[str], limit: int) -> list[str]:
    """Each text cut, at a token's end, to at most `limit` tokens (special tokens not counted)."""
    encoded = route(tower, "query").tokenizer(
        texts, add_special_tokens=False, truncation=True, max_length=limit, return_offsets_mapping=True
    )
    return [
        text[: offsets[-1][1]] if len(offsets) == limit else text
        for text, offsets in zip(texts, encoded["offset_mapping"], strict=True)
    ]


def last_step(folder: Path) -> int:
    """Step of the newest checkpoint below a folder, 0 without any."""
    return max((int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*")), default=0)


def publish_checkpoint(folder: Path, step: int) -> None:
    """Move the checkpoint of a step from the staging folder into `folder`, and drop the older ones."""
    name = f"checkpoint-{step}"
    (folder / STAGING / name).rename(folder / name)
    for path in (folder / STAGING, *folder.glob("checkpoint-*")):
        if path.name != name:
            shutil.rmtree(path)


class LossLog(TrainerCallback):
    """Sends loss and learning rate of every step to the run, and stops at the first loss that is not finite."""

    def __init__(self, run: "Run") -> None:
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
                f"teach.teacher: the loss is {logs['loss']} at step {state.global_step}; lower learning_rate"
                f" ({args.learning_rate:g}), raise temperature or set precision: fp32"
            )
        self.run.metrics({"loss": logs["loss"], "learning_rate": logs["learning_rate"]}, step=state.global_step)


def _arguments(
    tower: SentenceTransformer, params: "DualEncoder", checkpoints: Path
) -> SentenceTransformerTrainingArguments:
    roles = {"query": "query", "positive": "document", "negative": "document"}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=params.epochs,
        per_device_train_batch_size=params.batch_size,
        batch_sampler=BatchSamplers.NO_DUPLICATES,  # a text twice in a batch would be its own negative
        prompts={column: tower.prompts.get(role) or "" for column, role in roles.items()},
        router_mapping=roles if isinstance(tower[0], Router) else {},
        learning_rate=params.learning_rate,
        warmup_steps=params.warmup_ratio,  # below 1 it is a share of all steps
        lr_scheduler_type="linear",
        bf16=resolve_precision(params.precision) == "bf16",
        use_cpu=not torch.cuda.is_available(),
        seed=params.seed,
        data_seed=params.seed,
        save_strategy="steps",
        save_steps=params.checkpoint_steps,
        logging_steps=1,
        logging_nan_inf_filter=False,  # by default the trainer hides a NaN loss behind the mean of the others
        report_to="none",
        disable_tqdm=True,
        dataloader_drop_last=world() > 1,  # the library insists on it there
    )
    arguments.dataloader_drop_last = False  # our processes share the last batch, whatever its size
    if arguments.n_gpu > 1:  # one process uses one GPU: the trainer would multiply the batch by their number
        arguments._n_gpu = 1
    return arguments
