"""What a model folder is, as digests: weights, tokenizer, and the modules around them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from slimtower.common.errors import UserError
from slimtower.common.files import files_digest

_TOKENIZER_FILES = {
    "tokenizer.json", "vocab.txt", "special_tokens_map.json", "tokenizer_config.json", "vocab.json", "merges.txt",
    "added_tokens.json", "sentencepiece.bpe.model", "spiece.model", "tokenizer.model", "chat_template.jinja",
}  # fmt: skip
_MODULE_FILES = {
    "modules.json", "config.json", "config_sentence_transformers.json", "sentence_bert_config.json",
    "router_config.json",
}  # fmt: skip


@dataclass(frozen=True)
class Fingerprint:
    """Hex sha256 digests of a model folder."""

    weights: str
    tokenizer: str
    modules: str

    @property
    def id(self) -> str:
        """One digest over all three."""
        return hashlib.sha256(f"{self.weights}{self.tokenizer}{self.modules}".encode()).hexdigest()


def fingerprint(folder: Path) -> Fingerprint:
    """Digest a SentenceTransformer folder; UserError when it holds no safetensors weights."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    weights = [path for path in files if path.suffix == ".safetensors"]
    if not weights:
        raise UserError(f"{folder}: holds no .safetensors weights; save it with sentence-transformers 3 or later")
    return Fingerprint(
        weights=files_digest(folder, weights),
        tokenizer=files_digest(folder, [path for path in files if path.name in _TOKENIZER_FILES]),
        modules=files_digest(folder, [path for path in files if path.name in _MODULE_FILES]),
    )
