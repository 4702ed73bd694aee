"""Making the models known to transformers' AutoConfig and AutoModel classes.

A model is known there once its module has been imported, which using any of its classes does:
`qacg_models.BertModel`, say. `register_auto_classes()` imports them all, for programs that only call
`AutoModel.from_pretrained`.
"""

import importlib

# Modules whose import registers models.
MODULES = ("bert", "cg_bert", "qacg_bert", "query_attention", "bertsum")


def register_auto_classes() -> None:
    """Makes every model of this package known to AutoConfig, AutoModel and AutoModelFor...; may be repeated."""
    for name in MODULES:
        importlib.import_module(f"qacg_models.{name}")


def register(config_class: type, **model_classes: type) -> None:
    """Registers a configuration and its models.

    Args:
        model_classes: by name of the auto class, such as AutoModelForSequenceClassification.
    """
    import transformers

    # exist_ok: reloading a module in a notebook registers its new classes.
    transformers.AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    for name, model_class in model_classes.items():
        getattr(transformers, name).register(config_class, model_class, exist_ok=True)
