"""A query and a document tower made of one causal language model, which read prompts (ScalingNote, Sec. 3.2).

A document's prompt has three placeholders, and the state before each is an embedding: of its title, of its content, and
of both. The last one is indexed; the others are there to train it. A causal state does not depend on what follows, so
the document tower reads the prompt up to the last placeholder and pools its last token. `Prompt` may leave
out some.

The prompt is the tokenizer's chat template, and a query's [EOS] is in the tokenizer's post-processor:
sentence-transformers alone reads a saved tower, and keeps the prompt's end where it cuts a long text.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Router
from sentence_transformers.base.modules.module import Module
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import AddedToken

from slimtower.common.errors import UserError
from slimtower.common.names import ROLES, Role
from steps.encoders.bases import resolve_base
from steps.encoders.model_loading import check_tokenizer, is_causal, loading
from steps.encoders.precision import device
from steps.encoders.towers import check_fast, forget_origin, route
from steps.teach.contrastive_training import ContrastiveLoss, ContrastiveTrainer, Positives, train_tower
from steps.teach.kinds.llm_dual_encoder import TOPIC, LlmDualEncoder, Prompt
from steps.teach.training_triplets import TextTriplet
from steps.training.library_trainer import is_sharded

if TYPE_CHECKING:
    from steps.tracking.runs import Run


PLACEHOLDERS = TITLE_QUERY, CONTENT_QUERY = "[TITLE_QUERY]", "[CONTENT_QUERY]"
WHOLE = Prompt()


def document_prompt(prompt: Prompt) -> str:
    """The prompt of a document up to its last placeholder, as a Jinja template.

    A document's first line is its title, unless it is its only one. With `topic` a second one that begins with TOPIC is
    its topic. What is not there is empty.
    """
    lines = "{%- set lines = messages[-1]['content'].split('\\n', 1) -%}"
    title, content = "'title': {{ lines[0] if lines | length > 1 else '' }}", "'content': {{ lines[-1] }}"
    if prompt.topic:
        lines += "{%- set rest = lines[-1].split('\\n', 1) -%}"
        lines += f"{{%- set told = rest | length > 1 and rest[0].startswith('{TOPIC}') -%}}"
        content = "'content': {{ rest[1] if told else lines[-1] }}"
        content = f"'topic': {{{{ rest[0][{len(TOPIC)}:] if told else '' }}}}, {content}"
    ask = 'Predict a query term:"'
    title_query = f'{ask}{TITLE_QUERY}". ' if prompt.title_loss else ""
    combine = ', combine the predicted query terms, and compress the above content into one word:"'
    end = f'{CONTENT_QUERY}"{combine}' if prompt.summarize else ""
    return f"{lines}Document: {{{title}}}. {title_query}Document: {{{content}}}. {ask}{end}"


def llm_tower(base: str, dim: int, seed: int, prompt: Prompt = WHOLE) -> SentenceTransformer:
    """Untrained towers of `base`, in its own dtype, as a Router; their maps W^Q and W^D to `dim` (Eq. 3-4) are equal.

    The maps are random and orthogonal, by seed: what the model says of a text and another survives them.
    UserError for a base that cannot be loaded, is not causal, or has no fast tokenizer or no token that ends a text.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # rows of placeholders, where the vocabulary grows, and the map
        towers = {role: _load(base) for role in ROLES}
        _end_queries(towers["query"])
        _prompt_documents(towers["document"], prompt)
        width = towers["query"].get_embedding_dimension()
        weight = nn.init.orthogonal_(torch.empty(dim, width)).to(towers["query"].auto_model.dtype)

    def modules(role: Role) -> list[nn.Module]:
        pooling = Pooling(width, pooling_mode="lasttoken")
        return [towers[role], pooling, Dense(width, dim, False, None, init_weight=weight.clone())]

    routes = Router.for_query_document(modules("query"), modules("document"))  # type: ignore[arg-type]
    tower = SentenceTransformer(modules=[routes, Normalize()], device=device(), similarity_fn_name="cosine")
    forget_origin(tower)
    return tower


def check_prompt_length(tower: SentenceTransformer, limit: int) -> None:
    """UserError when a document's prompt fills the `limit` tokens that the tower reads."""
    prompt = len(route(tower, "document").preprocess(["."])["input_ids"][0]) - 1
    if limit <= prompt:
        raise UserError(
            f"teach.teacher: max_document_length is {limit}, but the prompt of a document alone has {prompt} tokens;"
            " raise it"
        )


def _load(base: str) -> Transformer:
    folder = resolve_base(base)
    with loading(folder, "the folder of a language model or a name on the hub"):
        transformer = Transformer(folder, model_kwargs={"dtype": "auto"})
    if not is_causal(transformer.auto_model):
        raise UserError(f"model {base}: is not causal; give a causal language model, or set kind: dual_encoder")
    tokenizer: Any = transformer.tokenizer
    check_fast(tokenizer, f"teach.teacher: base {base}")
    if tokenizer.eos_token is None:
        raise UserError(f"model {base}: its tokenizer has no eos_token; name a language model that has one")
    tokenizer.padding_side, tokenizer.pad_token = "right", tokenizer.pad_token or tokenizer.eos_token
    check_tokenizer(tokenizer, transformer.auto_model, base)
    tokenizer.chat_template = None
    transformer.modality_config = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    return transformer


def _end_queries(transformer: Transformer) -> None:
    tokenizer: Any = transformer.tokenizer
    ends = [tokenizer.bos_token] if _begins_with_bos(transformer) else []
    ends.append(tokenizer.eos_token)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=" ".join([*ends[:-1], "$A", ends[-1]]),
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in set(ends)],
    )


def _prompt_documents(transformer: Transformer, prompt: Prompt) -> None:
    """Let the document prompt be written around every text, its placeholders tokens of their own."""
    template = document_prompt(prompt)
    tokenizer: Any = transformer.tokenizer
    network: Any = transformer.auto_model
    placeholders = [AddedToken(name, special=True) for name in PLACEHOLDERS if name in template]
    tokenizer.add_tokens(placeholders, special_tokens=True)
    if len(tokenizer) > network.get_input_embeddings().num_embeddings:
        network.resize_token_embeddings(len(tokenizer))
    tokenizer.chat_template = ("{{ bos_token }}" if _begins_with_bos(transformer) else "") + template
    transformer.input_formatter.message_format = "flat"
    text = transformer.modality_config["text"]
    transformer.modality_config = {"text": text, "message": {**text, "format": "flat"}}
    transformer.input_formatter.supported_modalities = list(transformer.modality_config)


def _begins_with_bos(transformer: Transformer) -> bool:
    tokenizer: Any = transformer.tokenizer
    return tokenizer.bos_token_id is not None and tokenizer("a").input_ids[0] == tokenizer.bos_token_id


def train_llm_tower(
    tower: SentenceTransformer,
    triplets: list[TextTriplet],
    positives: Positives,
    params: LlmDualEncoder,
    checkpoints: Path,
    run: "Run",
) -> None:
    """Train a tower of `llm_tower` in place, as `train_tower` does."""
    train_tower(_training_tower(tower), triplets, positives, params, checkpoints, run, LlmTrainer, PlaceholderLoss)


class StatesBefore(Module):
    """Pools the states before some tokens, `(batch, tokens, width)`; for None, and a token cut off, the last one."""

    def __init__(self, tokens: list[int | None]) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        ids, states = features["input_ids"], features["token_embeddings"]
        order = torch.arange(ids.shape[1], device=ids.device)
        last = (order * features["attention_mask"]).argmax(dim=1)
        positions = torch.stack(
            [last if token is None else _before(ids == token, last) for token in self.tokens], dim=1
        )
        features["sentence_embedding"] = states.gather(1, positions[:, :, None].expand(-1, -1, states.shape[2]))
        return features

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: it serves training alone."""


def _before(matches: Tensor, last: Tensor) -> Tensor:
    return torch.where(matches.any(dim=1), matches.int().argmax(dim=1) - 1, last)


class PlaceholderLoss(ContrastiveLoss):
    """The sum of `ContrastiveLoss` over a document's embeddings `(batch, n, dim)` (ScalingNote, Eq. 8, 11, 12)."""

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        losses = [super(PlaceholderLoss, self).compute_loss_from_embeddings(list(parts), labels)
                for parts in zip(*(column.unbind(dim=1) for column in embeddings), strict=True)]  # fmt: skip
        return torch.stack(losses).sum()


class LlmTrainer(ContrastiveTrainer):
    """The trainer, whose optimizer keeps fp32 copies of narrower weights."""

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW as it is set; weights that are sharded are in fp32 themselves."""
        matrices = set(self.get_decay_parameter_names(self.model))
        weights = [(name in matrices, weight) for name, weight in self.model.named_parameters() if weight.requires_grad]
        groups = [
            {"params": [weight for decays, weight in weights if decays == which], "weight_decay": decay}
            for which, decay in ((True, self.args.weight_decay), (False, 0.0))
        ]
        kind = torch.optim.AdamW if is_sharded() else MasterAdamW
        self.optimizer = kind(groups, lr=self.args.learning_rate)
        return self.optimizer


def _training_tower(tower: SentenceTransformer) -> SentenceTransformer:
    """The tower with an embedding for each placeholder, `(batch, n, dim)`, not normalised; it shares its weights."""
    first: Any = tower[0]
    (reader, _, query_map), (writer, _, document_map) = (list(first.sub_modules[role]) for role in ROLES)
    named = [name for name in PLACEHOLDERS if name in writer.tokenizer.chat_template]
    before = [*writer.tokenizer.convert_tokens_to_ids(named), None]  # the prompt ends where its last placeholder stands
    query_modules = [reader, StatesBefore([None] * len(before)), query_map]
    document_modules = [writer, StatesBefore(before), document_map]
    routes = Router.for_query_document(query_modules, document_modules)
    return SentenceTransformer(modules=[routes], device=device(), similarity_fn_name="cosine")


class MasterAdamW(torch.optim.AdamW):
    """AdamW on fp32 copies of narrower weights (Micikevicius et al., "Mixed Precision Training", 2018, Sec. 3.1).

    bf16 keeps 8 bits: an update below 1/512 of a weight, such as every one at usual learning rates, would be rounded
    away. Weights in fp32 are updated themselves.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], lr: float) -> None:
        """`groups` as torch has them, of `params`, a list, and their `weight_decay`."""
        self.weights: list[nn.Parameter] = [weight for group in groups for weight in group["params"]]
        self.masters = [
            weight if weight.dtype == torch.float32 else weight.detach().float().requires_grad_()
            for weight in self.weights
        ]
        copies = iter(self.masters)
        super().__init__([{**group, "params": [next(copies) for _ in group["params"]]} for group in groups], lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the copies by the weights' gradients, and the weights from the copies."""
        for weight, master in self._weight_copies():
            master.grad = None if weight.grad is None else weight.grad.float()
        value = super().step(closure)
        for weight, master in self._weight_copies():
            weight.copy_(master)
            master.grad = None
        return value

    def zero_grad(self, set_to_none: bool = True) -> None:
        for weight in self.weights:
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "masters": [master.detach() for _, master in self._weight_copies()]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "masters"})
        for (_, master), saved in zip(self._weight_copies(), state_dict["masters"], strict=True):
            master.copy_(saved)

    def _weight_copies(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        return [(weight, copy) for weight, copy in zip(self.weights, self.masters, strict=True) if weight is not copy]
