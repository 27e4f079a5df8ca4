"""A tiny random causal language model, and a world whose documents have a line break behind their title."""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from teach_fakes import PARAMS, documents, table, write_world
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AddedToken, AutoModel, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from slimtower.common.document_texts import DocumentTemplate
from steps.core.tables import write_table
from steps.encoders.towers import route
from steps.teach.kinds.base import LossParams
from steps.teach.kinds.llm_dual_encoder import LlmDualEncoder

END = "<|endoftext|>"
LAYOUT = (
    "Document: {'title': %s}. Predict a query term:\"[TITLE_QUERY]\". "
    "Document: {'content': %s}. Predict a query term:\"[CONTENT_QUERY]\", "
    'combine the predicted query terms, and compress the above content into one word:"[EMB]".'
)
PLACEHOLDERS = ["[TITLE_QUERY]", "[CONTENT_QUERY]", "[EMB]"]
TITLED = DocumentTemplate("{title}\n{content}")
TEXTS = ["sum tables\nto sum all tables at once", "plot", "draw\nto draw\nall images", "a {{ b }} }\n{'c': 1}"]
TEXTS.append(TITLED.text("", "", "to add tables\n\nat once"))
LLM_PARAMS = LlmDualEncoder.model_validate(
    PARAMS.model_dump(include=set(LlmDualEncoder.model_fields))
    | {
        "kind": "llm_dual_encoder",
        "dim": 8,
        "loss": LossParams(both_directions=True, dims=[4], hard_negatives="margin", margin=0.2, margin_weight=0.5),
        "max_document_length": 128,
    }
)


def write_llm(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A Qwen2 of two layers and width 16 with a BPE of the words of the small world, as a transformers folder."""
    words = " ".join([row["content"] for row in documents()])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[END], initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    prompt = "Document title content Predict a query term combine the predicted query terms and compress the above"
    tokenizer.train_from_iterator([words, prompt], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END).save_pretrained(str(folder))
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer.get_vocab()),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        max_position_embeddings=256,
        initializer_range=0.3,
        eos_token_id=0,
    )
    Qwen2ForCausalLM(config).to(dtype).save_pretrained(str(folder))
    return folder


def write_titled_world(folder: Path) -> tuple[Path, Path]:
    """`write_world`, with titles and contents on lines of their own."""
    ingest, mine = write_world(folder)
    write_table(ingest, "corpus", table("corpus", documents()), metadata=TITLED.metadata)
    return ingest, mine


def laid_out(text: str) -> str:
    """The whole prompt of a document (ScalingNote, Sec. 3.2)."""
    title, content = text.split("\n", 1) if "\n" in text else ("", text)
    return LAYOUT % (title, content)


def states_before(base: Path, tower: SentenceTransformer, text: str) -> torch.Tensor:
    """States before the three placeholders of the whole prompt, `(3, width)`, by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(str(base))
    tokenizer.add_tokens([AddedToken(name, special=True) for name in PLACEHOLDERS], special_tokens=True)
    network = AutoModel.from_pretrained(str(base)).eval()
    network.resize_token_embeddings(len(tokenizer))
    grown = route(tower, "document")[0].auto_model.get_input_embeddings().weight
    with torch.no_grad():  # rows of placeholders are random
        network.get_input_embeddings().weight[: len(grown)] = grown
        ids = tokenizer(laid_out(text), add_special_tokens=False, return_tensors="pt").input_ids
        states = network(input_ids=ids).last_hidden_state[0]
    positions = [int((ids[0] == tokenizer.convert_tokens_to_ids(name)).nonzero()) for name in PLACEHOLDERS]
    return states[[position - 1 for position in positions]]
