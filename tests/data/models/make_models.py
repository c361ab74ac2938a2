#!/usr/bin/env python3
"""Writes the models and tokenizers in this folder, with the packages that people take them from.

    python3 -m venv venv && venv/bin/pip install torch transformers tokenizers
    venv/bin/python tests/data/models/make_models.py [FOLDER [SEED]]

Weights are random and small. For each model, expected.json has the tokens of a text, the logits
that transformers computes for the first and the last of them, and the tokens that follow if the
most likely one is always taken. For each tokenizer, encodings.json has texts and the tokens that
the package tokenizers gives them. cli/model_folder_test.cc and cli/tokenizer_test.cc compare with
the files; tests/model_packages_test.py runs this script and lets them compare with what it writes.
Without torch and transformers, only the tokenizers are written.
"""

import json
import pathlib
import sys

VOCABULARY = 384
LICENSES = pathlib.Path("/usr/share/common-licenses")

# The words of Llama 3.
LLAMA3_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
                r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXTS = [
    "",
    " ",
    "a",
    "The licence of this library is free software.",
    "I'll say it's they've, he'd, we're and I'm; don't CAN'T DON'T I'Ll",
    "numbers 1 12 123 1234 12345 3.14 1,000,000 \u00bd \u00b2 \u2167 \u0663\u0664 \u0967\u0968",
    "  two  spaces   three \t tab\n\nnewlines\r\n  \n trailing   ",
    "\u00a0no-break\u2003em space\u3000ideographic\u200bzero width\u180evowel separator\u0085next",
    "na\u00efve caf\u00e9 \u00dcber stra\u00dfe \u0141\u00f3d\u017a",
    "cafe\u0301 combining, \u1e9e and \ufb01 ligature",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002 \u4e2d\u6587 \ud55c\uad6d\uc5b4",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea "
    "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\U0001f600 \U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f "
    "\U0001f44d\U0001f3fd",
    "math \U0001d54f \u2211\u222b\u221e \u2264 x\u2192y \u00b1",
    "code: for (int i=0;i<10;++i) { x[i] += 2*y; } // \"quoted\" `ticks` #include <a.h>",
    "----- ===== ***** ..... !!! ??? ...!?",
    "https://www.gnu.org/licenses/old-licenses/gpl-2.0.html?a=1&b=%20#c",
    "MixedCASE camelCase snake_case kebab-case UPPER",
    "<|endoftext|>begin<|endoftext|><|endoftext|> middle <|endoftext|>",
    "<s>not</s> <unk> <0x41> \u2581under\u2581 <|endoftext",
    "\x00\x01\x1f\x7f control",
    "a" * 50 + " " * 40 + "\n" * 20 + "1" * 20,
    "the the the the\nthe\n\n\nthe \u0130\u0131 \u017fs 'S '\u017f",
]

# For tokenizers with a normalizer.
UNICODE_TEXTS = [
    "\u039f\u0394\u03a5\u03a3\u03a3\u0395\u03a5\u03a3 \u03c3\u03c2",
    "A\u030a \u00c5 \u212b a\u0301\u0323 a\u0323\u0301 q\u0307\u0323 \u1100\u1161\u11a8 \uac01",
    "\ufb03 \u2460 \u00bc \u33a0 \uff21\uff22\uff43 \uff76\uff9e \ufdfa \u210c \u2122 \u2026",
    "\u1e9b\u0323 \u0344 \u0958 \ufb1d \u2adc \U0001d15e \U0002f800",
    "\U00010400\U00010428 \u01c5 \u0130 \u1e9e \u1f88 \u2168 \u24b6 \u13a0 \u1c90",
    "e<|endoftext|>\u0301x <|ENDOFTEXT|> \u0301",
    "\ufb01nish finish FINISH fini\u017fh",
]


def train(tokenizer, trainer):
    tokenizer.train([str(LICENSES / name) for name in ("GPL-2", "GPL-3", "LGPL-2.1")], trainer)


def byte_level(folder):
    """As GPT-2 has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def normalized(folder, normalizer):
    """Bytes of a text in a form of Unicode."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens([AddedToken("finish", normalized=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def nfc(folder):
    from tokenizers import normalizers
    return normalized(folder, normalizers.NFC())


def nfkc_lowercase(folder):
    from tokenizers import normalizers
    return normalized(folder, normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]))


def split_pattern(folder):
    """As Llama 3 has it: words by a pattern, a token in front of each text, ignore_merges."""
    from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers,
                            processors, trainers)
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, trainers.BpeTrainer(
        vocab_size=VOCABULARY - 2, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|endoftext|>"])
    tokenizer.add_tokens([AddedToken("MixedCASE", normalized=True)])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A",
                                      special_tokens=[("<|begin_of_text|>", begin)])])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def byte_fallback(folder):
    """As Llama 2 has it: the whole text is a word, what has no token becomes bytes."""
    from tokenizers import (Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                            trainers)
    special = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    # Cut for training only, so that tokens do not cross words.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    train(tokenizer, trainers.BpeTrainer(vocab_size=400, special_tokens=special + fallback,
                                         limit_alphabet=70, show_progress=False))
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def metaspace(folder):
    """Words that begin with a space, digits one by one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        pre_tokenizers.Digits(individual_digits=True)])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    train(tokenizer, trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"],
                                         show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def write_encodings(folder, tokenizer, texts):
    rows = []
    for text in texts:
        tokens = tokenizer.encode(text).ids
        rows.append({"text": text, "tokens": tokens, "decoded": tokenizer.decode(tokens)})
    lines = ",\n".join(json.dumps(row) for row in rows)
    (folder / "encodings.json").write_text(f"[\n{lines}\n]\n")


def gpt2(tokenizer):
    import transformers
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=48, n_embd=8, n_layer=2, n_head=2,
        layer_norm_epsilon=1e-3, initializer_range=0.3, bos_token_id=0,
        eos_token_id=tokenizer.token_to_id("<|endoftext|>")))


def llama(tokenizer, **options):
    import transformers
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=16, intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, rms_norm_eps=1e-4,
        initializer_range=0.3, bos_token_id=0, **options))


def write_model(folder, model, tokenizer, shard_size="1GB"):
    import torch
    # Norms and biases begin as ones and zeros: random ones show what is mixed up.
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    model.eval()
    model.save_pretrained(folder, max_shard_size=shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    prompt = "The licence of this"
    tokens = tokenizer.encode(prompt).ids
    # With the weights as they were rounded, and nothing else.
    model = type(model).from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
        text = list(tokens)
        for _ in range(12):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    (folder / "expected.json").write_text(json.dumps({
        "prompt": prompt, "tokens": tokens, "continuation": text[len(tokens):],
        "logits": [[round(float(x), 5) for x in logits[i]] for i in (0, len(tokens) - 1)]}) + "\n")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)

    def folder(name):
        (root / name).mkdir(parents=True, exist_ok=True)
        return root / name

    tokenizers = {}
    for name, make in (("gpt2", byte_level), ("llama", split_pattern),
                       ("byte_fallback", byte_fallback), ("metaspace", metaspace),
                       ("nfc", nfc), ("nfkc_lowercase", nfkc_lowercase)):
        tokenizers[name] = make(folder(name))
        # A character without a token ends in <unk>, which has no text.
        write_encodings(folder(name), tokenizers[name],
                        TEXTS + (UNICODE_TEXTS if name.startswith("nf") else []))
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"{error}: no models are written", file=sys.stderr)
        return
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    write_model(folder("gpt2"), gpt2(tokenizers["gpt2"]), tokenizers["gpt2"])
    # Grouped queries, in bf16 and in two files.
    grouped = llama(tokenizers["llama"], num_key_value_heads=2, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0}).to(torch.bfloat16)
    write_model(folder("llama"), grouped, tokenizers["llama"], shard_size="20KB")
    # One head of keys for all, in f16, with the logits tied to the embedding.
    tied = llama(tokenizers["gpt2"], num_key_value_heads=1, tie_word_embeddings=True,
                 eos_token_id=None).to(torch.float16)
    write_model(folder("llama_tied"), tied, tokenizers["gpt2"])
    # Positions that are scaled: with 16 tokens, one pair of llama3 is blended, the other divided.
    for name, scaling in (("linear", {"factor": 2.5}), ("dynamic", {"factor": 4.0}),
                          ("llama3", {"factor": 8.0, "low_freq_factor": 1.0,
                                      "high_freq_factor": 4.0,
                                      "original_max_position_embeddings": 16})):
        scaled = llama(tokenizers["gpt2"], num_key_value_heads=2, tie_word_embeddings=True,
                       eos_token_id=None, rope_parameters={
                           "rope_type": name, "rope_theta": 500.0, **scaling}).to(torch.float16)
        write_model(folder(f"llama_rope_{name}"), scaled, tokenizers["gpt2"])


if __name__ == "__main__":
    main()
