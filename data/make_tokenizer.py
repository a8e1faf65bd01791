"""Trains the tokenizer of the tiny target on the train pool and writes its folder's small files.

    python data/make_tokenizer.py --out my-target

Writes tokenizer.json, tokenizer_config.json with the chat template, config.json with the field
names of the official SDAR checkpoints, and generation_config.json. No weights.
"""

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>")
VOCAB_TOKENS = 1000
PIECES = r"\d| ?\p{L}+| ?[^\s\p{L}\d]+(?: (?=\d))?|\s+"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE with single digits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_TOKENS,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def model_config(vocab_tokens: int) -> dict[str, object]:
    """config.json under the official SDAR names; block length and special ids included."""
    return {
        "architectures": ["SDARForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "mask_token_id": 3,
        "block_size": 32,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 640,
        "max_position_embeddings": 1024,
        "max_window_layers": 4,
        "model_type": "sdar",
        "num_attention_heads": 8,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocab_tokens,
    }


def write_json(path: Path, value: dict[str, object]) -> None:
    """One JSON file, indented."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Command line."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pool", type=Path, default=here / "pools" / "train.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.pool.read_text(encoding="utf-8").splitlines()]
    tokenizer = train_tokenizer([f"user\n{row['prompt']}\nassistant\n{row['answer']}" for row in rows])
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    write_json(
        args.out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "mask_token": "<|MASK|>",
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "clean_up_tokenization_spaces": False,
            "model_max_length": 1024,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    write_json(args.out / "config.json", model_config(tokenizer.get_vocab_size()))
    write_json(
        args.out / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False},
    )
    print(f"{args.out}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
