"""Trains the tokenizer of a tiny target on the train pool and writes its folder's small files.

    python data/make_tokenizer.py --family sdar --out my-target

Writes tokenizer.json, tokenizer_config.json with the chat template, config.json with the field
names of the family's official checkpoints, and generation_config.json. No weights.
"""

import argparse
import json
from pathlib import Path

from target_families import FAMILIES, TinyTarget
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers


def train_tokenizer(texts: list[str], family: TinyTarget) -> Tokenizer:
    """Byte-level BPE with single digits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(family.pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=family.vocab_tokens - (0 if family.special_first else len(family.special)),
        special_tokens=list(family.special) if family.special_first else [],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(family.special))
    return tokenizer


def write_json(path: Path, value: dict[str, object]) -> None:
    """One JSON file, indented."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_small_files(tokenizer: Tokenizer, family: TinyTarget, folder: Path) -> None:
    """Everything in a target's folder but the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": family.stop,
            "pad_token": family.filler,
            "mask_token": family.mask,
            "additional_special_tokens": [s for s in family.special if s not in (family.filler, family.mask)],
            "clean_up_tokenization_spaces": False,
            "model_max_length": 1024,
            "chat_template": family.chat_template,
        },
    )
    ids = {name: tokenizer.token_to_id(token) for name, token in family.id_fields.items()}
    config = {**family.config, **ids, "vocab_size": tokenizer.get_vocab_size()}
    write_json(folder / "config.json", dict(sorted(config.items())))
    stops = [tokenizer.token_to_id(token) for token in (family.stop, family.filler)]
    write_json(
        folder / "generation_config.json",
        {"bos_token_id": stops[1], "eos_token_id": stops, "pad_token_id": stops[1], "do_sample": False},
    )


def main() -> None:
    """Command line."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--family", choices=sorted(FAMILIES), default="sdar")
    parser.add_argument("--pool", type=Path, default=here / "pools" / "train.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    family = FAMILIES[args.family]
    user, assistant = family.roles
    rows = [json.loads(line) for line in args.pool.read_text(encoding="utf-8").splitlines()]
    texts = [f"{user}\n{row['prompt']}\n{assistant}\n{row['answer']}" for row in rows]
    tokenizer = train_tokenizer(texts, family)
    write_small_files(tokenizer, family, args.out)
    print(f"{args.out}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
