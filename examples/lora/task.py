"""A small language model that knows half of the subjects, and adapters that are to learn all."""

from functools import lru_cache

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

Weights = dict[str, Tensor]

# Clients that share a machine get one core each, and sums in one order have the same bits.
torch.set_num_threads(1)

# Each subject has nouns, verbs and things of its own.
SUBJECTS, NOUNS, VERBS, THINGS = 10, 4, 3, 4
THE, START = 0, 1
_WORDS = NOUNS + VERBS + THINGS
VOCABULARY = 2 + SUBJECTS * _WORDS
_KNOWN = 5  # subjects
_STEPS = 150


def load_model(adapters: Weights | None = None) -> PeftModel:
    """Return the frozen model with adapters: those that have travelled, or new ones."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = get_peft_model(
            _pre_trained(),
            LoraConfig(
                r=4,
                lora_alpha=16,
                target_modules=["c_attn", "c_fc", "c_proj"],
                fan_in_fan_out=True,
                task_type="CAUSAL_LM",
            ),
        )
    if adapters is not None:
        set_peft_model_state_dict(model, adapters)
    return model


def travelling(model: PeftModel) -> Weights:
    """Return the weights that travel: those of the adapters."""
    return dict(get_peft_model_state_dict(model))


def load_data(client: int, num_clients: int) -> Tensor:
    """Return a client's sentences: on two subjects only, since real clients are not alike."""
    subjects = torch.tensor([client % SUBJECTS, (client + 1) % SUBJECTS])
    return sentences(subjects.repeat(60), seed=client)


def load_test_data() -> Tensor:
    """Return sentences on all subjects."""
    return sentences(torch.arange(SUBJECTS).repeat(20), seed=10**6)


def sentences(subjects: Tensor, seed: int) -> Tensor:
    """Return a sentence on each of some subjects: "the NOUN VERB the THING", shape (n, 6)."""
    draw = torch.Generator().manual_seed(seed)
    first = 2 + subjects * _WORDS

    def word(offset: int, many: int) -> Tensor:
        return first + offset + torch.randint(many, first.shape, generator=draw)

    the, start = torch.full_like(first, THE), torch.full_like(first, START)
    noun, verb, thing = word(0, NOUNS), word(NOUNS, VERBS), word(NOUNS + VERBS, THINGS)
    return torch.stack([start, the, noun, verb, the, thing], dim=1)


def train(model: PeftModel, examples: Tensor, lr: float) -> None:
    """Train the adapters for one epoch."""
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=lr)
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
    for batch in order.split(20):
        optimizer.zero_grad()
        _loss(model, examples[batch]).backward()
        optimizer.step()


def evaluate(model: PeftModel, examples: Tensor) -> float:
    """Return the mean cross-entropy of the next word."""
    model.eval()
    with torch.no_grad():
        return _loss(model, examples).item()


def _loss(model: PeftModel | GPT2LMHeadModel, examples: Tensor) -> Tensor:
    logits = model(input_ids=examples).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), examples[:, 1:].flatten())


def _new_model() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=8,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=START,
        eos_token_id=START,
    )
    return GPT2LMHeadModel(config)


def _pre_trained() -> GPT2LMHeadModel:
    """Return the model that a real app would load from a file."""
    model = _new_model()
    model.load_state_dict(_weights())
    return model


@lru_cache(maxsize=1)
def _weights() -> Weights:
    """Return its weights: trained on the subjects that it knows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _new_model()
    examples = sentences(torch.arange(_KNOWN).repeat(20), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        _loss(model, examples).backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}
