"""The names that recipes and the command line can use: one line per class, imported on first use."""

from importlib import import_module
from typing import Any

from unforced.errors import InputError, nearest

REGISTRY: dict[str, dict[str, str]] = {
    "objectives": {
        "cross_entropy": "unforced.objectives.cross_entropy:CrossEntropy",
        "label_smoothing": "unforced.objectives.label_smoothing:LabelSmoothing",
        "scheduled_sampling": "unforced.objectives.scheduled_sampling:ScheduledSampling",
        "parallel_scheduled_sampling": "unforced.objectives.parallel_scheduled_sampling:ParallelScheduledSampling",
        "token_smoothing": "unforced.objectives.token_smoothing:TokenSmoothing",
        "sequence_smoothing": "unforced.objectives.sequence_smoothing:SequenceSmoothing",
        "token_sequence_smoothing": "unforced.objectives.token_sequence_smoothing:TokenSequenceSmoothing",
        "self_normalized": "unforced.objectives.self_normalized:SelfNormalized",
        "soft_beam": "unforced.objectives.soft_beam:SoftBeam",
        "beam_search_optimization": "unforced.objectives.beam_search_optimization:BeamSearchOptimization",
        "minimum_risk": "unforced.objectives.minimum_risk:MinimumRisk",
        "masked_lm": "unforced.objectives.masked_lm:MaskedLM",
        "pseudo_likelihood": "unforced.objectives.pseudo_likelihood:PseudoLikelihood",
        "exact_likelihood": "unforced.objectives.exact_likelihood:ExactLikelihood",
        "kl_projection": "unforced.objectives.kl_projection:KLProjection",
        "noise_contrastive": "unforced.objectives.noise_contrastive:NoiseContrastive",
    },
    "models": {
        "lstm": "unforced.models.lstm:LSTM",
        "transformer": "unforced.models.transformer:Transformer",
        "causal": "unforced.models.transformer:Causal",
        "field": "unforced.models.field:Field",
        "masked": "unforced.models.masked:Masked",
        "conditional_masked": "unforced.models.masked:ConditionalMasked",
        "toy": "unforced.models.toy:Toy",
        "huggingface": "unforced.huggingface.model_spec:HuggingFace",
    },
    "tasks": {
        "g2p": "unforced.tasks.pronunciation:G2P",
        "streaming_g2p": "unforced.tasks.streaming_g2p:StreamingG2P",
        "pairs": "unforced.tasks.pairs:Pairs",
        "translation": "unforced.tasks.text:Translation",
        "dialogue": "unforced.tasks.text:Dialogue",
        "summarization": "unforced.tasks.text:Summarization",
        "language": "unforced.tasks.language:Language",
        "phonemes": "unforced.tasks.pronunciation:Phonemes",
        "tagging": "unforced.tasks.tagging:Tagging",
        "images": "unforced.tasks.images:Images",
        "captions": "unforced.tasks.captions:Captions",
        "palindromes": "unforced.tasks.synthetic:Palindromes",
        "hmm": "unforced.tasks.synthetic:HMM",
    },
    "decoders": {
        "greedy": "unforced.decoding.greedy:Greedy",
        "sample": "unforced.decoding.sampling:Sample",
        "beam": "unforced.decoding.beam:Beam",
        "soft_beam": "unforced.decoding.soft_beam:SoftBeamSearch",
        "gold_history": "unforced.decoding.gold_history:GoldHistory",
        "mask_predict": "unforced.energy.mask_predict:MaskPredict",
        "chain": "unforced.energy.chain:Chain",
    },
    "kernels": {
        "metropolis_hastings": "unforced.energy.metropolis_hastings:MetropolisHastings",
        "gibbs": "unforced.energy.gibbs:Gibbs",
    },
    "costs": {
        "hamming": "unforced.objectives.costs:Hamming",
        "weighted_hamming": "unforced.objectives.costs:WeightedHamming",
        "confusions": "unforced.objectives.costs:Confusions",
    },
    "schedules": {
        "constant": "unforced.objectives.schedules:Constant",
        "linear": "unforced.objectives.schedules:Linear",
        "exponential": "unforced.objectives.schedules:Exponential",
        "inverse_sigmoid": "unforced.objectives.schedules:InverseSigmoid",
        "always": "unforced.objectives.schedules:Always",
        "rise": "unforced.objectives.schedules:Rise",
    },
}

# A field of one of these types holds an instance of any class of the kind.
PROTOCOLS = {
    "unforced.protocols:Objective": "objectives",
    "unforced.protocols:Schedule": "schedules",
    "unforced.protocols:Cost": "costs",
    "unforced.protocols:Sampler": "kernels",
}


def resolve(kind: str, name: str) -> type:
    """Return the class of a name.

    >>> resolve("objectives", "label_smoothing")
    <class 'unforced.objectives.label_smoothing.LabelSmoothing'>
    >>> resolve("objectives", "lable_smoothing")
    Traceback (most recent call last):
    unforced.errors.InputError: there is no "lable_smoothing" in objectives; did you mean "label_smoothing"?
    """
    entries = REGISTRY[kind]
    if name not in entries:
        raise InputError(f'there is no "{name}" in {kind}; {nearest(name, entries)}')
    module, _, attribute = entries[name].partition(":")
    cls: type = getattr(import_module(module), attribute)
    return cls


def address(cls: type) -> str:
    """Return a class as ``module:name``."""
    return f"{cls.__module__}:{cls.__qualname__}"


def name_of(kind: str, value: Any) -> str | None:
    """Return the registered name of a class, or of the class of an object; None if it has none.

    >>> from unforced.objectives.cross_entropy import CrossEntropy
    >>> name_of("objectives", CrossEntropy()), name_of("objectives", 3)
    ('cross_entropy', None)
    """
    cls = value if isinstance(value, type) else type(value)
    return next((name for name, entry in REGISTRY[kind].items() if entry == address(cls)), None)


def kind_of(hint: Any) -> str | None:
    """Return the kind of classes that a field of this type holds, or None if it is none of the `PROTOCOLS`."""
    return PROTOCOLS.get(address(hint)) if isinstance(hint, type) else None
