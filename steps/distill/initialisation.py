"""What a transformer starts from: the teacher's layers, another encoder, which trains or stays, or random weights."""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import BertWordPieceTokenizer
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerFast

from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from steps.core.corpus import CorpusTexts
from steps.distill.params import DistillParams
from steps.distill.sources import Sources
from steps.distill.starts import FreshEncoder
from steps.encoders.bases import resolve_base
from steps.encoders.batch_check import check_tower_batches
from steps.encoders.cut_texts import sample_rows
from steps.encoders.precision import device
from steps.encoders.towers import check_fast, check_whole, encode, load_tower
from steps.encoders.vector_cache import embed_once
from steps.training.distributed import rank

_LETTERS = 1000  # the most frequent ones are pieces of a new vocabulary
_DOCUMENTS = 4096  # on which an adapter's map is fitted, drawn by seed
_APPENDED = "appended"  # attribute of the map that `ending_like` put at a tower's end
_FITTED = 4096  # texts on which the map behind another encoder starts
_RIDGE = 1e-3  # of the mean variance of the index's dimensions: one that hardly varies says little


def layer_subset(teacher_folder: Path, layers: list[int], *, prompts: bool = False) -> SentenceTransformer:
    """The teacher's query tower with these of its layers alone, in this order; negative numbers count from the last.

    Query-encoder alignment (Sec. 3.2). `prompts`: with the teacher's prompt. UserError for a layer that it does not
    have, and for layers that would be another model once saved, as ModernBERT's first one differs.
    """
    tower = load_tower(teacher_folder, "query")
    if not prompts:
        _forget_prompts(tower)
    model = _transformer(tower, teacher_folder)
    owner, name, blocks = blocks_of(model, teacher_folder)
    depth = len(blocks)
    outside = [layer for layer in layers if not -depth <= layer < depth]
    if outside:
        raise UserError(f"distill.student: layers {outside} do not exist; the teacher's are 0 to {depth - 1}")
    if len({layer % depth for layer in layers}) < len(layers):
        raise UserError(f"distill.student: layers {layers} of the teacher's {depth} name one twice; name each once")
    setattr(owner, name, nn.ModuleList([blocks[layer % depth] for layer in layers]))
    if kinds := getattr(model.config, "layer_types", None):
        model.config.layer_types = [kinds[layer % depth] for layer in layers]
    model.config.num_hidden_layers = len(layers)
    if rank() == 0:  # no other process saves
        _check_saved(tower, layers)
    return tower


def _check_saved(tower: SentenceTransformer, layers: list[int]) -> None:
    """UserError unless the tower, saved and loaded again, has the same weights and embeds a text as before."""
    again = None
    with TemporaryDirectory() as folder, suppress(UserError):  # of weights that do not fit
        tower.save_pretrained(folder, create_model_card=False)
        again = load_tower(folder)
    if again is not None:
        ours, theirs = (encode(model, ["a short text"], "query") for model in (tower, again))
        close = np.allclose(ours, theirs, atol=1e-4 * float(np.abs(ours).max()))
        if close and tower.state_dict().keys() == again.state_dict().keys():
            return
    raise UserError(
        f"distill.student: layers {layers}: once saved and loaded they are another model, as this teacher's layers"
        " differ in kind; keep its first layer first, or start from base or fresh"
    )


def pretrained(base: str, teacher: SentenceTransformer) -> SentenceTransformer:
    """Another encoder with its own tokenizer and pooling, ending as the teacher does."""
    tower = load_tower(resolve_base(base))
    _check_encoder(tower, f"distill.student: base {base}", "a static embedding is start: static")
    _forget_prompts(tower)
    return ending_like(teacher, [module for module in tower if not isinstance(module, Normalize)])


def _check_encoder(tower: SentenceTransformer, name: str, advice: str) -> None:
    """UserError unless it is a transformer with a fast tokenizer, which reads a text the same in any batch."""
    if not isinstance(tower[0], Transformer):
        raise UserError(f"{name}: its first module is no transformer; {advice}")
    check_fast(getattr(tower[0], "tokenizer", None), name)
    check_tower_batches(tower, name)


def fit_projection(tower: SentenceTransformer, sources: Sources, training: np.ndarray, params: DistillParams) -> None:
    """Start the map that `ending_like` appended, if it did, at the least squares fit to the teacher.

    `training`: rows of the texts that train, of which a sample is read.
    """
    modules = [module for module in tower if not isinstance(module, Normalize)]
    last = modules.pop()
    if not isinstance(last, Dense) or not getattr(last, _APPENDED, False):
        return
    rows = training[sample_rows(len(training), params.seed, _FITTED)]
    reader = SentenceTransformer(modules=modules, device=device())
    own = encode(reader, [sources.strings[row] for row in rows], "query", precision=params.precision).astype(np.float64)
    own = np.column_stack([own, np.ones(len(own))])  # the map has a bias
    solved = _ridge_map(own, np.asarray(sources.vectors[rows], dtype=np.float64))
    with torch.no_grad():
        last.linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(solved[:-1].T)))
        last.linear.bias.copy_(torch.from_numpy(solved[-1]))


def fresh(params: FreshEncoder, teacher: SentenceTransformer, texts: list[str], max_length: int) -> SentenceTransformer:
    """A BERT of random weights with a vocabulary trained on `texts`, or with the teacher's.

    Then each token starts as the teacher's input embedding, reduced to `dim` by its principal directions.
    """
    with TemporaryDirectory() as folder:
        tokenizer = _word_pieces(texts, params.vocabulary) if params.vocabulary else teacher.tokenizer
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=params.dim,
            num_hidden_layers=params.layers,
            num_attention_heads=params.heads,
            intermediate_size=4 * params.dim,
            max_position_embeddings=max_length,
            pad_token_id=tokenizer.pad_token_id,
        )
        model = BertModel(config, add_pooling_layer=False)
        if not params.vocabulary:
            network = _transformer(teacher, "the teacher's query tower")
            _reduce_rows(network.get_input_embeddings().weight, model.get_input_embeddings().weight)
        model.config.to_json_file(Path(folder) / "config.json")  # save_pretrained writes on rank 0 alone
        save_file(model.state_dict(), Path(folder) / "model.safetensors", metadata={"format": "pt"})
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=max_length)
    return ending_like(teacher, [transformer, Pooling(params.dim, params.pooling)])


def _word_pieces(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """A BERT tokenizer of at most `size` lower-case word pieces, learned from the texts.

    Letters are chosen and ordered here, as the trainer's order changes from process to process.
    """
    learner = BertWordPieceTokenizer(lowercase=True)
    normal = [learner.normalize(text) for text in texts]
    words = Counter(word for text in normal for word, _ in learner.pre_tokenizer.pre_tokenize_str(text))
    letters: Counter[str] = Counter()
    for word, count in words.items():
        letters.update(dict.fromkeys(word, count))
    ordered = sorted(letters, key=lambda letter: (-letters[letter], letter))
    common, rare = set(ordered[:_LETTERS]), dict.fromkeys(map(ord, ordered[_LETTERS:]))
    inner = [f"##{letter}" for letter in sorted({letter for word in words for letter in word[1:]} & common)]
    names = {"unk": "[UNK]", "sep": "[SEP]", "cls": "[CLS]", "pad": "[PAD]", "mask": "[MASK]"}
    learner.train_from_iterator(
        (text.translate(rare) for text in normal),
        vocab_size=size,
        special_tokens=[*names.values(), *inner],
        show_progress=False,
    )
    pieces = BertWordPieceTokenizer(learner.get_vocab(), lowercase=True)
    special = {f"{name}_token": token for name, token in names.items()}
    return PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, **special)


def _reduce_rows(source: Any, target: Any) -> None:
    """Fill `(vocabulary, dim)` with the coordinates of `source`'s rows along their principal directions."""
    with torch.no_grad():
        rows = source.detach().float().cpu()[: len(target)]  # a padded table has rows for no token
        rows = rows - rows.mean(dim=0)
        _, directions = torch.linalg.eigh(rows.T @ rows)
        reduced = rows @ directions.flip(1)[:, : target.shape[1]]
        target[: len(reduced), : reduced.shape[1]] = reduced * (target.std() / reduced.std())


def adapted(name: str, teacher: SentenceTransformer, sources: Sources, params: DistillParams) -> SentenceTransformer:
    """The encoder with weights that stay, and a map A `(teacher's dim, its dim)` that trains on (Drift-Adapter's LA,
    arXiv:2509.23471, without its low rank).

    A starts where it gives the old index the new model's scores. Of some documents, n being the encoder's vector and o
    that of the index, `sum ||A^T o + b - n||^2` is least; so `(A q)^T o = q^T (A^T o)` is about `q^T n - q^T b`, and
    the last term is the same for all documents of a query. UserError for what is no transformer, or has a query prompt.
    """
    folder, described = Path(resolve_base(name)), f"distill.student: adapter {name}"
    tower = load_tower(folder, "query")
    check_whole(tower, described)
    if tower.similarity_fn_name not in {"cosine", "dot"}:
        raise UserError(
            f"{described}: compares by {tower.similarity_fn_name}, and the index by inner product;"
            " name an encoder that compares by cosine or dot product"
        )
    _check_encoder(tower, described, "name a local encoder")
    if prompt := tower.prompts.get("query"):
        raise UserError(
            f"{described}: reads queries with the prompt {prompt!r}, and students read bare text;"
            " take it off distill.students, or start from `base`, which learns to do without"
        )
    start = _fitted_map(folder, teacher, sources, params)
    tower.requires_grad_(False)
    linear = Dense(start.shape[1], start.shape[0], bias=False, activation_function=nn.Identity())
    with torch.no_grad():
        linear.linear.weight.copy_(torch.from_numpy(start))
    modules = [module for module in tower if not isinstance(module, Normalize)]  # a length changes no order
    return ending_like(teacher, [*modules, linear.to(tower.device)])


def _fitted_map(folder: Path, teacher: SentenceTransformer, sources: Sources, params: DistillParams) -> np.ndarray:
    """A, float32, as long as an orthogonal matrix. What `score` embedded with this encoder is not embedded again."""
    encoder, count = load_tower(folder, "document"), len(sources.documents)
    sample = np.random.default_rng((params.seed, 8)).choice(count, min(count, _DOCUMENTS), replace=False)
    rows = np.sort(sample)
    with TemporaryDirectory(prefix="adapter.") as scratch:
        target = Path(scratch) / "documents.npy"
        embed_once(
            encoder,
            fingerprint(folder).id,
            "document",
            CorpusTexts(sources.ingest, rows),
            target,
            dtype="float32",
            precision=params.precision,
            batch_size=64,
            shard_texts=1024,
            caption="embed documents",
        )
        new = _as_compared(np.load(target), encoder)
    old = _as_compared(np.asarray(sources.documents[rows], dtype=np.float32), teacher)
    for vectors in (old, new):
        if np.linalg.norm(vectors - vectors.mean(axis=0)) <= 1e-6 * np.linalg.norm(vectors):  # but for rounding
            raise UserError(
                f"distill.student: adapter {folder}: all {count} documents have one vector, to which no map can be"
                " fitted; take it off distill.students"
            )
    old, new = old - old.mean(axis=0), new - new.mean(axis=0)
    matrix = _ridge_map(old, new)
    return np.asarray(matrix * np.sqrt(min(matrix.shape)) / np.linalg.norm(matrix), dtype=np.float32)


def _ridge_map(inputs: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """The `(a, b)` matrix that takes inputs `(n, a)` nearest to outputs `(n, b)`."""
    products = inputs.T @ inputs
    ridge = _RIDGE * np.trace(products) / len(products) * np.eye(len(products))
    return np.linalg.solve(products + ridge, inputs.T @ outputs)


def _as_compared(vectors: np.ndarray, tower: SentenceTransformer) -> np.ndarray:
    """Vectors `(n, dim)` as inner products compare them: of length 1 where the tower compares by cosine."""
    vectors = vectors.astype(np.float64)
    if tower.similarity_fn_name != "cosine":
        return vectors
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def ending_like(teacher: SentenceTransformer, modules: list[nn.Module]) -> SentenceTransformer:
    """The modules, a linear projection where their dimension is not the teacher's, and its normalisation."""
    tower = SentenceTransformer(modules=modules, device=device(), similarity_fn_name=teacher.similarity_fn_name)
    dim, target_dim = tower.get_embedding_dimension() or 0, teacher.get_embedding_dimension() or 0
    if dim != target_dim:
        projection = Dense(dim, target_dim, activation_function=nn.Identity()).to(tower.device)
        object.__setattr__(projection, _APPENDED, True)  # not one that a base came with and trained
        tower.append(projection)
    if any(isinstance(module, Normalize) for module in teacher):
        tower.append(Normalize())
    return tower


def _transformer(tower: SentenceTransformer, source: str | Path) -> PreTrainedModel:
    first = tower[0]
    if not isinstance(first, Transformer):
        raise UserError(
            f"{source}: its first module is {type(first).__name__}; give one that begins with a transformer"
        )
    model: PreTrainedModel = first.auto_model
    return model


def blocks_of(model: nn.Module, source: str | Path) -> tuple[nn.Module, str, nn.ModuleList]:
    """The module that holds a model's transformer blocks, under which name, and the list; UserError without any."""
    for path in ("encoder.layer", "transformer.layer", "encoder.layers", "layers", "h"):
        holder, _, name = path.rpartition(".")
        owner = getattr(model, holder, None) if holder else model
        blocks = getattr(owner, name, None)
        if isinstance(owner, nn.Module) and isinstance(blocks, nn.ModuleList):
            return owner, name, blocks
    raise UserError(
        f"{source}: no list of layers found in {type(model).__name__}, so no student can start from its layers; start"
        " from static, base or fresh, or take a BERT-like encoder as teacher"
    )


def _forget_prompts(tower: SentenceTransformer) -> None:
    """A student reads bare text: what the teacher's query prompt adds is in the targets that it learns."""
    tower.prompts = dict.fromkeys(tower.prompts, "")
    tower.default_prompt_name = None
