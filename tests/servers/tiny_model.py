"""Write a tiny llama model with random weights that calls tools by itself, for llama.cpp's server. Needs numpy and gguf.

    python tiny_model.py OUT.gguf BIAS

Its vocabulary consists of single characters and a few marks; nothing is downloaded. Its output is random, but the first
hidden dimension carries a constant through the network, so that the output weights of that dimension determine how likely
each token is: BIAS is that of `<tool_call>` (3 calls in most turns and stops by itself, 12 always calls, -30 never does).
"""

from __future__ import annotations

import sys
from typing import Any

WIDTH, HEADS, LAYERS, INNER, CONTEXT = 64, 4, 2, 128, 32_768
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6  # llama.cpp's kinds of tokens
SPACE = "\u2581"
MARKS = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("<tool_call>", USER), ("</tool_call>", USER)]
MARKS += [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)]
NEVER, RARELY, OFTEN = -30.0, -4.0, 1.5
# The approximate value of the constant dimension after normalisation.
CONSTANT = 7.0


def vocabulary() -> tuple[list[str], list[int], list[float]]:
    """The tokens, their kinds and their scores."""
    raw = [(f"<0x{value:02X}>", BYTE) for value in range(256)]
    characters = [(SPACE if value == 32 else chr(value), NORMAL) for value in range(32, 127)]
    tokens = MARKS + raw + characters
    scores = [-float(ord(text)) if kind == NORMAL and text != SPACE else 0.0 for text, kind in tokens]
    return [text for text, _ in tokens], [kind for _, kind in tokens], scores


def likelihoods(tokens: list[str], bias: float) -> list[float]:
    """The likelihood of each token, apart from the random weights."""
    wanted = {"<|im_end|>": 2.5, "</tool_call>": 3.0, "<tool_call>": bias, SPACE: -2.0}
    wanted.update(dict.fromkeys(("<unk>", "<s>", "</s>", "<|im_start|>"), NEVER))
    wanted.update(dict.fromkeys('"}]', OFTEN))
    wanted.update(dict.fromkeys("\\{[<", RARELY))
    return [wanted.get(token, NEVER if token.startswith("<0x") else 0.0) for token in tokens]


def write(path: str, bias: float) -> None:
    """Write the model's file."""
    import gguf
    import numpy

    random = numpy.random.default_rng(0)

    def weights(*shape: int, scale: float) -> Any:
        return (random.standard_normal(shape) * scale).astype(numpy.float32)

    def kept_out(matrix: Any) -> Any:
        matrix[0:4, :] = 0  # no layer writes into the dimensions that steer
        return matrix

    tokens, kinds, scores = vocabulary()
    place = {token: index for index, token in enumerate(tokens)}
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, tokens, kinds, scores)
    embedding = weights(len(tokens), WIDTH, scale=0.3)
    embedding[:, 0], embedding[:, 1:4] = CONSTANT - 1, 0
    output = weights(len(tokens), WIDTH, scale=0.12)
    output[:, 0], output[:, 1:4] = numpy.array(likelihoods(tokens, bias), numpy.float32) / CONSTANT, 0
    # A newline follows <tool_call> and }: exactly that triggers the template's grammar.
    embedding[place["<tool_call>"], 1], embedding[place["}"], 2] = 6.0, 2.0
    output[place["<0x0A>"], 1] = output[place["<0x0A>"], 2] = 12.0
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", numpy.ones(WIDTH, numpy.float32))
    writer.add_tensor("output.weight", output)
    for layer in range(LAYERS):
        name = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{name}{norm}.weight", numpy.ones(WIDTH, numpy.float32))
        for part in ("attn_q", "attn_k", "attn_v"):
            writer.add_tensor(f"{name}{part}.weight", weights(WIDTH, WIDTH, scale=0.05))
        writer.add_tensor(f"{name}attn_output.weight", kept_out(weights(WIDTH, WIDTH, scale=0.05)))
        for part in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"{name}{part}.weight", weights(INNER, WIDTH, scale=0.05))
        writer.add_tensor(f"{name}ffn_down.weight", kept_out(weights(WIDTH, INNER, scale=0.05)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, tokens: list[str], kinds: list[int], scores: list[float]) -> None:
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(0)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token.encode() for token in tokens])
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


if __name__ == "__main__":
    write(sys.argv[1], float(sys.argv[2]))
