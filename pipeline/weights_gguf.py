"""A causal language model from its GGUF file, as a folder that transformers reads."""

from pathlib import Path

from slimtower.common.errors import UserError, line


def convert(packed: Path, folder: Path) -> None:
    """Write its weights, in bf16, settings and tokenizer; UserError for a broken file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, name, unpacked = str(packed.parent), packed.name, GgufConfig(dequantize=True)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=name, quantization_config=unpacked, dtype=torch.bfloat16, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"weights: {name} is no GGUF file that transformers reads ({line(error)})") from None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
